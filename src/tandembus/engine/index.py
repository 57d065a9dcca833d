"""The index: everything that core and the engine know, as one block of bytes at a border of groups.

With it, opening reads a summary and the few groups after it, never the whole log. Its layout is a
head and three parts; what the parts hold is known to `Namespace`, to `Bodies`, and here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from tandembus.core.namespace import Namespace
from tandembus.core.registry import Registry
from tandembus.engine.bodies import Bodies
from tandembus.errors import StoreError
from tandembus.model import Millis
from tandembus.store.api import Buffer

VERSION: Final = 2
"""1 had no large messages. All up to this one are read."""
_HEAD: Final = Struct("<IQQQQ")


class Recalled(NamedTuple):
    """What an index gave back."""

    namespace: Namespace
    bodies: Bodies
    time: Millis
    """When it was made, by the clock of that life."""


def pack(
    namespace: Namespace, bodies: Bodies, freed: Iterable[int], now_ms: Millis
) -> list[Buffer]:
    """`freed`: bodies that nobody needs, but that still stand in `bodies` for late readers."""
    state = namespace.dump()
    places = bodies.dump()
    gone = array("Q", freed).tobytes()
    head = _HEAD.pack(VERSION, now_ms, sum(map(len, state)), sum(map(len, places)), len(gone))
    return [head, *state, *places, gone]


def unpack(data: bytes) -> Recalled:
    time, state, places, freed = _parts(data)
    namespace = Namespace.load(state)
    bodies = Bodies.load(places)
    gone = array("Q")
    gone.frombytes(freed)
    for number in gone:
        bodies.free(number)
    return Recalled(namespace, bodies, time)


def unpack_registry(data: bytes) -> tuple[Registry, Millis]:
    """The entities and their messages alone, for whoever only wants to look at them; and when."""
    time, state, *_ = _parts(data)
    return Registry.load(state), time


def _parts(data: bytes) -> tuple[Millis, memoryview, memoryview, memoryview]:
    """The time, and the three parts."""
    version, time, state_size, places_size, gone_size = _HEAD.unpack_from(data)
    if version > VERSION:
        raise StoreError(f"the index has version {version}, this Tandem reads up to {VERSION}")
    at = _HEAD.size
    assert len(data) == at + state_size + places_size + gone_size, "the index has another length"
    view = memoryview(data)
    places_at = at + state_size
    freed_at = places_at + places_size
    return time, view[at:places_at], view[places_at:freed_at], view[freed_at:]
