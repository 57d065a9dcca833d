"""A connection (AMQP 1.0 §2.4): bytes in, events out; calls in, bytes out. No socket, no clock.

Here live headers, SASL's place, open and close, channels, the receive loop and the idle time-outs.
What happens on a channel lives in `session`, on a link in `link`; both write through here.

The rules, as in h11:
* `receive_data` takes any bytes in any pieces and never raises. What breaks the protocol is told
  the peer in a close, and reported as `Closed`; after that every byte is ignored.
* What may come in which state is in `states`. A frame for a channel without a session is ignored:
  azure-servicebus sends detaches after its end.
* Nothing is written by itself: `data_to_send` gives what has to be written and forgets it.
* Time comes in through `next_deadline` and `tick` alone; both must be called for time-outs to work.

    sock → receive_data(bytes) → [Event, …]        link.deliver(…), link.settle(…), …
    sock ← data_to_send() ← ·······························┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tandembus.amqp.deadlines import Deadlines
from tandembus.amqp.events import HEARTBEAT, Authenticated, Closed, Event, Opened, SessionBegun
from tandembus.amqp.fast import decode_disposition, decode_flow, decode_transfer
from tandembus.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    HEADER_BYTES,
    SASL_FRAME,
    SASL_HEADER,
    ReceiveBuffer,
    check_opening,
    coalesced,
    frame,
    frame_opening,
    require_fit,
)
from tandembus.amqp.pending import Streaming
from tandembus.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    OPEN,
    TRANSFER,
    Begin,
    Close,
    Error,
    Open,
    Properties,
    code_of,
    decode_performative,
    decode_whole,
    encode_performative,
)
from tandembus.amqp.sasl import (
    ANONYMOUS,
    EXTERNAL,
    MSSBCBS,
    PLAIN,
    CheckPlain,
    SaslClient,
    SaslServer,
    Step,
)
from tandembus.amqp.session import INCOMING_WINDOW, Session
from tandembus.amqp.states import CONNECTION, SESSION, Action, ConnectionState
from tandembus.amqp.states import Role as Role
from tandembus.amqp.types import Buffer, decode_descriptor
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.limits import (
    DEFAULT_FRAME_BYTES,
    MAX_BATCH_BYTES,
    MAX_CHANNELS,
    MAX_LINKS_PER_CONNECTION,
    MAX_PARTIAL_BYTES,
    MIN_FRAME_BYTES,
    PRE_OPEN_FRAME_BYTES,
)
from tandembus.model import Millis

DEFAULT_IDLE_MS: Final = 120_000
"""What Azure advertises. azure-servicebus may be silent for 30 s, so not much less."""
_OPENED: Final = ConnectionState.OPENED
_TRANSFER_OPENING: Final = bytes((0x00, 0x53, TRANSFER))
_DISPOSITION_OPENING: Final = bytes((0x00, 0x53, DISPOSITION))
_HEADERS: Final = (ConnectionState.HEADER, ConnectionState.AMQP_HEADER)
_SASL_STATES: Final = (ConnectionState.HEADER, ConnectionState.SASL)
_ENDED: Final[tuple[ConnectionState, ...]] = (ConnectionState.FINISHED,)
_OVER: Final = (ConnectionState.CLOSE_SENT, *_ENDED)
_NO_LIMIT: Final = 1 << 62
_HANDSHAKE: Final = (*_HEADERS, ConnectionState.SASL, ConnectionState.OPEN)


class Connection:
    """One AMQP connection, as server or client.

    A server answers open and begin by itself; a client calls `open` and `begin`, also before the
    peer has answered anything."""

    __slots__ = (
        "_buffer", "_deadlines", "_hostname", "_is_header_sent", "_is_open_sent",
        "_is_sasl_required", "_properties", "_sasl", "_sasl_out", "_sessions", "channel_max",
        "container_id", "context", "crowded", "handle_max", "has_large", "idle_timeout_ms",
        "incoming", "is_paused", "link_count", "lost", "max_frame_size", "max_links",
        "max_message_size", "max_partial_bytes", "out", "partial_bytes", "pending",
        "remote_channel_max", "remote_idle_ms", "remote_max_frame", "role", "state", "streaming",
        "tracked", "unsettled_out",
    )  # fmt: skip

    def __init__(
        self,
        role: Role,
        *,
        container_id: str,
        hostname: str | None = None,
        properties: Properties | None = None,
        max_frame_size: int = DEFAULT_FRAME_BYTES,
        max_channels: int = MAX_CHANNELS,
        max_links: int = MAX_LINKS_PER_CONNECTION,
        max_message_size: int = MAX_BATCH_BYTES,
        idle_timeout_ms: Millis | None = DEFAULT_IDLE_MS,
        use_sasl: bool = True,
        mechanisms: tuple[str, ...] = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL),
        check_plain: CheckPlain | None = None,
        username: str | None = None,
        password: str = "",
    ) -> None:
        """`use_sasl`: as server, SASL is required; as client, it is used. `mechanisms` and
        `check_plain` are the server's (PLAIN is offered only with the latter); `username` and
        `password` the client's. `max_message_size` counts for links that do not set their own."""
        self.role = role
        self.container_id = container_id
        self.max_frame_size = max_frame_size
        self.channel_max = max_channels - 1
        self.handle_max, self.max_links = max(255, max_links), max_links
        self.max_message_size = max_message_size
        self.max_partial_bytes = max(4 * max_message_size, MAX_PARTIAL_BYTES)
        """Unfinished messages of all links together: each of thousands could hold one back."""
        self.idle_timeout_ms = idle_timeout_ms
        self.lost: Callable[[Event], None] = lambda refused: None
        """Told of a `MessageRefused` where its owner has ended a link."""
        self.tracked: Callable[[Error], Error] = lambda error: error
        """What is told a peer that broke a rule passes through here: the owner can log it, and add
        to it what leads to the log."""
        self.context: Any = None  # for the owner; not looked at here
        self.state = ConnectionState.HEADER
        self.remote_max_frame, self.remote_channel_max = MIN_FRAME_BYTES, 65535
        self.remote_idle_ms: Millis | None = None
        self.incoming: dict[int, Session] = {}
        """Sessions by the peer's channel."""
        self.link_count = self.partial_bytes = self.unsettled_out = 0  # over all sessions
        self.crowded: set[Session] = set()  # with too many unsettled when a message came
        self.out: list[Buffer] = []
        self.has_large = self._is_header_sent = self._is_open_sent = False
        self.is_paused = False  # by a message on a link that `pauses`
        self.streaming = Streaming()
        self.pending: list[Session] = []
        """Sessions with a disposition that waits for its neighbours."""
        self._sessions: dict[int, Session] = {}
        self._hostname, self._properties, self._is_sasl_required = hostname, properties, use_sasl
        self._sasl: SaslServer | SaslClient | None = None
        self._sasl_out: list[bytes] = []
        self._buffer, self._deadlines = ReceiveBuffer(), Deadlines()
        if role is Role.SERVER:
            self._sasl = SaslServer(mechanisms, check_plain)
        elif use_sasl:
            self._sasl = SaslClient(username, password, hostname)
            self._sasl_out.append(SASL_HEADER)

    def __repr__(self) -> str:
        return f"<Connection {self.role.value} waits for {self.state.value}>"

    # --- what an owner calls ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Nothing more is read or written, once `data_to_send` has been: hang up."""
        return self.state is ConnectionState.FINISHED

    @property
    def is_over(self) -> bool:
        """Whether a close was sent, or nothing can be."""
        return self.state in _OVER

    @property
    def can_read(self) -> bool:
        """Whether the peer should be read from: not while it has too many unsettled with us."""
        self.crowded = {it for it in self.crowded if it.has_too_many_unsettled}
        return not self.crowded

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    def open(self) -> None:
        """Queue our open. A server does so by itself, when the peer's has come."""
        if not self._is_open_sent and self.state is not ConnectionState.FINISHED:
            self._write_header()
            self._is_open_sent = True
            opening = Open(
                self.container_id, self._hostname, self.max_frame_size, self.channel_max,
                self.idle_timeout_ms, properties=self._properties,
            )  # fmt: skip
            self.out.append(frame(encode_performative(opening)))

    def begin(self, *, initial_id: int = 0) -> Session:
        """Ask the peer for a session."""
        if self.state in _OVER or not self._is_open_sent:
            raise ArgumentError("The connection is not open.")
        session = self._new_session(0, initial_id)
        self._write_begin(session, None)
        return session

    def close(self, error: Error | None = None) -> None:
        """Queue a close. What the peer still sends is ignored; `Closed` reports its answer."""
        if self.state in _OVER:
            return
        if self.state not in (ConnectionState.OPEN, _OPENED):
            self.out.clear()  # nothing was agreed on yet: hanging up says it all
            self.state = ConnectionState.FINISHED
            return
        self.open()
        self._flush_pending()
        self.write(Close(error), 0)
        # Without the peer's open there is nobody to answer.
        is_opened = self.state is _OPENED
        self.state = ConnectionState.CLOSE_SENT if is_opened else ConnectionState.FINISHED

    def data_to_send(self) -> list[Buffer]:
        """What has to be written now, in order. Small pieces are joined, large ones as they are."""
        if self.pending:
            self._flush_pending()
        if self._sasl_out:
            data: list[Buffer] = [b"".join(self._sasl_out)]
            self._sasl_out = []
            if self._is_sasl_under_way():
                self._deadlines.has_sent = True
                return data
        elif not self.out or self._is_sasl_under_way():
            return []
        else:
            data = []
        out = self.out
        self.out = []
        self.streaming.written = 0
        self._deadlines.has_sent = True
        if self.has_large:
            self.has_large = False
            data += coalesced(out)
        elif out:
            data.append(out[0] if len(out) == 1 else b"".join(out))
        return data

    # --- time -------------------------------------------------------------------------------------

    def next_deadline(self, now_ms: Millis) -> Millis | None:
        """When `tick` has to be called next; None if never."""
        if self.state is ConnectionState.FINISHED:
            return None
        if self.state in _HANDSHAKE:
            return self._deadlines.handshake(now_ms, self.state)
        return self._deadlines.idle(now_ms, self.idle_timeout_ms, self.remote_idle_ms)

    def tick(self, now_ms: Millis) -> list[Event]:
        """Send a heartbeat, or give the peer up, if it is time."""
        events: list[Event] = []
        due_ms = self.next_deadline(now_ms)
        if due_ms is None or now_ms < due_ms:
            return events
        deadlines = self._deadlines
        if self.state in _HANDSHAKE:
            text = f"{self.state.value} did not come in time."
            self._finish(Error("amqp:connection:forced", text), events)
        elif deadlines.is_peer_silent(now_ms, self.idle_timeout_ms):
            self.fail("amqp:resource-limit-exceeded", "The idle time-out ran out.", events)
        elif deadlines.is_heartbeat_due(now_ms, self.remote_idle_ms) and not self.out:
            self.out.append(EMPTY_FRAME)
        return events

    # --- receiving --------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether `receive_data` has left something: call it again, with nothing or with more."""
        return self._buffer.rest is not None

    @property
    def rest_bytes(self) -> int:
        return 0 if (rest := self._buffer.rest) is None else len(rest[0]) - rest[1]

    def receive_data(
        self, data: bytes | bytearray | memoryview, most: int = _NO_LIMIT
    ) -> list[Event]:
        """All events that these bytes cause, in order. Never raises, whatever they are.

        With `most` it stops after so many frames (those that begin or end something count for
        sixteen), so that one peer cannot keep the others waiting; see `has_more`. It also stops
        behind a message on a link that `pauses`.
        """
        events: list[Event] = []
        self.is_paused = False
        if self.state is ConnectionState.FINISHED:
            return events
        self._deadlines.has_heard = True
        filled = self._buffer.fill(data if type(data) is bytes else bytes(data))
        if filled is None:
            return events
        whole, at = filled
        size = len(whole)
        sessions = self.incoming
        try:
            while size - at >= HEADER_BYTES:
                if most <= 0 or self.is_paused:
                    self._buffer.rest = (whole, at)
                    return events
                most -= 1
                if self.state is _OPENED:
                    length, offset, kind, channel = frame_opening(whole, at)
                    if length > self.max_frame_size or offset != 2 or kind or length <= 11:
                        most -= 3
                        end = self._on_odd_frame(whole, at, events)
                        if not end:
                            break
                        at = end
                        continue
                    end = at + length
                    if end > size:
                        break
                    # The two of every message first, and without another call than they need.
                    opening = whole[at + 8 : at + 11]
                    if opening == _TRANSFER_OPENING:
                        session = sessions.get(channel)
                        if session is not None:
                            transfer = decode_transfer(whole, at + 11, end)
                            session.on_transfer(whole, transfer, end, events)
                    elif opening == _DISPOSITION_OPENING:
                        session = sessions.get(channel)
                        if session is not None:
                            disposition = decode_disposition(whole, at + 11, end)
                            session.on_disposition(disposition, events)
                    else:
                        most -= 15
                        self._on_body(whole, at + 8, end, channel, events)
                elif self.state in _HEADERS:
                    self._on_header(whole[at : at + HEADER_BYTES], events)
                    end = at + HEADER_BYTES
                else:
                    end = self._on_odd_frame(whole, at, events)
                    if not end:
                        break
                if self.state in _ENDED:
                    return events
                at = end
        except ProtocolError as error:
            self.fail("amqp:decode-error", str(error), events)
            return events
        if at < size and self.state not in _ENDED:
            self._keep(whole[at:] if at else whole, events)
        return events

    def _keep(self, rest: bytes, events: list[Event]) -> None:
        is_header = self.state in _HEADERS
        if is_header and not AMQP_HEADER.startswith(rest[:4]):
            self._on_header(rest, events)
            return
        try:
            self._buffer.keep(rest, self._frame_limit(), is_header=is_header)
        except ProtocolError as error:
            self.fail("amqp:connection:framing-error", str(error), events)

    def _frame_limit(self) -> int:
        if self.state is ConnectionState.SASL:
            return MIN_FRAME_BYTES
        if self.state is ConnectionState.OPEN:
            return min(PRE_OPEN_FRAME_BYTES, self.max_frame_size)
        return self.max_frame_size

    def _on_odd_frame(self, buffer: bytes, at: int, events: list[Event]) -> int:
        """A frame that is not of the usual shape or time. Where it ends, or 0 if it is not all
        here, or the connection is over."""
        size, offset, kind, channel = frame_opening(buffer, at)
        try:
            check_opening(size, offset, kind, self._frame_limit())
            if kind != (SASL_FRAME if self.state is ConnectionState.SASL else AMQP_FRAME):
                raise ProtocolError(f"A frame of type {kind} came instead of {self.state.value}.")
        except ProtocolError as error:
            self.fail("amqp:connection:framing-error", str(error), events)
            return 0
        end = at + size
        if end > len(buffer):
            return 0
        body = at + 4 * offset
        if self.state is ConnectionState.SASL:
            self._on_sasl(buffer[body:end], events)
        elif body == end:
            events.append(HEARTBEAT)
        else:
            self._on_body(buffer, body, end, channel, events)
        return 0 if self.state is ConnectionState.FINISHED else end

    def _on_header(self, header: bytes, events: list[Event]) -> None:
        """The peer's protocol header. What we do not speak is answered with what we do. (§2.2)"""
        is_first = self.state is ConnectionState.HEADER
        if header == SASL_HEADER and is_first and self._sasl is not None:
            self.state = ConnectionState.SASL
            if isinstance(self._sasl, SaslServer):
                self._sasl_out.append(SASL_HEADER)
                self._write_sasl(self._sasl.opening())
        elif header == AMQP_HEADER and (
            self.state is ConnectionState.AMQP_HEADER or (not self._is_sasl_required)
        ):
            self._sasl = None
            self.state = ConnectionState.OPEN
            self._write_header()
        else:
            if self.role is Role.SERVER:
                is_sasl_next = self._is_sasl_required and is_first
                self._sasl_out.append(SASL_HEADER if is_sasl_next else AMQP_HEADER)
            self._finish(
                Error("amqp:not-implemented", "The protocol header is not one that we speak."),
                events,
            )

    def _on_sasl(self, body: bytes, events: list[Event]) -> None:
        sasl = self._sasl
        assert sasl is not None
        performative, end = decode_performative(body)
        if end != len(body):
            raise ProtocolError("Bytes follow a SASL frame.")
        self._write_sasl(sasl.receive(performative))
        if sasl.step is Step.DONE:
            self.state = ConnectionState.AMQP_HEADER
            events.append(Authenticated(sasl.mechanism, sasl.username))
            if self.role is Role.CLIENT:
                self._write_header()
        elif sasl.step is Step.FAILED:
            self._finish(Error("amqp:unauthorized-access", "SASL authentication failed."), events)

    def _on_body(self, buffer: bytes, at: int, end: int, channel: int, events: list[Event]) -> None:
        """Any performative, at its leisure."""
        if buffer[at] != 0x00:
            raise ProtocolError("A frame does not begin with a performative.")
        descriptor, list_at = decode_descriptor(buffer, at + 1)
        code = code_of(descriptor)
        action = CONNECTION[self.state].get(code)
        if action is None:
            raise ProtocolError("A performative is not known.")
        if action is Action.IGNORE:
            return
        if action is Action.REFUSE:
            self.fail(
                "amqp:illegal-state", f"0x{code:02x} came instead of {self.state.value}.", events
            )
            return
        if code in (OPEN, BEGIN, CLOSE):
            performative = decode_whole(buffer, at, end)
            if code == OPEN:
                self._on_open(performative, events)
            elif code == BEGIN:
                self._on_begin(performative, channel, events)
            else:
                self._on_close(performative, events)
            return
        session = self.incoming.get(channel)
        if session is None:
            return
        if SESSION[session.state][code] is not Action.TAKE and code not in (TRANSFER, DISPOSITION):
            return
        if code == FLOW:
            session.on_flow(decode_flow(buffer, list_at, end), events)
        elif code == TRANSFER:
            session.on_transfer(buffer, decode_transfer(buffer, list_at, end), end, events)
        elif code == DISPOSITION:
            session.on_disposition(decode_disposition(buffer, list_at, end), events)
        elif code == ATTACH:
            session.on_attach(decode_whole(buffer, at, end), events)
        elif code == DETACH:
            session.on_detach(decode_whole(buffer, at, end), events)
        else:
            session.on_end(decode_whole(buffer, at, end), events)

    def _on_open(self, peer: Open, events: list[Event]) -> None:
        if peer.max_frame_size < MIN_FRAME_BYTES:
            self.fail("amqp:invalid-field", "max-frame-size is below 512.", events)
            return
        # No larger than ours: frames of a gigabyte would let one link starve the others.
        self.remote_max_frame = min(peer.max_frame_size, self.max_frame_size)
        self.remote_channel_max = peer.channel_max
        self.remote_idle_ms = peer.idle_time_out or None
        self.state = _OPENED
        self.open()
        events.append(Opened(peer))

    def _on_begin(self, begin: Begin, channel: int, events: list[Event]) -> None:
        if channel > self.channel_max:
            self.fail("amqp:connection:framing-error", f"Channel {channel} is too large.", events)
        elif channel in self.incoming:
            self.fail("amqp:not-allowed", f"Channel {channel} has a session already.", events)
        elif begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None or session.remote_channel >= 0:
                self.fail("amqp:not-allowed", "No begin waits on that remote-channel.", events)
                return
            self.incoming[channel] = session
            state = session.state
            session.on_begin(begin, channel)
            if SESSION[state][BEGIN] is Action.TAKE:
                events.append(SessionBegun(session))
            else:
                session.state = state  # ended before it was there; its end is on the way
        else:
            try:
                session = self._new_session(channel, 0)
            except ArgumentError as error:
                self.fail("amqp:resource-limit-exceeded", str(error), events)
                return
            session.on_begin(begin, channel)
            self.incoming[channel] = session
            self._write_begin(session, channel)
            events.append(SessionBegun(session))

    def _on_close(self, close: Close, events: list[Event]) -> None:
        if self.state is not ConnectionState.CLOSE_SENT:
            self._flush_pending()
            self.write(Close(), 0)
        self.state = ConnectionState.FINISHED
        events.append(Closed(close.error, True))

    # --- sending ----------------------------------------------------------------------------------

    def write(self, performative: Any, channel: int) -> None:
        """Queue one performative; an error's text is cut where the peer's frames are small."""
        whole = frame(encode_performative(performative), channel)
        if len(whole) > self.remote_max_frame:
            error = getattr(performative, "error", None)
            if error is not None:
                short = replace(performative, error=error.short())
                whole = frame(encode_performative(short), channel)
            require_fit(whole, self.remote_max_frame)
        self.out.append(whole)

    def unmap(self, session: Session) -> None:
        """Both ends of a session are over: its channels are free."""
        self.incoming.pop(session.remote_channel, None)
        self._sessions.pop(session.channel, None)

    def fail(self, condition: str, text: str, events: list[Event]) -> None:
        """The peer broke a rule of the connection: tell it, and be done with it."""
        error = self.tracked(Error(condition, text))
        if self.state in (ConnectionState.OPEN, _OPENED):
            self.open()
            self._flush_pending()
            self.write(Close(error), 0)
        self._finish(error, events)

    def _finish(self, error: Error, events: list[Event]) -> None:
        if self._is_sasl_under_way():
            self.out.clear()
        self.state = ConnectionState.FINISHED
        self.partial_bytes = 0
        self._buffer.rest = None
        events.append(Closed(error, False))

    def _new_session(self, wish: int, initial_id: int) -> Session:
        most = min(self.channel_max, self.remote_channel_max)
        if wish > most or wish in self._sessions:
            wish = next((it for it in range(most + 1) if it not in self._sessions), -1)
        if wish < 0:
            raise ArgumentError("The connection has no channel left.")
        self._sessions[wish] = Session(self, wish, initial_id)
        return self._sessions[wish]

    def _write_begin(self, session: Session, remote_channel: int | None) -> None:
        windows = INCOMING_WINDOW, INCOMING_WINDOW
        begin = Begin(remote_channel, session.initial_id, *windows, self.handle_max)
        self.write(begin, session.channel)

    def _write_header(self) -> None:
        if not self._is_header_sent:
            self._is_header_sent = True
            self.out.insert(0, AMQP_HEADER)

    def _write_sasl(self, performative: Any) -> None:
        if performative is not None:
            self._sasl_out.append(frame(encode_performative(performative), 0, SASL_FRAME))

    def _is_sasl_under_way(self) -> bool:
        return self._sasl is not None and self.state in _SASL_STATES

    def _flush_pending(self) -> None:
        for session in self.pending:
            session.flush()
        self.pending.clear()
