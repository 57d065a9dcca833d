"""What a broker itself has written down: every operation, read from its log."""

from __future__ import annotations

from collections import Counter

from tandembus.changes import DELIVERED_ROW, Delivered, Enqueued, EntityCreated, Note, Noted
from tandembus.store.api import Store
from tandembus.store.records import decode_group


def accounts(store: Store) -> Counter[tuple[str, str]]:
    """(path, what) → how often: `sent`, `delivered`, `pinged`, `browsed`, `dropped` as a duplicate.
    The broker must be stopped."""
    counts: Counter[tuple[str, str]] = Counter()
    paths: dict[int, str] = {}
    for group in store.replay(store.start):
        for change, _ in decode_group(group.body, place=group.place):
            match change:
                case EntityCreated():
                    paths[change.entity] = change.path
                case Enqueued():
                    counts[paths[change.entity], "sent"] += 1
                case Delivered():
                    rows = len(change.rows) // DELIVERED_ROW.size
                    counts[paths[change.entity], "delivered"] += rows
                case Noted(note=Note.PINGED):
                    counts[paths[change.entity], "pinged"] += 1
                case Noted(note=Note.BROWSED):
                    counts[paths[change.entity], "browsed"] += 1
                case Noted(note=Note.DUPLICATE_DROPPED):
                    counts[paths[change.entity], "dropped"] += 1
    return counts
