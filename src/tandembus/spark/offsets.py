"""Offsets of the source, and how a range of them becomes a batch and its tasks. Pure.

An offset says for each *key*, an entity or a partition of one (`orders`, `orders#3`), the first
position that was not read. As JSON its keys are sorted and its numbers are text: Spark compares the
text, and a reader in another language loses digits of a number beyond 2⁵³.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tandembus.errors import ArgumentError

Offset: TypeAlias = dict[str, int]
CONSUMER: Final = "$consumer"
"""In the offset of a query with a cursor: whose it is, so that a listener knows it."""


def encode(offset: Mapping[str, int], consumer: str | None = None) -> dict[str, str]:
    """For Spark: always the same text for the same offset."""
    said = {} if consumer is None else {CONSUMER: consumer}
    return said | {key: str(offset[key]) for key in sorted(offset)}


def decode(said: Mapping[str, str] | str) -> Offset:
    """What `encode` wrote, also as JSON."""
    try:
        found = json.loads(said) if isinstance(said, str) else said
        return {key: int(found[key]) for key in sorted(found) if key != CONSUMER}
    except (TypeError, ValueError, LookupError):
        raise ArgumentError(f"This is not an offset of the servicebus source: {said}") from None


def key_of(entity: str, partition: int, partitions: int) -> str:
    return entity if partitions == 1 else f"{entity}#{partition}"


def entity_of(key: str) -> tuple[str, int]:
    """The entity and the partition that a key stands for."""
    entity, mark, partition = key.rpartition("#")
    return (entity, int(partition)) if mark else (key, 0)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far one gets from a position with a budget."""

    end: int
    count: int
    size: int


Advance: TypeAlias = Callable[[str, int, int, int | None, int | None], Reach]
"""Key, start, end, most messages, most bytes → how far that is."""


def admit(
    start: Offset,
    tail: Offset,
    max_messages: int | None,
    max_bytes: int | None,
    advance: Advance,
) -> Offset:
    """The end of the next batch. What it may hold is shared between the keys by what each has to
    come, and each gets one message at least; what one does not use goes to those after it."""
    if max_messages is None and max_bytes is None:
        return {key: max(start[key], tail[key]) for key in tail}
    lags = {key: tail[key] - start[key] for key in sorted(tail) if tail[key] > start[key]}
    end = dict(start)
    left = sum(lags.values())
    messages, size = max_messages, max_bytes
    for key, lag in sorted(lags.items(), key=lambda each: (each[1], each[0])):
        share = lag / left
        reach = advance(
            key,
            start[key],
            tail[key],
            None if messages is None else max(1, int(messages * share)),
            None if size is None else max(1, int(size * share)),
        )
        end[key] = reach.end
        left -= lag
        messages = None if messages is None else max(0, messages - reach.count)
        size = None if size is None else max(0, size - reach.size)
    return end


def lost(start: Offset, tail: Offset, floor: Offset) -> list[str]:
    """What cannot be read as it was: a sentence for each key."""
    found = []
    for key, position in sorted(start.items()):
        if key not in tail:
            found.append(f"'{key}' is not there any more.")
        elif position > tail[key]:
            found.append(
                f"'{key}' ends at {tail[key]}, before {position}: it was deleted and made anew."
            )
        elif position < floor.get(key, 0):
            found.append(f"The tap of '{key}' has let go of what came before {floor[key]}.")
    return found
