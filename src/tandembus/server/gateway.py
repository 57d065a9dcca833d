"""One AMQP connection of one peer: events in, commands out, answers back as frames.

Here is decided what each link is for; what it then does is `links` and `nodes`. Bytes come in by
`receive`, and go out by the `write` that the listener gave; everything that piles up in one turn of
the loop is written at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import (
    Authenticated,
    Closed,
    Dispositions,
    Event,
    Heartbeat,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    MessageAborted,
    MessageCut,
    MessagePart,
    MessageReceived,
    MessageRefused,
    Opened,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from tandembus.amqp.link import Link
from tandembus.amqp.session import Session
from tandembus.changes import EntityKind
from tandembus.core.access import Claims, Right, path_of, require_right
from tandembus.core.namespace import Namespace
from tandembus.errors import (
    EntityNotFoundError,
    MessageLockLostError,
    NotAllowedError,
    Refused,
    TandemError,
    UnauthorizedError,
)
from tandembus.limits import (
    BATCH_ENVELOPE,
    CHURN_PER_S,
    KIB,
    MAX_BATCH_BYTES,
    MAX_UNSTORED_BYTES,
    PIECE_BYTES,
    TOKEN_TIMEOUT_MS,
)
from tandembus.model import NEVER, Millis, Symbol
from tandembus.names import split
from tandembus.server import cbs, management
from tandembus.server.arrival import Unfinished
from tandembus.server.asking import Asking
from tandembus.server.broker import Broker
from tandembus.server.cbs import TokenGate, audience_of
from tandembus.server.links import BATCH_SIZE, DESTINATION, Inlet
from tandembus.server.namespaces import Choice, Hosted
from tandembus.server.nodes import CBS, Node, NodeEnd, NodePairs
from tandembus.server.outlet import Outlet
from tandembus.server.refusals import told, tracked
from tandembus.server.requests import Request, parse_request, token_reply
from tandembus.server.rows import Rows, decide
from tandembus.server.stored import Stream
from tandembus.server.transactions import OpenTransactions, Transactor, group_of
from tandembus.server.turns import Churn, Share
from tandembus.store.api import Buffer

log = logging.getLogger("tandembus.server")

CONTAINER: Final = "tandem"
MANAGEMENT: Final = "$management"
USER_AGENT: Final = Symbol("user-agent")
PRODUCT: Final = Symbol("product")
OLD_JAVA: Final = "MSJavaClient"


class Gateway:
    def __init__(
        self,
        broker: Broker,
        write: Callable[[Sequence[Buffer]], None],
        hang_up: Callable[[], None],
        *,
        peer: str,
        on_open: Callable[[], None],
        choice: Choice | None = None,
    ) -> None:
        self.broker = broker
        """While there is a choice, one of them; nothing but tokens is taken before it is made."""
        self._choice = choice
        self.turns = broker.turns
        self.share = Share(perf_counter())
        self.claims = broker.new_claims()
        self.peer = peer
        self.reads_all_types = False
        """Whether the peer reads every AMQP type; azure-servicebus for Python does not."""
        self._is_javascript = self.reads_tags_as_text = False
        self._write = write
        self._hang_up = hang_up
        self._on_open = on_open
        self.is_stalled = False
        """Whether the peer does not take what is sent."""
        self.unfinished = Unfinished(self)
        self.is_draining = False
        """Whether nothing more is handed out, because the broker will stop."""
        self._churn = Churn()
        self._token_due_ms: int | None = None
        """By when the peer must have brought a token."""
        self._loop = asyncio.get_running_loop()
        self._will_write = self._will_stream = False
        self._has_complained = self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._nodes = NodePairs(self)
        self.connection = Connection(
            Role.SERVER,
            container_id=CONTAINER,
            max_message_size=MAX_BATCH_BYTES,
            use_sasl=not broker.is_open,
            check_plain=None if broker.is_open else self._log_in,
        )
        self.connection.tracked = self._tracked
        self._gate = self._gate_of(broker)
        self._rows = Rows(broker.namespace)
        self.transactions = OpenTransactions()
        """Those that this peer has declared, and not discharged."""
        broker.holders.add(self)
        self._set_timer()

    def _gate_of(self, broker: Broker) -> TokenGate:
        def has_entity(path: str) -> bool:
            return path in broker.namespace

        return TokenGate(broker.authority, has_entity, self.random_bits, broker.jwt, broker.is_open)

    def _log_in(self, name: str, key: str) -> bool:
        """SASL PLAIN: the name and key of a policy."""
        if self._choice is not None and self._choice.log_in(name, key):
            self._choose()
            return True
        grants = self.broker.login(name, key)
        for grant in grants:
            self.claims.add(grant)
        if not grants:
            log.info("%s: refused: no policy has that name and key", self.peer)
        return bool(grants)

    def shut_down(self) -> None:
        """The broker stops: the peer is told, and may try again elsewhere or later."""
        self._end("amqp:connection:forced", "The broker is stopping.")

    def drain(self) -> None:
        """The broker will stop: nothing more is handed out, and what was can be settled."""
        self.is_draining = True
        for session in self.connection.sessions:
            for link in session.links.values():
                if isinstance(link.context, Outlet):
                    link.context.go_on()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is unsettled on either side."""
        sessions = self.connection.sessions
        return not any(link.unsettled for each in sessions for link in each.links.values())

    def hang_up(self) -> None:
        """Something of this connection failed here: the peer connects again, and goes on."""
        self._end("amqp:internal-error", "An error of the broker ended the connection.")

    def _end(self, condition: str, why: str) -> None:
        """Close the connection without waiting for the peer's answer."""
        self.connection.close(p.Error(condition, why))
        self._write_now()
        self._hang_up()

    # --- bytes ------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> bool:
        """Work on these bytes, for a turn at most. True if that was not all: `receive(b"")`, in
        another turn, goes on."""
        connection = self.connection
        began = perf_counter()
        most, turn_s = self.turns.pace(began)
        until = began + turn_s
        engine = self.broker.engine
        engine.begin_turn()
        self._will_write = True
        try:
            self._on_events(connection.receive_data(data, most))
            # A request has to begin before what comes behind it: it ends the turn.
            while connection.has_more and not connection.is_paused and perf_counter() < until:
                self._on_events(connection.receive_data(b"", most))
        finally:
            engine.end_turn()
            self._write_now()
        return connection.has_more

    @property
    def is_clogged(self) -> bool:
        """Whether nothing more is handed out for now."""
        return self.is_stalled or self.is_draining

    def unclogged(self) -> None:
        self.is_stalled = False
        self._stream()
        for session in self.connection.sessions:
            self._resume(session)

    def _stream(self) -> None:
        """Large messages go on: the peer has taken what was written of them."""
        self._will_stream = False
        if self._is_lost or self.is_stalled or not self.connection.streaming.sessions:
            return
        sessions = self.connection.streaming.go_on()
        self._write_now()
        for session in sessions:
            if not session.is_blocked:
                self._resume(session)

    def _resume(self, session: Session) -> None:
        for link in session.links.values():
            if isinstance(link.context, Outlet | NodeEnd):
                link.context.resume()

    @property
    def can_read(self) -> bool:
        return (
            self.connection.can_read
            and self.unfinished.unstored_bytes < MAX_UNSTORED_BYTES
            and not self.broker.engine.is_congested
        )

    def write_soon(self) -> None:
        if not self._will_write:
            self._will_write = True
            self.broker.write_soon(self._write_now)

    def _write_now(self) -> None:
        self._will_write = False
        if self._is_lost:
            return
        data = self.connection.data_to_send()
        if data:
            self._write(data)
        if self.connection.is_finished:
            self._hang_up()
        elif self.connection.streaming.sessions and not (self.is_stalled or self._will_stream):
            self._will_stream = True
            self._loop.call_soon(self._stream)

    def lost(self) -> None:
        """The transport is gone. Locks stay until they run out; sessions are released."""
        self._is_lost = True
        self.broker.holders.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for session in self.connection.sessions:
            for link in list(session.links.values()):
                self._forget(link)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self.broker.now_ms()
        steady = self.broker.steady_ms()
        deadline = self.connection.next_deadline(steady)
        due = min(deadline or NEVER, self._token_due_ms or NEVER, steady + 60_000)
        delay = min(due - steady, max(0, self.claims.next_expiry() - now))
        self._timer = self._loop.call_later(max(delay, 5) / 1000, self._tick)

    def _tick(self) -> None:
        now = self.broker.now_ms()
        for event in self.connection.tick(self.broker.steady_ms()):
            self._on_event(event)
        if self.claims.next_expiry() <= now:
            self._end_links("ExpiredToken: The token is expired.")
            self.claims.drop_expired(now)
        self._write_now()
        if self._token_due_ms is not None and self.claims.grants:
            self._token_due_ms = None
        elif self._token_due_ms is not None and self.broker.steady_ms() >= self._token_due_ms:
            self._end("amqp:connection:forced", "No token was brought to $cbs in time.")
        if not self.connection.is_finished:
            self._set_timer()

    def review(self) -> None:
        """A key was changed, or a policy is gone: what rested on it ends (RELIABILITY S10)."""
        self.broker.authority.review(self.claims)
        self._end_links("InvalidToken: What the token rested on is not there any more.")

    def _end_links(self, why: str) -> None:
        """A token ran out and was not renewed, or was taken back: the links that it allowed end."""
        now = self.now_ms()
        for session in self.connection.sessions:
            for link in list(session.links.values()):
                handler = link.context
                if isinstance(handler, Inlet | Outlet):
                    right, paths = Right.LISTEN, [handler.path]
                    if isinstance(handler, Inlet):
                        right = Right.SEND
                        paths += [] if handler.via is None else [handler.via]
                    if not all(self.claims.allows(path_of(path), right, now) for path in paths):
                        link.detach(self.error_of(UnauthorizedError(why)))
                        self._forget(link)
                        self.write_soon()

    # --- events -----------------------------------------------------------------------------------

    def _on_events(self, events: list[Event]) -> None:
        """Frames act in their order. One command, one commit and one answer serve many messages,
        where that makes no difference: `Rows` knows where."""
        rows = self._rows
        for event in events:
            if not rows.take(event):
                rows.run()
                self._on_event(event)
        rows.run()

    def _on_event(self, event: Event) -> None:
        match event:
            case MessageReceived(link):
                handler = link.context
                if handler is not None:
                    handler.on_messages([event])
                else:  # the link was ended while this was on its way
                    self.spoil(
                        event.state, NotAllowedError("A message came on a link that had ended.")
                    )
            case MessagePart(link):
                if isinstance(link.context, Inlet):
                    link.context.on_part(event)
            case MessageAborted(link):
                if isinstance(link.context, Inlet):
                    link.context.on_aborted()
            case MessageCut(link):
                if isinstance(link.context, NodeEnd):
                    link.context.on_cut(event)
            case MessageRefused(_, state, error):
                self.spoil(state, NotAllowedError(error.description or error.condition))
            case Dispositions():
                if not decide(event):
                    self.spoil(event.state, MessageLockLostError())
            case LinkFlow():
                if event.link.context is not None:
                    event.link.context.on_flow(event)
            case LinkAttached(link):
                self._count_churn()
                self._attach(link)
            case LinkDetached(link, error, _, by_peer):
                if not by_peer:  # told once for each connection: nobody fills the log with it
                    level = logging.DEBUG if self._has_complained else logging.WARNING
                    self._has_complained = True
                    log.log(level, "%s: the link %.80r was ended: %s", self.peer, link.name, error)
                self._forget(link)
            case SessionEnded(_, links):
                for link in links:
                    self._forget(link)
            case Closed(error):
                if error is not None:
                    log.info("%s: connection closed: %s", self.peer, error)
            case Opened(opened):
                agent = str((opened.properties or {}).get(USER_AGENT, ""))
                self.reads_all_types = not agent.startswith("azsdk-python")
                self._is_javascript = agent.startswith("azsdk-js")
                self.reads_tags_as_text = (opened.properties or {}).get(PRODUCT) == OLD_JAVA
                if self._choice is not None and not self._may_stay(opened.hostname):
                    return
                if not self.claims.grants:
                    self._token_due_ms = self.broker.steady_ms() + TOKEN_TIMEOUT_MS
                    self._set_timer()
                self._on_open()
            case SessionBegun():
                self._count_churn()
            case WindowOpened(session):
                self._resume(session)
            case Authenticated() | Heartbeat():
                pass

    def _count_churn(self) -> None:
        if self._churn.is_too_much(self.broker.steady_ms()) and not self.connection.is_over:
            text = f"More than {CHURN_PER_S} sessions and links were begun each second."
            log.warning("%s: connection closed: %s", self.peer, text)
            self._end("amqp:resource-limit-exceeded", text)

    def _forget(self, link: Link) -> None:
        handler, link.context = link.context, None
        if handler is not None:
            handler.on_gone()

    # --- which namespace --------------------------------------------------------------------------

    def _may_stay(self, host: str | None) -> bool:
        """The peer has named a host, and shown before what it can show without links."""
        assert self._choice is not None
        self._choice.ask_for(host)
        if not self._choose() and self._choice.has_login:
            self._end("amqp:not-allowed", self._choice.why_not)
            return False
        return True

    def _choose_by(self, request: Request) -> bytes | None:
        """A token is shown: whose it is, is meant. The reply, if that are several."""
        assert self._choice is not None
        accepting: list[Hosted] = []
        with suppress(Refused):  # a request without an audience is refused as ever
            self._choice.ask_for(audience_of(request))
        for each in self._choice.candidates:
            try:
                cbs.grant_of(request, self._gate_of(each.broker), self.now_ms())
            except EntityNotFoundError:
                pass  # the token is one of theirs
            except TandemError:
                continue
            accepting.append(each)
        self._choice.show(accepting)
        if self._choose() or not accepting:
            return None
        # A good token, and nothing is granted by it: the SDKs show why a link is refused, and of a
        # token that is refused nothing but that.
        return token_reply(request, 202, "Accepted")

    def _choose(self) -> bool:
        """Whether it is clear now which is meant."""
        choice = self._choice
        if choice is None or choice.only is None:
            return False
        self.broker.holders.discard(self)
        self.broker = choice.only.broker
        self.broker.holders.add(self)
        self._gate = self._gate_of(self.broker)
        self._rows = Rows(self.broker.namespace)
        for grant in choice.grants(choice.only):
            self.claims.add(grant)
        self._choice = None
        return True

    # --- attach -----------------------------------------------------------------------------------

    def _attach(self, link: Link) -> None:
        try:
            self._decide(link)
        except TandemError as error:
            link.refuse(self.error_of(error))

    def _decide(self, link: Link) -> None:
        attach = link.remote
        assert attach is not None
        group = group_of(link)
        if isinstance(attach.target, p.Coordinator):
            if self._choice is not None:
                raise NotAllowedError(self._choice.why_not)
            link.context = Transactor(self, link)
            link.accept()
            link.grant(100)
            return
        node = attach.source if link.is_sender else attach.target
        address = node.address if isinstance(node, p.Source | p.Target) else None
        if not address:
            raise NotAllowedError("The link names no address.")
        if address.rpartition("/")[2].lower() == CBS:
            self._nodes.add(link, Node(CBS, None))
            return
        if self._choice is not None:
            if not self._choice.is_known:
                raise UnauthorizedError(f"A token is required for '{address}'.")
            raise NotAllowedError(self._choice.why_not)
        where = split(address)
        if where.is_management:
            # Before the entity is looked for: whoever has no right on it learns nothing (S9).
            if not self.claims.allows_some(f"{where.path}/{MANAGEMENT}", self.now_ms()):
                raise UnauthorizedError(f"A token is required for '{address}'.")
            self._check_exists(where.path, address)
            self._nodes.add(link, Node(MANAGEMENT, where.path))
        elif link.is_sender:
            if group is not None:
                # The right first: whoever has none learns nothing, also not what the root is.
                require_right(self.claims, where.path, Right.LISTEN, self.now_ms())
                group.check_receiver(where)
            outlet = link.context = Outlet(self, link, where.path)
            outlet.open()
        else:
            self._attach_inlet(link, where.path)
            if group is not None:
                group.take(where)

    def _attach_inlet(self, link: Link, path: str) -> None:
        queue, via = self._sendable(path), None
        assert link.remote is not None
        destination = (link.remote.properties or {}).get(DESTINATION)
        if destination is not None:
            # Send-via: what is sent goes to another entity, by way of this one.
            if not isinstance(destination, str):
                raise NotAllowedError(f"'{DESTINATION}' must be a text.")
            via, path = path, split(destination).path
            queue = self._sendable(path)
        inlet = link.context = Inlet(self, link, path, via)
        size = max(queue.max_message_bytes, 256 * KIB)
        batch = min(size, MAX_BATCH_BYTES)
        # The SDK for JavaScript fills its batches by the limit of messages, and sends single
        # messages without a look at it.
        announced = batch if self._is_javascript else size
        if link.accept(max_message_size=announced, properties={BATCH_SIZE: batch}):
            # The SDK for Python fills its batches by a count that leaves the envelope out. Each
            # message is held against the limit again, by core.
            link.max_message_size = size + BATCH_ENVELOPE
            link.part_bytes = PIECE_BYTES
            inlet.grant()

    def _sendable(self, path: str) -> Any:
        """The queue or topic at a path, if the peer may send to it."""
        require_right(self.claims, path, Right.SEND, self.broker.now_ms())
        queue = self._check_exists(path, path)
        if queue.kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
            raise NotAllowedError(f"Nothing can be sent to '{queue.path}'.")
        return queue

    def _check_exists(self, path: str, shown: str) -> Any:
        if path not in self.broker.namespace:
            raise EntityNotFoundError(shown)
        return self.broker.namespace.find(path)

    # --- requests ---------------------------------------------------------------------------------

    async def answer(
        self, node: Node, payload: bytes, state: p.DeliveryState | None
    ) -> tuple[bytes | Stream | None, str | None]:
        """The reply to a request, and where it goes. None: it cannot even be answered. `state` is
        that of its transfer: a transaction, if the request belongs to one."""
        try:
            request = parse_request(payload)
        except TandemError as error:
            self.error_of(error)
            self.spoil(state, error)
            return None, None
        if node.path is None:
            if self._choice is not None and (unclear := self._choose_by(request)):
                return unclear, request.reply_to
            put = cbs.answer(request, self._gate, self.claims, self.now_ms())
            reply: bytes | Stream = put.reply
            if put.refusal is not None:
                self.refused(put.refusal)
            self._end_links("InvalidToken: The token was replaced by one that allows less.")
            self._set_timer()
        else:
            reply = await management.answer(
                request, node.path, self.claims, Asking(self), state=state
            )
        return reply, request.reply_to

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace

    def transaction_of(self, state: p.DeliveryState | None) -> int | None:
        """The transaction that the state of a transfer or a disposition names."""
        if isinstance(state, p.TransactionalState):
            return self.transactions.number_of(state.txn_id)
        return None

    def spoil(self, state: p.DeliveryState | None, refusal: TandemError) -> None:
        """Something was refused before core was asked: the transaction that its state names, if
        any, can only be rolled back."""
        with suppress(TandemError):
            if (number := self.transaction_of(state)) is not None:
                self.namespace.spoil(number, refusal)

    def sender_of(self, path: str, claims: Claims) -> str:
        """Who sends, for the rates: whose key or token it is; without any, the machine."""
        return claims.who(path_of(path)) or self.peer.rpartition(":")[0]

    def call_later(self, delay_ms: Millis, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call)

    def random_bits(self, count: int) -> int:
        return self.broker.clock.random_bits(count)

    def now_ms(self) -> Millis:
        return self.broker.now_ms()

    def refused(self, condition: str) -> None:
        self.broker.refusals[condition] += 1

    # --- errors -----------------------------------------------------------------------------------

    def error_of(self, error: TandemError, trace: str | None = None) -> p.Error:
        return told(self.broker, self.peer, error, trace)

    def _tracked(self, error: p.Error) -> p.Error:
        """The same for what the protocol itself refuses: a message too large, a broken frame."""
        return tracked(self.broker, self.peer, error)
