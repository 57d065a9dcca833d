"""What the engine counts. Plain numbers that cost an addition; who shows them is another's
affair."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

COMMIT_MS_BOUNDS: Final = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the buckets of `commit_ms`; one more bucket is for everything above."""
GROUP_BYTES_BOUNDS: Final = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)

NS_PER_MS: Final = 1_000_000


class Metrics:
    """Counters only grow; `staged_bytes` and the like are asked of the engine itself."""

    def __init__(self) -> None:
        self.commands = 0
        self.released = 0
        """Outcomes whose answer and effects went out."""
        self.refused: Counter[str] = Counter()
        """By AMQP condition."""
        self.records = 0
        self.commits = 0
        self.committed_bytes = 0
        self.commit_ns = 0
        self.commit_ms = [0] * (len(COMMIT_MS_BOUNDS) + 1)
        self.group_bytes = [0] * (len(GROUP_BYTES_BOUNDS) + 1)
        self.bodies_read = 0
        """From the store: neither staged nor in the cache."""
        self.bodies_moved = 0
        self.indexes_saved = 0
        self.index_bytes = 0
        """Of the last one."""

    def committed(self, size: int, elapsed_ns: int) -> None:
        self.commits += 1
        self.committed_bytes += size
        self.commit_ns += elapsed_ns
        self.commit_ms[bisect_left(COMMIT_MS_BOUNDS, elapsed_ns / NS_PER_MS)] += 1
        self.group_bytes[bisect_left(GROUP_BYTES_BOUNDS, size)] += 1
