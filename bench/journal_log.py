"""A log as a busy broker writes it, at the speed of the disk: for benchmarks of what reads logs.

The records are the broker's own (`changes`, `store.records`): in each group some messages come, are
delivered, and are completed, over several queues and levels.
"""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path

from tandembus.amqp.message import encode_message
from tandembus.changes import (
    DELIVERED_ROW,
    Delivered,
    Enqueued,
    EntityCreated,
    EntityKind,
    Mode,
    Removal,
    Removed,
    Started,
)
from tandembus.model import NEVER
from tandembus.settings import QueueSettings
from tandembus.store.files import FileStore
from tandembus.store.records import encode

START_MS = 1_790_000_000_000


def write_log(
    folder: Path,
    messages: int,
    *,
    size: int = 1_024,
    group: int = 100,
    queues: int = 4,
    step_ms: int = 7,
    left: int = 0,
) -> int:
    """Every message sent, delivered and completed: three events each; but `left` of each group are
    not. Returns the bytes of log."""
    store = FileStore(folder)
    settings = json.dumps(QueueSettings().to_json())
    first = [encode(Started(START_MS, "bench"))]
    for queue in range(queues):
        entity = 2 * queue + 1
        created = EntityCreated(
            START_MS, entity, EntityKind.QUEUE, 0, 0, f"orders-{queue}", settings
        )
        first.append(encode(created))
    store.append(first)
    ident = str(uuid.UUID(int=0)).encode()
    payload = encode_message(body=b"x" * size, message_id=ident.decode())
    at = payload.index(ident)
    head, tail = payload[:at], payload[at + len(ident) :]
    body = 1
    lasts = [0] * queues
    time = START_MS
    while body <= messages:
        queue = body // group % queues
        entity = 2 * queue + 1
        count = min(group, messages + 1 - body)
        numbers = range(lasts[queue] + 1, lasts[queue] + 1 + count)
        lasts[queue] += count
        time += step_ms
        records = []
        for number in numbers:
            name = f"{body:08x}-0000-4000-8000-{number:012x}".encode()
            records.append(
                encode(
                    Enqueued(
                        time, entity, number, body, 0, NEVER, 0, len(payload), body & 3, 0, 0, 7,
                        None, None, None, head + name + tail,
                    )
                )
            )  # fmt: skip
            body += 1
        rows = b"".join(DELIVERED_ROW.pack(n, n, len(payload), 0, n & 3) for n in numbers)
        records.append(encode(Delivered(time + 3, entity, 9, Mode.PEEK_LOCK, time + 60_003, rows)))
        gone = numbers[left:]
        done = struct.pack(f"<{len(gone)}Q", *gone)
        records.append(encode(Removed(time + 5, entity, Removal.COMPLETED, done)))
        store.append(records)
    end = store.end
    store.close()
    return end
