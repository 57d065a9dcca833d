"""The single writer: owns the only `Namespace`, feeds it commands one by one, and lets nothing out
before it is on disk.

The rules:
- A command is applied at once; its changes join the group that is being filled, as one piece.
- Answers and effects leave strictly in the order of the commands, and only when the changes that
  they rest on are durable. A refusal rests on what was decided before it.
- What needs no sync of its own (a delivery, a renewed lock) waits for nobody, wakes nobody, and
  rides with the next group.
- A failed commit is the end. Memory is ahead of the disk by then, so nothing is retried: everybody
  who waits gets the error, and the next start recovers from what is durable.

Everything here runs in one thread, the owner's. What runs beside it goes through a `Lane`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tandembus import __version__
from tandembus.changes import (
    PIECE_ROW,
    RIDES_ALONG,
    Change,
    Enqueued,
    PiecesJoined,
    PieceStored,
    needs_sync,
)
from tandembus.clock import Clock
from tandembus.core.access import Claims, require
from tandembus.core.commands import CancelScheduled, Command, Loaded, Send, SetSessionState, Settle
from tandembus.core.effects import Effect, Load, Outcome
from tandembus.core.overlay import Edited
from tandembus.engine.committer import Committer, Lane
from tandembus.engine.compaction import Compactor
from tandembus.engine.metrics import Metrics
from tandembus.engine.recovery import Recovered
from tandembus.errors import Refused, ServerBusyError, StoreError
from tandembus.limits import (
    BODY_CACHE_BYTES,
    DISK_FREE_MIN_BYTES,
    KIB,
    MAX_GROUP_BYTES,
    MAX_STAGED_BYTES,
    PIECES_IN_MEMORY,
    SEGMENT_BYTES,
)
from tandembus.model import NEVER, NO_EDITS, LargePayload, Message, Millis, Payload
from tandembus.store.api import Buffer, Leased, Store
from tandembus.store.records import Payloads, encode_enqueued_into, encode_into

Reply: TypeAlias = Any
"""What core replied; or the `Refused` or `StoreError` that there is instead. Never raised:
handed."""
Done: TypeAlias = Callable[[Reply], None]
_Waiting: TypeAlias = tuple[int, Done | None, Reply, Sequence[Effect], Sequence[int]]

RIDE_ALONG_MS: Final[Millis] = 100
"""Records that wait for nobody are written after this time at the latest: the journal is read
too."""
LATE_READ_MS: Final[Millis] = 1_000
"""How long a body can still be read after the last message that used it is gone: the edge may hand
out a received-and-deleted message a little after it was told of it."""
FREE_SPACE_EVERY_MS: Final[Millis] = 1_000
CACHE_OVERHEAD: Final = 128
"""Bytes that a cached body costs beside its own."""
_IN_TRANSACTIONS: Final = Send | Settle | CancelScheduled | SetSessionState
"""What can be part of a transaction."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Bounds of one engine; tests set them small."""

    group_bytes: int = MAX_GROUP_BYTES
    staged_bytes: int = MAX_STAGED_BYTES
    cache_bytes: int = BODY_CACHE_BYTES
    free_bytes: int = DISK_FREE_MIN_BYTES
    segment_bytes: int = SEGMENT_BYTES
    move_bytes: int = 256 * KIB
    """Compaction copies so much at a time, some 2 ms of the owner's thread."""


class Engine:
    """`on_effect` gets every effect but `Load`, which is the engine's own; `on_failure` is called
    once.

    Neither they nor a `done` may raise. If an effect or a `done` does, `on_fault` is told, and all
    the others get what is theirs; without it, it is raised. They may submit; the body of a delivery
    can be read in them, and for `LATE_READ_MS` after.
    """

    def __init__(
        self,
        recovered: Recovered,
        store: Store,
        *,
        clock: Clock,
        decode: Callable[[bytes], Message],
        on_effect: Callable[[Effect], None],
        on_failure: Callable[[StoreError], None],
        commit_lane: Lane,
        side_lane: Lane,
        tuning: Tuning | None = None,
        before_commit: Callable[[], None] | None = None,
        on_commit: Callable[[], None] | None = None,
        on_fault: Callable[[Exception], None] | None = None,
    ) -> None:
        self._store = store
        self._leased = store if isinstance(store, Leased) else None
        self._clock = clock
        self._decode = decode
        self._on_effect = on_effect
        self._on_failure = on_failure
        self._on_fault = on_fault
        self._before_commit = before_commit
        self._on_commit = on_commit
        self._tuning = tuning or Tuning()
        self.metrics = Metrics()
        self.failure: StoreError | None = None
        self.namespace = recovered.namespace
        """To be looked at by others, never changed."""
        self._bodies = recovered.bodies
        self._payloads = Payloads(store)
        self._committer = Committer(
            store,
            commit_lane,
            clock,
            self.metrics,
            committed=self._committed,
            failed=self.fail,
        )
        self._compactor = Compactor(
            store,
            side_lane,
            self._committer,
            self.metrics,
            namespace=self.namespace,
            bodies=self._bodies,
            payloads=self._stored_bytes,
            freed=self._freed_numbers,
            clock=clock,
            failed=self.fail,
            index_place=recovered.index_place,
            index_bytes=recovered.index_bytes,
            segment_bytes=self._tuning.segment_bytes,
            move_bytes=self._tuning.move_bytes,
        )
        self._waiting: deque[_Waiting] = deque()
        """(group that must be durable, who waits, the answer, effects, bodies to free after), in
        the order of the commands. The groups never decrease, so only the head is ever looked at."""
        self._needed = 0
        """The last group with a change that needs a sync."""
        self._is_releasing = False
        self._loads: deque[Load] = deque()
        self._riding: deque[tuple[int, Sequence[int]]] = deque()
        """(group, bodies to free when it is durable) of commands for which nobody waits."""
        self._late: deque[tuple[Millis, Sequence[int]]] = deque()
        """Bodies that nobody needs, until they cannot be read any more."""
        self._pinned: dict[int, int] = {}
        """Bodies that are being read → by how many."""
        self._unneeded: set[int] = set()
        """Those of them that are to be freed when they have been read."""
        self._pieces: dict[int, bytes] = {}
        """Of large messages on their way out, those that were read last, the latest at the end."""
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        self._oldest_recent = self.namespace.next_body
        self._free_checked_ms: Millis | None = None
        self._is_disk_full = False
        self.is_closed = False
        clock.not_before(recovered.time)
        # Every lock of the former life ends here. No answer can pass it: each waits for this group.
        now_ms = clock.now_ms()
        self._take(self.namespace.restart(now_ms, __version__), None, now_ms)
        self._committer.flush()

    # --- commands ---------------------------------------------------------------------------------

    def submit(self, command: Command, done: Done, claims: Claims | None = None) -> None:
        """Decide about a command now; `done` gets the answer when it is durable. Raises StoreError
        once the engine has failed or is closed. `claims` are what the asker has proven; None: the
        broker itself asks."""
        if self.failure is not None or self.is_closed:
            self._check()
        now_ms = self._clock.now_ms()
        self.metrics.commands += 1
        try:
            if claims is not None:
                require(claims, command, now_ms)
            if type(command) is Send:
                self._admit(now_ms)
            outcome = self.namespace.apply(command, now_ms)
        except Refused as refusal:
            self.metrics.refused[refusal.condition] += 1
            if isinstance(command, _IN_TRANSACTIONS) and command.transaction is not None:
                self.namespace.spoil(command.transaction, refusal)
            self._waiting.append((self._needed, done, refusal, (), ()))
            self._release()
            return
        except Exception as bug:
            self.fail(bug)  # half a decision may be in memory: it must not reach the disk
            raise
        rides = type(command) is Settle and not command.is_awaited
        self._take(outcome, done, now_ms, rides=rides)
        if self._loads:
            self._load()

    def tick(self) -> None:
        """Do what has become due. To be called at `next_deadline`."""
        self._check()
        now_ms = self._clock.now_ms()
        if self.namespace.next_deadline() <= now_ms:
            try:
                outcome = self.namespace.tick(now_ms)
            except Exception as bug:
                self.fail(bug)
                raise
            self._take(outcome, None, now_ms)
        if self._loads:
            self._load()
        if now_ms >= self._riders_due():
            self._committer.wants_sync = True
        self._committer.flush()

    def next_deadline(self) -> Millis:
        """When `tick` must be called next; a time that has passed means: at once."""
        if self._loads:
            return 0
        return min(self.namespace.next_deadline(), self._riders_due())

    def flush(self) -> None:
        """To be called after a row of submits: hands to the disk what somebody waits for."""
        self._committer.flush()

    @property
    def staged_bytes(self) -> int:
        """What is not durable yet."""
        return self._committer.staged_bytes

    @property
    def is_writing(self) -> bool:
        """Whether a group is on its way to the disk."""
        return self._committer.is_writing

    @property
    def is_congested(self) -> bool:
        """Half of what may wait for the disk does: an edge should stop reading. At the whole of it,
        sends are refused."""
        return self._committer.staged_bytes > self._tuning.staged_bytes // 2

    def free_bytes(self) -> int:
        """Free space where the log is."""
        return self._store.free_bytes()

    @property
    def is_disk_full(self) -> bool:
        """Too little space is left to take messages."""
        return self._store.free_bytes() < self._tuning.free_bytes

    # --- bodies -----------------------------------------------------------------------------------

    def store_piece(self, piece: bytes, done: Done) -> int:
        """Store a part of a message that is still arriving, and return its number; `done` is called
        when it is durable. What is not sent in the end is given back with `drop_pieces`."""
        self._check()
        now_ms = self._clock.now_ms()
        self._admit(now_ms)
        number, committer = self._bodies.next_piece, self._committer
        place = committer.first_place + committer.size
        size = encode_into(committer.filling, PieceStored(number, piece))
        self._bodies.put(number, place, size)
        committer.size += size
        committer.wants_sync = True
        self._needed = committer.number
        self._take(Outcome(None, [], ()), done, now_ms)
        return number

    def drop_pieces(self, pieces: Sequence[tuple[int, int]]) -> None:
        """The message of these pieces (number, length) will not be stored."""
        if self.failure is None:
            for number, _ in pieces:
                self._bodies.free(number)

    def pin(self, number: int) -> None:
        """Keep a body, and its pieces, as long as it is being read, whatever becomes of it."""
        self._pinned[number] = self._pinned.get(number, 0) + 1

    def unpin(self, number: int) -> None:
        left = self._pinned[number] = self._pinned[number] - 1
        if not left:
            del self._pinned[number]
            if number in self._unneeded:
                self._unneeded.remove(number)
                self._bodies.free(number)

    def body(self, number: int) -> bytes:
        """A stored message in one piece, however large it is, checked. Raises as `bodies`."""
        payload = self.bodies((number,))[0]
        if isinstance(payload, LargePayload):
            body = b"".join(self.piece(piece) for piece, _ in payload.pieces)
            return payload.head + body[payload.skip : payload.skip + payload.body_bytes]
        return payload

    def bodies(self, numbers: Sequence[int]) -> Sequence[Payload]:
        """The payloads of stored bodies, checked. Raises KeyError if one is gone; StoreError, which
        ends the engine, if one ought to be in the log and is not."""
        payloads = self._stored_bytes(numbers)
        large = self._bodies.large
        if not large or large.keys().isdisjoint(numbers):
            return payloads
        return [
            _large(payload, large[number]) if number in large else payload
            for number, payload in zip(numbers, payloads, strict=True)
        ]

    def piece(self, number: int) -> bytes:
        """A piece of a large message, checked. Raises as `bodies`. The last few are kept: a piece
        is read in several steps, and a reader that had one of its own would hold it as long as
        its peer takes nothing."""
        piece = self._pieces.pop(number, None)
        if piece is None:
            piece = self._stored_bytes((number,))[0]
            if len(self._pieces) >= PIECES_IN_MEMORY:
                del self._pieces[next(iter(self._pieces))]
        self._pieces[number] = piece
        return piece

    def _stored_bytes(self, numbers: Sequence[int]) -> list[bytes]:
        """As they are stored: of a large message the head."""
        recent = self._recent
        missing = [number for number in numbers if number not in recent]
        if not missing:
            return [recent[number] for number in numbers]
        try:
            read = self._payloads.read(self._bodies.find(missing))
        except StoreError as error:
            self.fail(error)
            raise
        self.metrics.bodies_read += len(missing)
        if len(missing) == len(numbers):
            return read
        from_log = iter(read)
        return [recent[n] if n in recent else next(from_log) for n in numbers]

    def stored(self, numbers: Sequence[int]) -> dict[int, Payload]:
        """`bodies` of those that are still there, by their numbers."""
        there = [number for number in numbers if self._bodies.place(number)]
        return dict(zip(there, self.bodies(there), strict=True))

    def hold(self, name: str, place: int | None) -> None:
        """Keep the log from `place` on, for a reader called `name`; None: it needs nothing more."""
        self._compactor.hold(name, place)

    def close(self, done: Callable[[], None]) -> None:
        """Take no more commands; write everything and an index; then call `done` (not on a
        failure). The lanes and the store are closed by whoever opened them."""
        self._check()
        self.is_closed = True
        self._committer.wants_sync = True
        self._committer.flush()
        self._free_late()
        self._compactor.save_last(done)

    def fail(self, why: Exception) -> None:
        """The end: nothing is written or answered any more."""
        if self.failure is not None:
            return
        error = why if isinstance(why, StoreError) else StoreError(f"stopped by {why!r}")
        self.failure = error
        self._committer.stop()
        self._on_failure(error)
        while self._waiting:
            _, done, _, _, _ = self._waiting.popleft()
            if done is not None:
                done(error)

    # --- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise StoreError("the engine is closed")

    def _riders_due(self) -> Millis:
        """When what rides along has to be written, though nobody waits for it."""
        since = self._committer.riding_since
        return NEVER if since is None or self._committer.wants_sync else since + RIDE_ALONG_MS

    def _admit(self, now_ms: Millis) -> None:
        """Refuse what would only fill the memory or the disk. Settling goes on: it frees both."""
        if self._committer.staged_bytes >= self._tuning.staged_bytes:
            raise ServerBusyError("Too many messages are waiting for the disk.")
        if self._free_checked_ms is None or now_ms >= self._free_checked_ms + FREE_SPACE_EVERY_MS:
            self._free_checked_ms = now_ms
            self._is_disk_full = self._store.free_bytes() < self._tuning.free_bytes
        if self._is_disk_full:
            raise ServerBusyError("The disk is nearly full.", retry_after_ms=10_000)

    def _take(
        self, outcome: Outcome, done: Done | None, now_ms: Millis, *, rides: bool = False
    ) -> None:
        """Stage the changes of an outcome, and queue its answer and effects behind them; what
        `rides` waits for no disk, but its bodies stay until their end is durable."""
        group = self._committer.number
        if outcome.changes:
            self._stage(outcome.changes, now_ms, rides=rides)
        freed: Sequence[int] = ()
        numbers = self.namespace.freed
        if numbers:
            freed = numbers[:]
            numbers.clear()
            if rides:
                self._riding.append((group, freed))
                freed = ()
        effects: Sequence[Effect] = outcome.effects
        for effect in effects:
            if type(effect) is Load:
                self._loads.extend(e for e in effects if type(e) is Load)
                effects = [e for e in effects if type(e) is not Load]
                break
        self._waiting.append((self._needed, done, outcome.reply, effects, freed))
        if self._committer.size >= self._tuning.group_bytes:
            self._committer.cut()
            self._committer.flush()  # may report at once, so what was decided stands in the row
        if self._needed <= self._committer.durable:
            self._release()

    def _stage(self, changes: list[Change], now_ms: Millis, *, rides: bool = False) -> None:
        """Encode changes into the filling group. They share it: a group is whole or not there."""
        committer = self._committer
        out = committer.filling
        size = committer.size
        first = committer.first_place
        waits = False
        recent, put = self._recent, self._bodies.put
        for change in changes:
            if type(change) is Enqueued:
                waits = True
                payload, body = change.payload, change.body
                if type(payload) is not bytes and isinstance(payload, LargePayload):
                    size += self._join(out, body, payload)
                    payload = payload.head
                length = encode_enqueued_into(out, change)
                if payload is not None:
                    put(body, first + size, length)
                    recent[body] = payload
                    self._recent_bytes += len(payload) + CACHE_OVERHEAD
            else:
                length = encode_into(out, change)
                waits = waits or type(change) not in RIDES_ALONG or needs_sync(change)
            size += length
        committer.size = size
        self.metrics.records += len(changes)
        if self._leased is not None and not self._leased.is_sure:
            # Another broker may have handed out the same message: nothing leaves before an append
            # has shown that the log still is ours.
            waits, rides = True, False
        if waits and not rides:
            self._needed = committer.number
            committer.wants_sync = True
        elif committer.riding_since is None:
            committer.riding_since = now_ms

    def _join(self, out: list[Buffer], body: int, payload: LargePayload) -> int:
        """The message that follows has these pieces."""
        pieces = b"".join(PIECE_ROW.pack(*piece) for piece in payload.pieces)
        joined = PiecesJoined(body, payload.skip, payload.body_bytes, pieces)
        self._bodies.join(joined)
        payload.is_joined = True
        return encode_into(out, joined)

    def _committed(self) -> None:
        """A group is durable."""
        if self.failure is not None:
            return
        if self._before_commit is not None:
            self._before_commit()
        self._release()
        if self._on_commit is not None:
            self._on_commit()
        # Nobody waits for the rest.
        while self._riding and self._riding[0][0] <= self._committer.durable:
            self._forget(self._riding.popleft()[1])
        self._free_late()
        self._trim()
        self._compactor.advance()

    def _free_late(self) -> None:
        """Nobody can read these bodies any more."""
        now_ms = self._clock.now_ms()
        while self._late and (self.is_closed or self._late[0][0] <= now_ms):
            for number in self._late.popleft()[1]:
                if self._pinned and number in self._pinned and not self.is_closed:
                    self._unneeded.add(number)
                else:
                    self._bodies.free(number)

    def _release(self) -> None:
        """Let out what rests on durable groups, in order."""
        if self._is_releasing:  # called from a `done` or an effect: the loop below goes on with it
            return
        self._is_releasing = True
        waiting = self._waiting
        released = 0
        gone: list[int] = []
        try:
            while waiting and waiting[0][0] <= self._committer.durable:
                _, done, reply, effects, freed = waiting.popleft()
                released += 1
                gone += freed
                for effect in effects:
                    try:
                        self._on_effect(effect)
                    except Exception as fault:  # noqa: BLE001
                        self._fault(fault)
                if done is not None:
                    try:
                        done(reply)
                    except Exception as fault:  # noqa: BLE001
                        self._fault(fault)
        finally:
            self._is_releasing = False
            self.metrics.released += released
            if gone:
                self._forget(gone)

    def _fault(self, fault: Exception) -> None:
        """Whoever was to be told failed. That is no reason not to tell the others."""
        if self._on_fault is None or self.failure is not None:
            raise fault
        self._on_fault(fault)

    def _forget(self, freed: Sequence[int]) -> None:
        """Nobody needs these bodies, and nobody can ask for them who was not told before."""
        recent = self._recent
        for number in freed:
            payload = recent.pop(number, None)
            if payload is not None:
                self._recent_bytes -= len(payload) + CACHE_OVERHEAD
        self._late.append((self._clock.now_ms() + LATE_READ_MS, freed))

    def _freed_numbers(self) -> list[int]:
        """Bodies that core has freed and `bodies` still holds."""
        numbers = [number for _, gone in (*self._late, *self._riding) for number in gone]
        numbers += self._unneeded
        for *_, freed in self._waiting:
            numbers += freed
        return numbers

    def _trim(self) -> None:
        """Keep the cache in its bound. What is not durable can be read nowhere else, so it
        stays."""
        durable_end = self._committer.end
        while self._recent_bytes > self._tuning.cache_bytes:
            number = self._oldest_recent
            if number in self._recent:
                if self._bodies.place(number) >= durable_end:
                    break
                self._recent_bytes -= len(self._recent.pop(number)) + CACHE_OVERHEAD
            self._oldest_recent += 1

    def _message(self, payload: Payload) -> Message:
        if isinstance(payload, LargePayload):
            return Edited(self._decode(payload.head), NO_EDITS, payload)
        return self._decode(payload)

    def _load(self) -> None:
        """Answer one `Load`. The next one waits for `tick`, so that others get their turn."""
        load = self._loads.popleft()
        now_ms = self._clock.now_ms()
        try:
            payloads = self.stored([*load.bodies.values()])
            messages = {
                number: self._message(payloads[body])
                for number, body in load.bodies.items()
                if body in payloads  # else its message is gone meanwhile
            }
            outcome = self.namespace.apply(Loaded(load.entity, messages), now_ms)
        except Refused:
            return  # the entity is gone meanwhile
        except StoreError:
            return  # a body that cannot be read: everybody has been told
        except Exception as bug:
            self.fail(bug)
            raise
        self._take(outcome, None, now_ms)


def _large(head: bytes, joined: PiecesJoined) -> LargePayload:
    pieces = tuple(PIECE_ROW.iter_unpack(joined.pieces))
    payload = LargePayload(head, pieces, joined.skip, joined.body_bytes)
    payload.is_joined = True
    return payload
