"""A link that receives and settles, without I/O.

The rule: credit is what is asked for, so that nothing is locked that nobody waits for; a prefetch
window is only there if it was asked for. Settling is answered by the broker, message by message,
however few frames it took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery, MessageReceived
from tandembus.amqp.types import UInt
from tandembus.client import operations
from tandembus.client.failures import failure, refusal, unknown
from tandembus.client.messages import ReceivedMessage
from tandembus.client.operations import Settlement
from tandembus.client.pending import Pending
from tandembus.errors import (
    ArgumentError,
    ConnectionLostError,
    NotAllowedError,
    PartlySettledError,
    TandemError,
)
from tandembus.limits import MAX_PREFETCH
from tandembus.model import Millis, Symbol, Value

if TYPE_CHECKING:
    from tandembus.client.conversation import Conversation

DRAIN_MS: Final = 5_000
"""A broker that does not answer a drain for so long does not know it; it is lived without."""
SESSION_WAIT_MS: Final = 60_000
_TICKS_AT_1970: Final = 621_355_968_000_000_000
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")


class ReceiveMode(Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


class NextSession(Enum):
    """Which session, when the broker shall choose."""

    AVAILABLE = "the next session that has messages and no holder"


class ReceiverLink:
    """Use `open`."""

    def __init__(
        self,
        conversation: Conversation,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        session: str | NextSession | None = None,
        session_wait_ms: Millis = SESSION_WAIT_MS,
        prefetch: int = 0,
    ) -> None:
        if not 0 <= prefetch <= MAX_PREFETCH:
            raise ArgumentError(f"A prefetch is between 0 and {MAX_PREFETCH}.")
        self.path = path
        self.mode = mode
        self.session_id: str | None = None
        self.session_locked_until_ms: Millis | None = None
        self.gone: TandemError | None = None
        self._conversation = conversation
        self._asked_session = session
        self._session_wait_ms = session_wait_ms
        self._window = prefetch
        self._opened: Pending[None] = Pending()
        self._buffer: deque[ReceivedMessage] = deque()
        self._arrival: Pending[bool] | None = None
        self._wanted = 0
        self._drained: Pending[bool] | None = None
        self._settling: dict[int, _Settling] = {}

    async def open(self) -> ReceiverLink:
        conversation = self._conversation
        await conversation.authorize(self.path)
        name = conversation.new_name(self.path)
        properties: dict[object, object] = {
            Symbol("com.microsoft:receiver-name"): conversation.identifier
        }
        filters = None
        timeout_ms = conversation.timeout_ms
        if self._asked_session is not None:
            chosen = self._asked_session
            filters = {_SESSION_FILTER: None if isinstance(chosen, NextSession) else chosen}
            properties[Symbol("com.microsoft:timeout")] = UInt(self._session_wait_ms)
            timeout_ms += self._session_wait_ms
        is_locking = self.mode is ReceiveMode.PEEK_LOCK
        self._link = conversation.session.attach(
            name,
            is_sender=False,
            source=p.Source(self.path, filter=filters),
            target=p.Target(name),
            snd_settle_mode=p.UNSETTLED if is_locking else p.SETTLED,
            rcv_settle_mode=p.SECOND if is_locking else p.FIRST,
            properties=properties,
        )
        conversation.adopt(self._link, self)
        what = f"Opening a receiver of {self.path}"
        try:
            await conversation.within(self._opened, timeout_ms, what)
        except BaseException:
            self._link.detach()  # an attach that nobody waits for must not take a session
            raise
        self._read_session()
        self._replenish()
        return self

    def _read_session(self) -> None:
        remote = self._link.remote
        assert remote is not None
        if self._asked_session is None or remote.source is None:
            return
        session_id = (remote.source.filter or {}).get(_SESSION_FILTER)
        self.session_id = None if session_id is None else str(session_id)
        ticks = (remote.properties or {}).get(_LOCKED_UNTIL)
        if isinstance(ticks, int):
            self.session_locked_until_ms = (ticks - _TICKS_AT_1970) // 10_000

    @property
    def name(self) -> str:
        """What `$management` knows this link by."""
        return self._link.name

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self, most: int, wait_ms: Millis) -> list[ReceivedMessage]:
        """Up to `most` messages: those that are there, or the first ones that come within the
        time. Nothing is under way afterwards, unless there is a prefetch."""
        if self._arrival is not None or self._drained is not None:
            raise NotAllowedError("Another call receives on this link already.")
        self._check()
        most = min(most, MAX_PREFETCH)
        try:
            if len(self._buffer) < most and not self._window:
                self._link.grant(most - len(self._buffer))
            self._wanted = most
            if not self._buffer:
                self._arrival = Pending()
                await self._conversation.until(self._arrival, wait_ms)
                self._arrival = None
            if len(self._buffer) < most and not self._window:
                await self._drain()
        finally:
            self._arrival = self._drained = None
        taken = self._take(most)
        if not taken:
            self._check()
        self._replenish()
        return taken

    def _take(self, most: int) -> list[ReceivedMessage]:
        buffer = self._buffer
        if len(buffer) <= most:
            taken = list(buffer)
            buffer.clear()
            return taken
        return [buffer.popleft() for _ in range(most)]

    async def _drain(self) -> None:
        """Take the credit back; what is on its way comes before the answer."""
        if self._link.credit > 0 and self.gone is None:
            self._drained = Pending()
            self._link.grant(self._link.credit, drain=True)
            await self._conversation.until(self._drained, DRAIN_MS)

    def _replenish(self) -> None:
        if self._window and self.gone is None:
            if self._link.credit + len(self._buffer) <= self._window // 2:
                self._link.grant(self._window - len(self._buffer))

    def _check(self) -> None:
        if self.gone is not None and not self._buffer:
            raise self.gone

    # --- settling ---------------------------------------------------------------------------------

    async def settle(
        self,
        messages: Sequence[ReceivedMessage],
        how: Settlement,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        """Give them all the same outcome, with as few frames as their ids allow. Raises the error
        of a single one, or PartlySettledError; those that are not named there are settled."""
        here: list[ReceivedMessage] = []
        elsewhere: list[ReceivedMessage] = []
        for message in messages:
            if len(message.tag) != 16:
                raise NotAllowedError("The message is not locked; there is nothing to settle.")
            is_here = message.link is self and self.gone is None and message.delivery_id >= 0
            (here if is_here else elsewhere).append(message)
        failures: list[tuple[ReceivedMessage, TandemError]] = []
        if here:
            outcome = _outcome(how, reason, description, properties)
            settling = _Settling(here)
            self._begin(settling, outcome)
            timeout_ms = self._conversation.timeout_ms
            what = f"Settling messages of {self.path}"
            await self._conversation.within(settling.done, timeout_ms, what)
            failures += settling.failures
        if elsewhere and how is not Settlement.RELEASE:
            tokens = [message.lock_token for message in elsewhere]
            try:
                await operations.update_disposition(
                    self._conversation, self.path, tokens, how,
                    reason=reason, description=description, properties=properties,
                    session_id=self.session_id,
                )  # fmt: skip
            except TandemError as error:
                failures += [(message, error) for message in elsewhere]
        if failures:
            raise failures[0][1] if len(messages) == 1 else PartlySettledError(failures)

    def _begin(self, settling: _Settling, outcome: p.Outcome) -> None:
        ids = []
        for message in settling.messages:
            if message.delivery_id in self._settling or message.is_settled:
                raise NotAllowedError("The message is being settled, or is settled already.")
            ids.append(message.delivery_id)
        ids.sort()
        for message in settling.messages:
            message.is_settled = True
        self._settling.update(dict.fromkeys(ids, settling))
        self._link.settle(ids, outcome, settled=False)

    async def renew(self, messages: Sequence[ReceivedMessage]) -> list[Millis]:
        """Until when each is locked now."""
        tokens = [message.lock_token for message in messages]
        return await operations.renew_locks(self._conversation, self.path, tokens, self.name)

    async def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        return await operations.receive_deferred(
            self._conversation,
            self.path,
            numbers,
            is_locking=self.mode is ReceiveMode.PEEK_LOCK,
            session_id=self.session_id,
            link_name=self.name,
        )

    # --- the session ------------------------------------------------------------------------------

    def _session(self) -> tuple[Conversation, str, str, str]:
        if self.session_id is None:
            raise NotAllowedError("The receiver has no session.")
        return self._conversation, self.path, self.session_id, self.name

    async def renew_session(self) -> Millis:
        self.session_locked_until_ms = await operations.renew_session(*self._session())
        return self.session_locked_until_ms

    async def get_session_state(self) -> bytes | None:
        return await operations.get_session_state(*self._session())

    async def set_session_state(self, state: bytes | None) -> None:
        conversation, path, session_id, name = self._session()
        await operations.set_session_state(conversation, path, session_id, state, name)

    async def dead_letter_session(self, *, reason: str | None, description: str | None) -> int:
        conversation, path, session_id, name = self._session()
        return await operations.dead_letter_session(
            conversation,
            path,
            session_id,
            reason=reason,
            description=description,
            link_name=name,
        )

    async def close(self) -> None:
        """Give back what nobody has taken, and detach."""
        if self.gone is not None:
            return
        if not self._window and self._drained is None:
            try:
                await self._drain()
            finally:
                self._drained = None
        if self.mode is ReceiveMode.PEEK_LOCK and self._buffer:
            self._link.settle([each.delivery_id for each in self._buffer], p.RELEASED)
        self._buffer.clear()
        if self.gone is None:
            self._link.detach()
            self._end(ConnectionLostError("The receiver is closed."))

    # --- what the conversation calls --------------------------------------------------------------

    def on_attached(self) -> None:
        self._opened.resolve(None)

    def on_flow(self) -> None:
        if self._drained is not None and not self._link.is_draining:
            self._drained.resolve(True)

    def on_message(self, event: MessageReceived) -> None:
        buffer = self._buffer
        buffer.append(ReceivedMessage(event.payload, event.delivery_id, event.tag, self))
        # Whoever waits goes on when all that came with it is in the buffer, too.
        if self._arrival is not None:
            self._conversation.soon(self._arrival)
        elif self._drained is not None and len(buffer) >= self._wanted:
            self._conversation.soon(self._drained)

    def on_dispositions(
        self, deliveries: list[Delivery], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        error = None
        if isinstance(state, p.Rejected) and state.error is not None:
            error = refusal(str(state.error.condition), state.error.description or "Refused.")
        settling_by_id = self._settling
        for delivery in deliveries:
            settling = settling_by_id.pop(delivery.id, None)
            if settling is not None:
                settling.on_answer(delivery.id, error)

    def on_gone(self, error: p.Error | None) -> None:
        self.fail(failure(error, f"The link to {self.path}"))

    def fail(self, cause: TandemError) -> None:
        if self.gone is None:
            self._end(cause)

    def _end(self, cause: TandemError) -> None:
        self.gone = cause
        self._conversation.forget(self)
        self._opened.fail(cause)
        for pending in (self._arrival, self._drained):
            if pending is not None:
                pending.resolve(False)
        settling, self._settling = self._settling, {}
        for delivery_id, each in settling.items():
            each.on_answer(delivery_id, unknown(cause))


class _Settling:
    """One call that waits until all of its messages are answered."""

    __slots__ = ("_by_id", "done", "failures", "left", "messages")

    def __init__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.messages = messages
        self.left = len(messages)
        self.failures: list[tuple[ReceivedMessage, TandemError]] = []
        self.done: Pending[None] = Pending()
        self._by_id: dict[int, ReceivedMessage] = {}

    def on_answer(self, delivery_id: int, error: TandemError | None) -> None:
        if error is not None:
            if not self._by_id:
                self._by_id = {each.delivery_id: each for each in self.messages}
            self.failures.append((self._by_id[delivery_id], error))
        self.left -= 1
        if not self.left:
            self.done.resolve(None)


def _outcome(
    how: Settlement,
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Value] | None,
) -> p.Outcome:
    """As the SDKs write it (WIRE.md §6.1)."""
    edits: dict[object, object] = {Symbol(k): v for k, v in (properties or {}).items()}
    match how:
        case Settlement.COMPLETE:
            return p.ACCEPTED
        case Settlement.RELEASE:
            return p.RELEASED
        case Settlement.ABANDON:
            return p.Modified(True, False, edits or None)
        case Settlement.DEFER:
            return p.Modified(True, True, edits or None)
        case Settlement.DEAD_LETTER:
            edits[Symbol("DeadLetterReason")] = reason
            edits[Symbol("DeadLetterErrorDescription")] = description
            return p.Rejected(p.Error("com.microsoft:dead-letter", description, edits))
