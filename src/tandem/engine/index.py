"""The index: everything that core and the engine know, as one block of bytes at a border of groups.

With it, opening reads a summary and the few groups after it, never the whole log. Its layout is a
head and three parts; what the parts hold is known to `Namespace`, to `Bodies`, and here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from tandem.core.namespace import Namespace
from tandem.engine.bodies import Bodies
from tandem.errors import StoreError
from tandem.model import Millis
from tandem.store.api import Buffer

VERSION: Final = 1
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
    version, time, state_size, places_size, gone_size = _HEAD.unpack_from(data)
    if version != VERSION:
        raise StoreError(f"the index has version {version}, this Tandem reads {VERSION}")
    at = _HEAD.size
    assert len(data) == at + state_size + places_size + gone_size, "the index has another length"
    view = memoryview(data)
    namespace = Namespace.load(view[at : at + state_size])
    at += state_size
    bodies = Bodies.load(view[at : at + places_size])
    gone = array("Q")
    gone.frombytes(view[at + places_size :])
    for number in gone:
        bodies.free(number)
    return Recalled(namespace, bodies, time)
