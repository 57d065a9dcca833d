"""The client for plain code: calls that return when it is done.

    with Client(connection_string) as client:
        with client.sender("orders") as sender:
            sender.send(b"one")
            sender.send_all(bodies).check()
        with client.receiver("orders") as receiver:
            receiver.complete(receiver.receive(100, wait_s=5))

Here live only the calls; the socket is `line`, and what is said on the wire is `conversation`, once
for this and for `aio`. Any thread may call anything.

The rule for a broken connection: whoever waits gets ConnectionLostError, senders and receivers are
dead, and the next call of the client itself connects again. Nothing is sent twice by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from tandembus.client import operations, positions
from tandembus.client.addresses import ConnectionString
from tandembus.client.entities import Entities
from tandembus.client.line import Line
from tandembus.client.messages import ReceivedMessage, Sendable, Unsent
from tandembus.client.operations import Rule, SessionCounts, Settlement
from tandembus.client.pending import Pending
from tandembus.client.positions import Page, Stretch, Survey
from tandembus.client.receiving import NextSession, ReceiveMode, ReceiverLink
from tandembus.client.sending import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, SenderLink, SendReport
from tandembus.clock import Clock, SystemClock
from tandembus.model import NEVER, Millis, Value


class Client:
    """A namespace. Connects at the first call that needs it, and again after a loss.

    `timeout_s` bounds every wait but those that have a time of their own. `ca_file` is a PEM file
    to trust instead of the system's certificates.
    """

    def __init__(
        self,
        connection_string: str | ConnectionString,
        *,
        timeout_s: float = 60.0,
        ca_file: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(connection_string, str):
            connection_string = ConnectionString.parse(connection_string)
        self.target = connection_string
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._clock = clock or SystemClock()
        self._line: Line | None = None
        self._lock = threading.Lock()

    def _connected(self) -> Line:
        with self._lock:
            if self._line is not None and self._line.is_over:
                self._line.close()
                self._line = None
            if self._line is None:
                self._line = Line(self.target, self._clock, self._timeout_s, self._ca_file)
            return self._line

    def connect(self) -> Self:
        """Now, instead of at the first use."""
        self._connected()
        return self

    def close(self) -> None:
        """Clean: the broker is told, and answers. Senders wait for their outcomes before."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- links ------------------------------------------------------------------------------------

    def sender(
        self,
        path: str | None = None,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
    ) -> Sender:
        """To a queue or a topic. At most so much waits for its outcome; then sending waits."""
        line = self._connected()
        link = SenderLink(line.heart, self.target.entity(path), max_in_flight, max_in_flight_bytes)
        return Sender(line, line.run(link.open()))

    def receiver(
        self,
        path: str | None = None,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        session: str | NextSession | None = None,
        session_wait_s: float = 60.0,
        prefetch: int = 0,
    ) -> Receiver:
        """From a queue, a subscription or a dead-letter queue."""
        line = self._connected()
        link = ReceiverLink(
            line.heart,
            self.target.entity(path),
            mode=mode,
            session=session,
            session_wait_ms=int(session_wait_s * 1000),
            prefetch=prefetch,
        )
        return Receiver(line, line.run(link.open()))

    # --- without a link ---------------------------------------------------------------------------

    def browse(
        self,
        path: str | None = None,
        *,
        from_sequence_number: int = 0,
        count: int = 100,
        session_id: str | None = None,
    ) -> list[ReceivedMessage]:
        """One page; the broker may give fewer than `count`. Empty: there is no more."""
        line = self._connected()
        entity = self.target.entity(path)
        return line.run(
            operations.browse(line.heart, entity, from_sequence_number, count, session_id)
        )

    def browse_all(
        self,
        path: str | None = None,
        *,
        from_sequence_number: int = 0,
        session_id: str | None = None,
    ) -> Iterator[ReceivedMessage]:
        while page := self.browse(
            path, from_sequence_number=from_sequence_number, session_id=session_id
        ):
            yield from page
            from_sequence_number = page[-1].sequence_number + 1

    def schedule(
        self, messages: Sequence[Unsent], at_ms: Millis, path: str | None = None
    ) -> list[int]:
        """Their sequence numbers."""
        line = self._connected()
        entity = self.target.entity(path)
        return line.run(operations.schedule(line.heart, entity, messages, at_ms))

    def cancel_scheduled(self, numbers: Sequence[int], path: str | None = None) -> None:
        line = self._connected()
        entity = self.target.entity(path)
        line.run(operations.cancel_scheduled(line.heart, entity, numbers))

    def settle(
        self,
        tokens: Sequence[UUID],
        how: Settlement,
        path: str | None = None,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
        delay_ms: Millis = 0,
    ) -> None:
        """By lock token, whatever has become of the receiver that it came from, and of whatever
        client that was. `delay_ms`: what is abandoned comes back so much later (Tandem only)."""
        if delay_ms:
            properties = operations.with_delay(properties, delay_ms)
        line = self._connected()
        line.run(
            operations.update_disposition(
                line.heart,
                self.target.entity(path),
                tokens,
                how,
                reason=reason,
                description=description,
                properties=properties,
            )
        )

    def renew_locks(self, tokens: Sequence[UUID], path: str | None = None) -> list[Millis]:
        line = self._connected()
        return line.run(operations.renew_locks(line.heart, self.target.entity(path), tokens))

    def delete_messages(
        self, count: int, path: str | None = None, *, before_ms: Millis | None = None
    ) -> int:
        """Delete waiting messages, the oldest first; how many were there."""
        line = self._connected()
        before_ms = self._clock.now_ms() if before_ms is None else before_ms
        entity = self.target.entity(path)
        return line.run(operations.delete_messages(line.heart, entity, count, before_ms))

    def change_priority(self, sequence_number: int, level: int, path: str | None = None) -> None:
        """Give a message that waits in a priority queue another level (0 is the lowest), at once.
        Tandem's own; needs Manage. Raises MessageNotFoundError if it does not wait."""
        line = self._connected()
        entity = self.target.entity(path)
        line.run(operations.change_priority(line.heart, entity, sequence_number, level))

    def list_sessions(self, path: str | None = None) -> list[str]:
        line = self._connected()
        return line.run(operations.list_sessions(line.heart, self.target.entity(path)))

    def search(
        self,
        path: str | None = None,
        *,
        filter: str | None = None,
        states: Sequence[str] = (),
        from_sequence_number: int = 0,
        session_id: str | None = None,
    ) -> Iterator[ReceivedMessage]:
        """Browse by a SQL filter, by state (`active`, `deferred`, `scheduled`, `delayed`), or
        both. Tandem only."""
        following: int | None = from_sequence_number
        while following is not None:
            line = self._connected()
            page, following = line.run(
                operations.search(
                    line.heart,
                    self.target.entity(path),
                    following,
                    operations.PAGE,
                    filter=filter,
                    states=states,
                    session_id=session_id,
                )
            )
            yield from page

    def discard(self, numbers: Sequence[int], path: str | None = None) -> None:
        """Delete messages that nobody has locked, in whatever state. Tandem only."""
        line = self._connected()
        line.run(operations.discard(line.heart, self.target.entity(path), numbers))

    def reactivate(self, numbers: Sequence[int], path: str | None = None) -> None:
        """Deferred or delayed messages wait again, each in its place. Tandem only."""
        line = self._connected()
        line.run(operations.reactivate(line.heart, self.target.entity(path), numbers))

    def dead_letter_session(
        self,
        session_id: str,
        path: str | None = None,
        *,
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        """Every message of a session that nobody holds; how many there were. Tandem only."""
        line = self._connected()
        entity = self.target.entity(path)
        return line.run(
            operations.dead_letter_session(
                line.heart, entity, session_id, reason=reason, description=description
            )
        )

    def count_sessions(self, path: str | None = None) -> SessionCounts:
        """Tandem only."""
        line = self._connected()
        return line.run(operations.count_sessions(line.heart, self.target.entity(path)))

    def add_rule(self, path: str, rule: Rule) -> None:
        line = self._connected()
        line.run(operations.add_rule(line.heart, path, rule))

    def remove_rule(self, path: str, name: str) -> None:
        line = self._connected()
        line.run(operations.remove_rule(line.heart, path, name))

    def list_rules(self, path: str) -> list[Rule]:
        line = self._connected()
        return line.run(operations.list_rules(line.heart, path))

    # --- by position: Tandem's own (docs/wire-extensions.md) --------------------------------------

    def survey(self, path: str | None = None, *, since_ms: Millis | None = None) -> Survey:
        """Where the messages of an entity lie, and how far its readers have come."""
        line = self._connected()
        return line.run(positions.survey(line.heart, self.target.entity(path), since_ms))

    def advance(
        self,
        path: str,
        partition: int,
        start: int,
        end: int,
        *,
        max_count: int = NEVER,
        max_bytes: int = NEVER,
    ) -> Stretch:
        """How far one gets with so much; see `positions.advance`."""
        line = self._connected()
        return line.run(
            positions.advance(line.heart, path, partition, start, end, max_count, max_bytes)
        )

    def split(self, path: str, partition: int, start: int, end: int, parts: int) -> list[Stretch]:
        """The range in about so many stretches of about the same size."""
        line = self._connected()
        return line.run(positions.split(line.heart, path, partition, start, end, parts))

    def scan(
        self,
        path: str,
        partition: int,
        start: int,
        end: int,
        *,
        fields: str = "all",
        sql_filter: str | None = None,
    ) -> Iterator[Page]:
        """The pages of a range; the next one is on its way while one is looked at. `fields`: all,
        or properties without bodies, or none."""
        line = self._connected()

        def ask(start: int) -> Pending[Page]:
            return line.call(
                lambda: line.heart.run(
                    positions.scan(
                        line.heart,
                        path,
                        partition,
                        start,
                        end,
                        fields=fields,
                        sql_filter=sql_filter,
                    )
                )
            )

        asked = ask(start) if start < end else None
        while asked is not None:
            page = line.wait(asked)
            asked = ask(page.following) if start < page.following < end else None
            start = page.following
            yield page

    def move_cursor(
        self, path: str, name: str, partition: int, position: int, *, removes: bool = False
    ) -> int:
        """Say how far the reader of that name has come; how far that is then."""
        line = self._connected()
        return line.run(
            positions.move_cursor(line.heart, path, name, partition, position, removes=removes)
        )

    def open_tap(self, path: str, name: str, retention_ms: Millis) -> None:
        """Hold back for that reader what it has not passed. Needs Manage."""
        line = self._connected()
        line.run(positions.open_tap(line.heart, path, name, retention_ms))

    def drop_cursor(self, path: str, name: str) -> None:
        line = self._connected()
        line.run(positions.drop_cursor(line.heart, path, name))

    @property
    def entities(self) -> Entities:
        """Queues, topics and subscriptions themselves. Needs a key with Manage."""
        return Entities(self.target, self._clock, timeout_s=self._timeout_s, ca_file=self._ca_file)


class _Held:
    """What is closed at the end of a `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(Exception):
                self.close()


class Posted:
    """A message that is on its way."""

    __slots__ = ("_line", "_pending", "_sender")

    def __init__(self, line: Line, pending: Pending[None], sender: Sender) -> None:
        self._line = line
        self._pending = pending
        self._sender = sender

    @property
    def is_done(self) -> bool:
        return self._pending.is_done

    def wait(self) -> None:
        """Until its outcome is known. Raises why it was refused, or ConnectionLostError."""
        self._sender._heard(self._pending)
        self._line.wait(self._pending)


class Sender(_Held):
    """Use `Client.sender`."""

    def __init__(self, line: Line, link: SenderLink) -> None:
        self._line = line
        self._link = link
        self._posted: set[Pending[None]] = set()
        """Failed, or not decided yet, and nobody has asked for the outcome."""

    def send(self, message: Sendable) -> None:
        """Returns when the broker has it on disk. Raises why not, or ConnectionLostError: then it
        may be there, or not."""
        self._line.run(self._link.send(message))

    def post(self, message: Sendable) -> Posted:
        """Send without waiting for the outcome; waits only when too much is in flight."""
        pending = self._line.call(partial(self._link.start_now, message))
        if pending is None:
            pending = self._line.run(self._link.start(message))
        if not pending.is_done or pending.error is not None:
            self._posted.add(pending)
            pending.on_done(partial(self._decided, pending))
        return Posted(self._line, pending, self)

    def _decided(self, pending: Pending[None]) -> None:
        if pending.error is None:
            self._posted.discard(pending)

    def _heard(self, pending: Pending[None]) -> None:
        self._posted.discard(pending)

    def flush(self) -> None:
        """Wait for all outcomes. Raises the first failure of a `post` that nobody asked about."""
        self._line.run(self._link.settled())
        failed = [pending for pending in self._posted if pending.is_done]
        self._posted.difference_update(failed)
        for pending in failed:
            pending.result()

    def send_all(self, messages: Iterable[Sendable]) -> SendReport:
        """Send many, in batches, pipelined, and wait for all outcomes."""
        return self._line.run(self._link.send_all(messages))

    def close(self) -> None:
        self.flush()
        self._line.run(self._link.close())


class Receiver(_Held):
    """Use `Client.receiver`."""

    def __init__(self, line: Line, link: ReceiverLink) -> None:
        self._line = line
        self._link = link

    def receive(self, most: int = 1, *, wait_s: float = 5.0) -> list[ReceivedMessage]:
        """Up to `most` that are there, or the first that come within the time; may be empty."""
        return self._line.run(self._link.receive(most, int(wait_s * 1000)))

    def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        """By sequence number. All of them, or MessageNotFoundError."""
        return self._line.run(self._link.receive_deferred(numbers))

    # --- settling: one message, or many in as few frames as possible ------------------------------

    def complete(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        self._settle(messages, Settlement.COMPLETE)

    def abandon(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        properties: Mapping[str, Value] | None = None,
        delay_ms: Millis = 0,
    ) -> None:
        """Back for others, at once or after a delay (Tandem only)."""
        if delay_ms:
            properties = operations.with_delay(properties, delay_ms)
        self._settle(messages, Settlement.ABANDON, properties=properties)

    def defer(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        self._settle(messages, Settlement.DEFER, properties=properties)

    def dead_letter(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        how = Settlement.DEAD_LETTER
        self._settle(messages, how, reason=reason, description=description, properties=properties)

    def dead_letter_session(
        self, *, reason: str | None = None, description: str | None = None
    ) -> int:
        """All messages of the session that this receiver holds; how many. Tandem only."""
        link = self._link
        return self._line.run(link.dead_letter_session(reason=reason, description=description))

    def release(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Back at once, as if it had never been delivered."""
        self._settle(messages, Settlement.RELEASE)

    def _settle(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        how: Settlement,
        **more: Any,
    ) -> None:
        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        if given:
            self._line.run(self._link.settle(given, how, **more))

    def renew(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> list[Millis]:
        """Renew their locks; until when each is locked now."""
        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        return self._line.run(self._link.renew(given))

    # --- the session ------------------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        return self._link.session_id

    @property
    def session_locked_until_ms(self) -> Millis | None:
        return self._link.session_locked_until_ms

    def renew_session(self) -> Millis:
        return self._line.run(self._link.renew_session())

    def get_session_state(self) -> bytes | None:
        return self._line.run(self._link.get_session_state())

    def set_session_state(self, state: bytes | None) -> None:
        self._line.run(self._link.set_session_state(state))

    def close(self) -> None:
        self._line.run(self._link.close())
