"""The client for asyncio. The same calls as in `blocking`, to be awaited.

    async with AsyncClient(connection_string) as client:
        async with await client.sender("orders") as sender:
            await asyncio.gather(*(sender.send(body) for body in bodies))
        async with await client.receiver("orders") as receiver:
            await receiver.complete(await receiver.receive(100, wait_s=5))

Here live a transport and a timer; what is said on the wire is `conversation`. Sends that overlap
share the link, and no more are in flight than it allows: the others wait their turn.

The rule for a broken connection is that of `blocking`: ConnectionLostError, dead links, and a
client that connects again at its next call. A call that is cancelled leaves nothing behind but,
perhaps, a message that was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from tandembus.client import operations
from tandembus.client.addresses import ConnectionString
from tandembus.client.conversation import Conversation
from tandembus.client.entities import Entities
from tandembus.client.messages import ReceivedMessage, Sendable, Unsent
from tandembus.client.operations import Rule, SessionCounts, Settlement
from tandembus.client.pending import Pending
from tandembus.client.receiving import NextSession, ReceiveMode, ReceiverLink
from tandembus.client.sending import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, SenderLink, SendReport
from tandembus.client.tls import lost, tls_context
from tandembus.clock import Clock, SystemClock
from tandembus.errors import ConnectionLostError
from tandembus.model import Millis, Value

T = TypeVar("T")

_LONGEST_WAIT_S: Final = 20.0
_LONGEST_CLOSE_S: Final = 1
"""What a peer that says nothing is waited for."""


class Line(asyncio.Protocol):
    """One connection: a transport and its conversation. Use `connect`."""

    def __init__(self, target: ConnectionString, clock: Clock, timeout_s: float) -> None:
        self._target = target
        self._clock = clock
        self.heart = Conversation(target, clock, timeout_ms=int(timeout_s * 1000))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._will_write = False
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, target: ConnectionString, clock: Clock, timeout_s: float, ca_file: str | None
    ) -> Line:
        line = cls(target, clock, timeout_s)
        tls = tls_context(ca_file) if target.uses_tls else None
        try:
            async with asyncio.timeout(timeout_s):
                await line._loop.create_connection(
                    lambda: line,
                    target.host,
                    target.amqp_port,
                    ssl=tls,
                    server_hostname=target.host if tls else None,
                    ssl_shutdown_timeout=_LONGEST_CLOSE_S if tls else None,
                )
        except (OSError, TimeoutError) as error:
            raise lost(error, target.host, target.amqp_port) from None
        try:
            await line.run(line.heart.open())
        except BaseException:
            line._transport.abort()
            raise
        return line

    # --- what is waited for -----------------------------------------------------------------------

    async def run(self, operation: Coroutine[Pending[Any], None, T]) -> T:
        pending = self.heart.run(operation)
        self._touch()
        if not pending.is_done:
            future: asyncio.Future[None] = self._loop.create_future()
            pending.on_done(lambda: None if future.done() else future.set_result(None))
            try:
                await future
            except asyncio.CancelledError:
                pending.cancel()
                self._touch()
                raise
        return pending.result()

    def _touch(self) -> None:
        """Something may have to be written, or to be timed: at the end of this turn."""
        if not self._will_write:
            self._will_write = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._will_write = False
        if self._gone.done():
            return
        data = self.heart.data_to_send()
        if data and not self._transport.is_closing():
            # Not writelines: see `server.peer`.
            self._transport.write(b"".join(data))
            self._touch()  # what waited for this may have more
        if self.heart.connection.is_finished and not data:
            self._transport.close()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.heart.next_deadline()
        delay_s = _LONGEST_WAIT_S
        if deadline is not None:
            delay_s = min(delay_s, max(0, deadline - self._clock.now_ms()) / 1000)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self.heart.tick()
        self._write()

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heart.receive_data(data)
        self._touch()

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, OSError):
            self.heart.lose(lost(error, self._target.host, self._target.amqp_port))
        else:
            self.heart.lose(ConnectionLostError(f"{self._target.host} has hung up."))
        if self._timer is not None:
            self._timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)

    @property
    def is_over(self) -> bool:
        return self.heart.is_over

    async def close(self) -> None:
        if not self.heart.is_over:
            await self.run(self.heart.close())
        if not self._gone.done():
            self._write()
            self._transport.close()
            await asyncio.wait([self._gone], timeout=_LONGEST_CLOSE_S)
            if not self._target.uses_tls:
                # TLS has its own end; a second one is an error of Python 3.11.2.
                self._transport.abort()


class AsyncClient:
    """A namespace. Connects at the first call that needs it, and again after a loss. See
    `blocking.Client`."""

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
        self._lock = asyncio.Lock()

    async def _connected(self) -> Line:
        async with self._lock:
            if self._line is not None and self._line.is_over:
                await self._line.close()
                self._line = None
            if self._line is None:
                self._line = await Line.connect(
                    self.target, self._clock, self._timeout_s, self._ca_file
                )
            return self._line

    async def connect(self) -> Self:
        await self._connected()
        return self

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- links ------------------------------------------------------------------------------------

    async def sender(
        self,
        path: str | None = None,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
    ) -> AsyncSender:
        line = await self._connected()
        link = SenderLink(line.heart, self.target.entity(path), max_in_flight, max_in_flight_bytes)
        return AsyncSender(line, await line.run(link.open()))

    async def receiver(
        self,
        path: str | None = None,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        session: str | NextSession | None = None,
        session_wait_s: float = 60.0,
        prefetch: int = 0,
    ) -> AsyncReceiver:
        line = await self._connected()
        link = ReceiverLink(
            line.heart,
            self.target.entity(path),
            mode=mode,
            session=session,
            session_wait_ms=int(session_wait_s * 1000),
            prefetch=prefetch,
        )
        return AsyncReceiver(line, await line.run(link.open()))

    # --- without a link ---------------------------------------------------------------------------

    async def browse(
        self,
        path: str | None = None,
        *,
        from_sequence_number: int = 0,
        count: int = 100,
        session_id: str | None = None,
    ) -> list[ReceivedMessage]:
        line = await self._connected()
        entity = self.target.entity(path)
        return await line.run(
            operations.browse(line.heart, entity, from_sequence_number, count, session_id)
        )

    async def browse_all(
        self,
        path: str | None = None,
        *,
        from_sequence_number: int = 0,
        session_id: str | None = None,
    ) -> AsyncIterator[ReceivedMessage]:
        while page := await self.browse(
            path, from_sequence_number=from_sequence_number, session_id=session_id
        ):
            for message in page:
                yield message
            from_sequence_number = page[-1].sequence_number + 1

    async def schedule(
        self, messages: Sequence[Unsent], at_ms: Millis, path: str | None = None
    ) -> list[int]:
        line = await self._connected()
        entity = self.target.entity(path)
        return await line.run(operations.schedule(line.heart, entity, messages, at_ms))

    async def cancel_scheduled(self, numbers: Sequence[int], path: str | None = None) -> None:
        line = await self._connected()
        entity = self.target.entity(path)
        await line.run(operations.cancel_scheduled(line.heart, entity, numbers))

    async def settle(
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
        if delay_ms:
            properties = operations.with_delay(properties, delay_ms)
        line = await self._connected()
        await line.run(
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

    async def renew_locks(self, tokens: Sequence[UUID], path: str | None = None) -> list[Millis]:
        line = await self._connected()
        return await line.run(operations.renew_locks(line.heart, self.target.entity(path), tokens))

    async def delete_messages(
        self, count: int, path: str | None = None, *, before_ms: Millis | None = None
    ) -> int:
        line = await self._connected()
        before_ms = self._clock.now_ms() if before_ms is None else before_ms
        entity = self.target.entity(path)
        return await line.run(operations.delete_messages(line.heart, entity, count, before_ms))

    async def change_priority(
        self, sequence_number: int, level: int, path: str | None = None
    ) -> None:
        """Give a message that waits in a priority queue another level (0 is the lowest), at once.
        Tandem's own; needs Manage. Raises MessageNotFoundError if it does not wait."""
        line = await self._connected()
        entity = self.target.entity(path)
        await line.run(operations.change_priority(line.heart, entity, sequence_number, level))

    async def list_sessions(self, path: str | None = None) -> list[str]:
        line = await self._connected()
        return await line.run(operations.list_sessions(line.heart, self.target.entity(path)))

    async def search(
        self,
        path: str | None = None,
        *,
        filter: str | None = None,
        states: Sequence[str] = (),
        from_sequence_number: int = 0,
        session_id: str | None = None,
    ) -> AsyncIterator[ReceivedMessage]:
        """Browse by a SQL filter, by state (`active`, `deferred`, `scheduled`, `delayed`), or
        both. Tandem only."""
        following: int | None = from_sequence_number
        while following is not None:
            line = await self._connected()
            page, following = await line.run(
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
            for message in page:
                yield message

    async def discard(self, numbers: Sequence[int], path: str | None = None) -> None:
        """Delete messages that nobody has locked, in whatever state. Tandem only."""
        line = await self._connected()
        await line.run(operations.discard(line.heart, self.target.entity(path), numbers))

    async def reactivate(self, numbers: Sequence[int], path: str | None = None) -> None:
        """Deferred or delayed messages wait again, each in its place. Tandem only."""
        line = await self._connected()
        await line.run(operations.reactivate(line.heart, self.target.entity(path), numbers))

    async def dead_letter_session(
        self,
        session_id: str,
        path: str | None = None,
        *,
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        """Every message of a session that nobody holds; how many there were. Tandem only."""
        line = await self._connected()
        entity = self.target.entity(path)
        return await line.run(
            operations.dead_letter_session(
                line.heart, entity, session_id, reason=reason, description=description
            )
        )

    async def count_sessions(self, path: str | None = None) -> SessionCounts:
        """Tandem only."""
        line = await self._connected()
        return await line.run(operations.count_sessions(line.heart, self.target.entity(path)))

    async def add_rule(self, path: str, rule: Rule) -> None:
        line = await self._connected()
        await line.run(operations.add_rule(line.heart, path, rule))

    async def remove_rule(self, path: str, name: str) -> None:
        line = await self._connected()
        await line.run(operations.remove_rule(line.heart, path, name))

    async def list_rules(self, path: str) -> list[Rule]:
        line = await self._connected()
        return await line.run(operations.list_rules(line.heart, path))

    @property
    def entities(self) -> Entities:
        """These calls block: `await asyncio.to_thread(client.entities.create_queue, "orders")`."""
        return Entities(self.target, self._clock, timeout_s=self._timeout_s, ca_file=self._ca_file)


class _Held:
    """What is closed at the end of an `async with`."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            with contextlib.suppress(Exception):
                await self.close()


class AsyncSender(_Held):
    """Use `AsyncClient.sender`."""

    def __init__(self, line: Line, link: SenderLink) -> None:
        self._line = line
        self._link = link

    async def send(self, message: Sendable) -> None:
        """Calls that overlap are pipelined, in the order in which they were made."""
        await self._line.run(self._link.send(message))

    async def send_all(self, messages: Iterable[Sendable]) -> SendReport:
        return await self._line.run(self._link.send_all(messages))

    async def close(self) -> None:
        await self._line.run(self._link.close())


class AsyncReceiver(_Held):
    """Use `AsyncClient.receiver`."""

    def __init__(self, line: Line, link: ReceiverLink) -> None:
        self._line = line
        self._link = link

    async def receive(self, most: int = 1, *, wait_s: float = 5.0) -> list[ReceivedMessage]:
        return await self._line.run(self._link.receive(most, int(wait_s * 1000)))

    async def receive_deferred(self, numbers: Sequence[int]) -> list[ReceivedMessage]:
        return await self._line.run(self._link.receive_deferred(numbers))

    async def complete(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        await self._settle(messages, Settlement.COMPLETE)

    async def abandon(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        properties: Mapping[str, Value] | None = None,
        delay_ms: Millis = 0,
    ) -> None:
        """Back for others, at once or after a delay (Tandem only)."""
        if delay_ms:
            properties = operations.with_delay(properties, delay_ms)
        await self._settle(messages, Settlement.ABANDON, properties=properties)

    async def defer(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        await self._settle(messages, Settlement.DEFER, properties=properties)

    async def dead_letter(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        how = Settlement.DEAD_LETTER
        await self._settle(
            messages, how, reason=reason, description=description, properties=properties
        )

    async def dead_letter_session(
        self, *, reason: str | None = None, description: str | None = None
    ) -> int:
        """All messages of the session that this receiver holds; how many. Tandem only."""
        link = self._link
        return await self._line.run(
            link.dead_letter_session(reason=reason, description=description)
        )

    async def release(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        await self._settle(messages, Settlement.RELEASE)

    async def _settle(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        how: Settlement,
        **more: Any,
    ) -> None:
        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        if given:
            await self._line.run(self._link.settle(given, how, **more))

    async def renew(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> list[Millis]:
        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        return await self._line.run(self._link.renew(given))

    @property
    def session_id(self) -> str | None:
        return self._link.session_id

    @property
    def session_locked_until_ms(self) -> Millis | None:
        return self._link.session_locked_until_ms

    async def renew_session(self) -> Millis:
        return await self._line.run(self._link.renew_session())

    async def get_session_state(self) -> bytes | None:
        return await self._line.run(self._link.get_session_state())

    async def set_session_state(self, state: bytes | None) -> None:
        await self._line.run(self._link.set_session_state(state))

    async def close(self) -> None:
        await self._line.run(self._link.close())
