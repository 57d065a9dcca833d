"""Opening: the index, then the groups after it, one by one. Afterwards memory is what the disk
says.

Nothing is served, and nothing is written, before this is through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandembus.changes import BodyMoved, Enqueued, PiecesJoined, PieceStored
from tandembus.core.namespace import Namespace
from tandembus.engine import index
from tandembus.engine.bodies import Bodies
from tandembus.model import Millis
from tandembus.store.api import GROUP_HEADER, Store
from tandembus.store.records import decode_group


@dataclass(slots=True)
class Recovered:
    namespace: Namespace
    bodies: Bodies
    index_time: Millis = 0
    """When the index was made."""
    index_place: int = 0
    index_bytes: int = 0
    records: int = 0
    """Replayed behind the index."""

    @property
    def time(self) -> Millis:
        """The latest time in the log: the clock must not be behind it."""
        return max(self.index_time, self.namespace.now)


def recover(store: Store, progress: Callable[[int, int], None] | None = None) -> Recovered:
    """`progress` is told (bytes replayed, bytes in all) after each group."""
    saved = store.load_index()
    if saved is None:
        recovered = Recovered(Namespace(), Bodies(), index_place=store.start)
    else:
        recalled = index.unpack(saved.data)
        recovered = Recovered(*recalled, index_place=saved.place, index_bytes=len(saved.data))
    begin = recovered.index_place
    for group in store.replay(begin):
        _replay_group(recovered, group.body, group.place)
        if progress is not None:
            progress(group.place - begin, store.end - begin)
    recovered.bodies.drop_unjoined()
    return recovered


def _replay_group(recovered: Recovered, body: bytes, place: int) -> None:
    namespace, bodies = recovered.namespace, recovered.bodies
    replay = namespace.replay
    first = place + GROUP_HEADER
    rows = list(decode_group(body, place=place))
    ends = [offset for _, offset in rows[1:]]
    ends.append(len(body))
    for (change, offset), end in zip(rows, ends, strict=True):
        if type(change) is Enqueued:
            replay(change)
            if change.payload is not None:
                bodies.put(change.body, first + offset, end - offset)
        elif type(change) is BodyMoved:
            bodies.move(change.body, first + offset)
        elif type(change) is PieceStored:
            bodies.put(change.body, first + offset, end - offset)
        elif type(change) is PiecesJoined:
            bodies.join(change)
        else:
            replay(change)
    for number in namespace.freed:
        bodies.free(number)
    namespace.freed.clear()
    recovered.records += len(rows)
