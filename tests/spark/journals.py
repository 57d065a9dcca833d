"""Journals made up for tests and benchmarks: a shop with priorities, failures and an outage.

Everything follows from a seed, so a test knows what must come out. The columns are those of
`tandembus.journal.schema`; tests/journal makes the same tables from real brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandembus.journal.schema import KINDS, arrow_schema

BEGIN = datetime(2026, 10, 3, 14, 10, tzinfo=UTC)
DELTAS = {kind.name: kind.delta for kind in KINDS}
ROWS_A_FILE = 1_000_000


@dataclass
class Shop:
    """`messages` over `seconds`; every part of it is a share of them."""

    messages: int = 2_000
    seconds: int = 1_800
    seed: int = 1
    returned: float = 0.04
    dead: float = 0.01
    expired: float = 0.01
    outage: tuple[float, float] | None = (0.5, 0.65)
    """Of the time, when sends to `orders` go around."""
    begin_ms: int = int(BEGIN.timestamp() * 1000)
    before: int = 0
    """How many messages came before: a long journal is made of several, one after the other."""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, count: int, kind: str, time: Any, entity: str, **columns: Any) -> None:
        """So many events of a kind; what is not said is null."""
        namespace = columns.pop("namespace", "shop")
        self.parts.append(
            {"count": count, "kind": kind, "time": time, "entity": entity,
             "namespace": namespace, **columns}
        )  # fmt: skip

    # --- the story ----------------------------------------------------------------------------

    def make(self) -> Shop:
        rng = np.random.default_rng(self.seed)
        share = {"orders": 0.6, "mail": 0.3, "events/Subscriptions/billing": 0.1}
        for number, (entity, part) in enumerate(share.items()):
            self._queue(rng, entity, int(self.messages * part), 2 * number + 2)
        self._outage(rng, int(self.messages * 0.1))
        return self

    def _queue(self, rng: Any, entity: str, count: int, entity_id: int) -> None:
        span_ms = self.seconds * 1000
        time = np.sort(self.begin_ms + (rng.random(count) ** 0.9 * span_ms).astype("i8"))
        level = rng.choice(3, count, p=(0.5, 0.3, 0.2)) if entity == "orders" else np.zeros(count)
        level = level.astype("i1")
        size = rng.integers(200, 4_000, count).astype("i4")
        size[rng.random(count) < 0.01] = 150_000
        # The lowest level waits long in the busy middle of the time.
        busy = np.exp(-(((time - self.begin_ms) / span_ms - 0.5) ** 2) / 0.02)
        wait = rng.gamma(2, 40 + 4_000 * busy * (level == 0) + 300 * busy, count).astype("i8")
        lock = rng.gamma(2, 60, count).astype("i8") + 1
        first = int(self.before * count / max(1, self.messages))
        numbers = np.arange(first + 1, first + count + 1)
        common = {"entity_id": entity_id, "entity_kind": _kind(entity), "sequence_number": numbers,
                  "level": level, "size": size, "enqueued_time": time}  # fmt: skip
        ids = np.array([f"{entity}-{number}" for number in numbers], dtype=object)
        bodies = numbers + entity_id * 1_000_000_000
        sent = {"link": 7, "message_id": ids, "body": bodies}
        if "/" in entity:
            topic = {**common, "entity_id": 20, "entity_kind": "topic"}
            self.add(count, "accepted", time, entity.partition("/")[0], **topic, **sent)
            self.add(count, "copied", time, entity, body=bodies, **common)
            self.add(count, "published", time, entity.partition("/")[0], body=bodies, **topic)
        else:
            self.add(count, "accepted", time, entity, **common, **sent)
        kind = rng.choice(
            4, count, p=(1 - self.returned - self.dead - self.expired, self.returned, self.dead,
                         self.expired),
        )  # fmt: skip
        again = np.zeros(count, "i8")
        for _ in range(2):  # dead letters are tried twice in vain, the others once
            chosen = (kind == 2) | ((kind == 1) & (_ == 0))
            self._tried(rng, entity, chosen, time + wait + again, lock, wait + again, _ + 1, common)
            again = again + chosen * (lock + 200)
        done = kind <= 1
        count_of = np.where(kind == 1, 2, 1).astype("i4")
        at = time + wait + again
        self._some(entity, "delivered", done, at, common, wait_ms=wait + again,
                   delivery_count=count_of, link=9)  # fmt: skip
        self._some(entity, "completed", done, at + lock, common, wait_ms=wait + again,
                   lock_ms=lock, delivery_count=count_of, link=9)  # fmt: skip
        dead = kind == 2
        self._some(entity, "dead_lettered", dead, at, common, wait_ms=wait + again,
                   reason="MaxDeliveryCountExceeded", delivery_count=2,
                   detail="no such customer")  # fmt: skip
        buried = {**common, "entity_kind": "dead_letter", "entity_id": entity_id + 1}
        self._some(f"{entity}/$DeadLetterQueue", "buried", dead, at, buried,
                   reason="MaxDeliveryCountExceeded")  # fmt: skip
        self._some(entity, "expired", kind == 3, time + 60_000, common, wait_ms=60_000)
        polls = np.sort(self.begin_ms + (rng.random(max(1, count // 20)) * span_ms).astype("i8"))
        self.add(len(polls), "polled", polls, entity, entity_id=entity_id,
                 entity_kind=_kind(entity), link=9)  # fmt: skip

    def _tried(self, rng: Any, entity: str, chosen: Any, at: Any, lock: Any, wait: Any,
               number: int, common: dict[str, Any]) -> None:  # fmt: skip
        self._some(entity, "delivered", chosen, at, common, wait_ms=wait, delivery_count=number,
                   link=9)  # fmt: skip
        self._some(entity, "abandoned", chosen, at + lock, common, wait_ms=wait, lock_ms=lock,
                   delivery_count=number, link=9)  # fmt: skip

    def _some(self, entity: str, kind: str, chosen: Any, time: Any, common: dict[str, Any],
              **more: Any) -> None:  # fmt: skip
        columns = {
            name: value[chosen] if isinstance(value, np.ndarray) else value
            for name, value in {**common, **more}.items()
        }
        at = time[chosen]
        self.add(len(at), kind, at, entity, **columns)

    def _outage(self, rng: Any, count: int) -> None:
        if self.outage is None or not count:
            return
        span_ms = self.seconds * 1000
        first, last = (int(self.begin_ms + part * span_ms) for part in self.outage)
        for place in range(2):
            own = count // 2
            entity = f"shop/x-servicebus-transfer/{place}"
            time = np.sort(rng.integers(first, last, own))
            # The syphon brings them home after the end of the outage, at an even rate.
            home = last + 5_000 + (np.arange(own) * (span_ms * 0.1 / max(1, own))).astype("i8")
            common = {"namespace": "shop-2", "entity_id": 50 + 2 * place, "entity_kind": "queue",
                      "sequence_number": np.arange(1, own + 1) + self.before // 20, "level": 0,
                      "size": rng.integers(200, 4_000, own).astype("i4"),
                      "enqueued_time": time, "destination": "orders"}  # fmt: skip
            everything = np.ones(own, bool)
            self._some(entity, "accepted", everything, time, common, link=3)
            self._some(entity, "delivered", everything, home, common, wait_ms=home - time,
                       delivery_count=1, link=4)  # fmt: skip
            self._some(entity, "completed", everything, home + 20, common, wait_ms=home - time,
                       lock_ms=20, delivery_count=1, link=4)  # fmt: skip
        pings = np.arange(first, last, 60_000)
        self.add(len(pings), "pinged", pings, "orders", entity_id=2, entity_kind="queue")

    # --- the files ----------------------------------------------------------------------------

    @property
    def events(self) -> int:
        return sum(part["count"] for part in self.parts)

    def counts(self, kind: str) -> dict[str, int]:
        """Events of a kind, by entity."""
        found: dict[str, int] = {}
        for part in self.parts:
            if part["kind"] == kind:
                found[part["entity"]] = found.get(part["entity"], 0) + part["count"]
        return found

    def write(self, folder: Path, rows_a_file: int = ROWS_A_FILE) -> Path:
        """As the journal lies on disk."""
        for namespace in sorted({part["namespace"] for part in self.parts}):
            parts = [
                part for part in self.parts if part["namespace"] == namespace and part["count"]
            ]
            self._write(folder, namespace, parts, rows_a_file)
        return folder

    def _write(self, folder: Path, namespace: str, parts: list[dict[str, Any]], rows: int) -> None:
        tables = [_table(part) for part in parts]
        table = pa.concat_tables(tables).sort_by("time")
        place = pa.array(np.arange(table.num_rows) * 100 + self.before * 1_000)
        table = table.set_column(table.schema.get_field_index("place"), "place", place)
        hours = np.asarray(table["time"].cast(pa.int64())) // 3_600_000
        edges = [0, *(np.flatnonzero(np.diff(hours)) + 1), table.num_rows]
        for begin, end in pairwise(edges):
            hour = datetime.fromtimestamp(int(hours[begin]) * 3600, UTC).strftime("%Y-%m-%dT%H")
            target = folder / f"namespace={namespace}" / f"hour={hour}"
            target.mkdir(parents=True, exist_ok=True)
            for number, at in enumerate(range(begin, end, rows)):
                piece = table.slice(at, min(rows, end - at))
                pq.write_table(piece, target / f"{self.before:010d}-{number:05d}.parquet")


def long_journal(folder: Path, events: int, piece: int = 1_000_000) -> int:
    """So many events, or a few more, in pieces of so many; how many there are."""
    made, before = 0, 0
    messages = max(20, piece * 100 // 362)  # a message has 3.66 events
    messages -= messages % 20
    begin_ms = Shop.begin_ms
    while made < events:
        shop = Shop(messages=messages, seed=made, before=before, begin_ms=begin_ms)
        made += shop.make().events
        shop.write(folder)
        before += messages
        begin_ms += shop.seconds * 1000 + 180_000
    return made


def _kind(entity: str) -> str:
    return "subscription" if "/Subscriptions/" in entity else "queue"


def _table(part: dict[str, Any]) -> pa.Table:
    schema, count = arrow_schema(), part["count"]
    columns = {"row": 0, "stretch": 1, "delta": DELTAS.get(part["kind"], 0), "operations": 1,
               **{name: value for name, value in part.items() if name in schema.names}}  # fmt: skip
    arrays = []
    for each in schema:
        value = columns.get(each.name)
        plain = each.type.value_type if pa.types.is_dictionary(each.type) else each.type
        if isinstance(value, np.ndarray):
            array = pa.array(value)
            if pa.types.is_timestamp(plain):
                array = array.cast(pa.int64())
            array = array.cast(plain)
        else:
            array = pa.repeat(pa.scalar(value, plain), count)
        arrays.append(array if array.type == plain else array.cast(plain))
    plain_schema = pa.schema(
        [(each.name, each.type.value_type if pa.types.is_dictionary(each.type) else each.type)
         for each in schema]
    )  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=plain_schema)
