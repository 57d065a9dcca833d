"""A waiting message costs bytes, not objects."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tandembus.core.commands import CreateQueue, Send
from tandembus.core.namespace import Namespace
from tandembus.settings import PrioritySettings, QueueSettings
from tests.unit.core.world import START, message

COUNT = 8_000


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (QueueSettings(), 48),
        (QueueSettings(default_ttl_ms=60_000), 60),
        (QueueSettings(priority=PrioritySettings(levels=3)), 60),
    ],
    ids=["plain", "with a life", "with levels"],
)
def test_bytes_a_message(settings: QueueSettings, most: int) -> None:
    """What core keeps of a message of 1 KB, be it one or a million: a row in columns of numbers,
    and the columns' room to grow."""
    namespace = Namespace()
    namespace.apply(CreateQueue("q", settings), START)
    batch = [message(b"x" * 1_000)] * 1_000
    namespace.apply(Send("q", batch), START)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(COUNT // len(batch)):
        namespace.apply(Send("q", batch), START)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / COUNT <= most


def test_nothing_is_kept_by_message() -> None:
    """No lock, no edit, no timer, no session: these are for messages that have one."""
    namespace = Namespace()
    namespace.apply(CreateQueue("q"), START)
    namespace.apply(Send("q", [message("x")] * 4_000), START)
    queue = namespace.find("q")
    assert not queue.locks
    assert not queue.edits
    assert not queue.scheduled
    assert not queue.loading
    assert queue.sessions is None
    assert len(queue.duplicates) == 0
