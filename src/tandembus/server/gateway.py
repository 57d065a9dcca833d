"""One AMQP connection of one peer: events in, commands out, answers back as frames.

What a link is for is decided in `attaching`; what it then does is `links` and `nodes`. Bytes come
in by `receive`, and go out by the `write` that the listener gave; everything that piles up in one
turn of the loop is written at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
from tandembus.core import commands as c
from tandembus.core.access import Claims, Right, path_of
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
    CHURN_PER_S,
    MAX_BATCH_BYTES,
    MAX_UNSTORED_BYTES,
    READ_BYTES,
    TOKEN_TIMEOUT_MS,
)
from tandembus.model import NEVER, Millis, Symbol
from tandembus.server import cbs, management
from tandembus.server.arrival import Unfinished
from tandembus.server.asking import Asking
from tandembus.server.attaching import open_link
from tandembus.server.broker import Broker
from tandembus.server.cbs import TokenGate, audience_of
from tandembus.server.links import Inlet
from tandembus.server.namespaces import Choice, Hosted
from tandembus.server.nodes import Node, NodeEnd, NodePair, NodePairs
from tandembus.server.outlet import Outlet
from tandembus.server.refusals import told, tracked
from tandembus.server.requests import Request, parse_request, token_reply
from tandembus.server.rows import Rows, decide
from tandembus.server.stored import Stream
from tandembus.server.transactions import OpenTransactions
from tandembus.server.turns import Churn, Share
from tandembus.store.api import Buffer

log = logging.getLogger("tandembus.server")

CONTAINER: Final = "tandem"
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
        self.choice = choice
        self.turns = broker.turns
        self.share = Share(perf_counter())
        self.claims = broker.new_claims()
        self.peer = peer
        self.reads_all_types = False
        """Whether the peer reads every AMQP type; azure-servicebus for Python does not."""
        self.is_javascript = self.reads_tags_as_text = False
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
        self._has_complained = self._is_lost = self._is_cut = False
        self._timer: asyncio.TimerHandle | None = None
        self.nodes = NodePairs(self)
        self.connection = Connection(
            Role.SERVER,
            container_id=CONTAINER,
            max_message_size=MAX_BATCH_BYTES,
            use_sasl=not broker.is_open,
            check_plain=None if broker.is_open else self._log_in,
        )
        self.connection.tracked = self._tracked
        self.connection.lost = self._on_event
        self._gate = self._gate_of(broker)
        self._rows = Rows(broker.namespace)
        self._holds = 0
        """Why nothing is looked at that came behind: requests whose tasks have not begun, detaches
        that wait for the answers to what came before them."""
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
        if self.choice is not None and self.choice.log_in(name, key):
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
        """Whether nothing is unsettled on either side, and nothing waits to be looked at."""
        sessions = self.connection.sessions
        return not self._holds and not any(
            link.unsettled for each in sessions for link in each.links.values()
        )

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
        if self._holds:
            self._on_events(connection.receive_data(data, 0))
            return False
        began = perf_counter()
        most, turn_s = self.turns.pace(began)
        until = began + turn_s
        engine = self.broker.engine
        engine.begin_turn()
        self._will_write = True
        try:
            self._on_events(connection.receive_data(data, most))
            while connection.has_more and not connection.is_paused and perf_counter() < until:
                self._on_events(connection.receive_data(b"", most))
        finally:
            engine.end_turn()
            self._write_now()
        return connection.has_more and not self._holds

    def hold(self) -> None:
        """Nothing that came behind is looked at before as many calls of `release`."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if not self._holds and (self.connection.has_more or self._is_cut):
            self.turns.add(self)

    def go_on(self) -> None:
        """With what was held, or had not been looked at when the transport went."""
        if self._is_lost:
            return
        if self.receive(b""):
            self.turns.add(self)
        elif self._is_cut:
            self.lost()

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
        pairs: dict[NodePair, None] = {}
        for link in session.links.values():
            if isinstance(link.context, Outlet):
                link.context.resume()
            elif isinstance(link.context, NodeEnd):
                pairs[link.context.pair] = None
        for pair in pairs:
            pair.go_on()

    @property
    def can_read(self) -> bool:
        return (
            self.connection.can_read
            and self.unfinished.unstored_bytes < MAX_UNSTORED_BYTES
            and not (self._holds and self.connection.rest_bytes > READ_BYTES)
            and not self.broker.engine.is_congested
        )

    def write_soon(self) -> None:
        if not self._will_write:
            self._will_write = True
            self.broker.write_soon(self._write_now)

    def _write_now(self) -> None:
        self._will_write = False
        if self._is_cut:
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
        """The transport is gone. Locks stay until they run out; sessions are released. What came
        before its end is still looked at."""
        self._is_cut = True
        if self._holds or self.connection.has_more:
            if not self._holds:
                self.turns.add(self)
            return
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
        self._rows.act(events, self._on_event)

    def _on_event(self, event: Event) -> None:
        match event:
            case MessageReceived(link):
                handler = link.context
                if handler is not None:
                    handler.on_messages([event])
                elif event.state is not None:  # the link was ended while this was on its way
                    self._on_event(MessageRefused(event.state))
            case Dispositions():
                if not decide(event):
                    self.spoil(event.state, MessageLockLostError())
            case MessagePart(link):
                if isinstance(link.context, Inlet):
                    link.context.on_part(event)
            case MessageAborted(link):
                if isinstance(link.context, Inlet):
                    link.context.on_aborted()
            case MessageCut(link):
                if isinstance(link.context, NodeEnd):
                    link.context.on_cut(event)
            case MessageRefused(state, error):
                self.spoil(state, NotAllowedError(error.description or error.condition))
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
                self.is_javascript = agent.startswith("azsdk-js")
                self.reads_tags_as_text = (opened.properties or {}).get(PRODUCT) == OLD_JAVA
                if self.choice is not None and not self._may_stay(opened.hostname):
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
        if link.is_ending:
            # The engine answers in order, so this is answered behind all that came before it.
            self.hold()
            self.broker.submit(c.Detach(0), self.claims, partial(self._end_link, link))

    def _end_link(self, link: Link, reply: Any) -> None:
        link.end()
        self.write_soon()
        self.release()

    # --- which namespace --------------------------------------------------------------------------

    def _may_stay(self, host: str | None) -> bool:
        """The peer has named a host, and shown before what it can show without links."""
        assert self.choice is not None
        self.choice.ask_for(host)
        if not self._choose() and self.choice.has_login:
            self._end("amqp:not-allowed", self.choice.why_not)
            return False
        return True

    def _choose_by(self, request: Request) -> bytes | None:
        """A token is shown: whose it is, is meant. The reply, if that are several."""
        assert self.choice is not None
        accepting: list[Hosted] = []
        with suppress(Refused):  # a request without an audience is refused as ever
            self.choice.ask_for(audience_of(request))
        for each in self.choice.candidates:
            try:
                cbs.grant_of(request, self._gate_of(each.broker), self.now_ms())
            except EntityNotFoundError:
                pass  # the token is one of theirs
            except TandemError:
                continue
            accepting.append(each)
        self.choice.show(accepting)
        if self._choose() or not accepting:
            return None
        # A good token, and nothing is granted by it: the SDKs show why a link is refused, and of a
        # token that is refused nothing but that.
        return token_reply(request, 202, "Accepted")

    def _choose(self) -> bool:
        """Whether it is clear now which is meant."""
        choice = self.choice
        if choice is None or choice.only is None:
            return False
        self.broker.holders.discard(self)
        self.broker = choice.only.broker
        self.broker.holders.add(self)
        self._gate = self._gate_of(self.broker)
        self._rows.of(self.broker.namespace)
        for grant in choice.grants(choice.only):
            self.claims.add(grant)
        self.choice = None
        return True

    # --- attach -----------------------------------------------------------------------------------

    def _attach(self, link: Link) -> None:
        link.ends_later = True
        try:
            open_link(self, link)
        except TandemError as error:
            link.refuse(self.error_of(error))

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
            if self.choice is not None and (unclear := self._choose_by(request)):
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
