"""What became of everything that was sent through the outages, and the table of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tandembus.client import Client, ReceivedMessage, ReceiveMode
from tests.pairing.lines import SESSIONS, Line, meant

PATIENCE_S: Final = 60.0
MOST_SHOWN: Final = 30


@dataclass
class Row:
    """Of the entities of one kind."""

    entities: int = 0
    sent: int = 0
    arrived: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    out_of_order: int = 0
    early: int = 0
    """Before the time for which they were scheduled."""

    def add(self, other: Row) -> None:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Report:
    faults: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    failovers: int = 0
    refusals: int = 0
    """Sends that raised, and were made again by their callers."""
    backlog_sends: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    """By kind."""
    wrong: list[str] = field(default_factory=list)

    @property
    def is_broken(self) -> bool:
        return bool(self.wrong)

    @property
    def total(self) -> Row:
        total = Row()
        for row in self.rows.values():
            total.add(row)
        return total

    def table(self) -> str:
        backlog = self.faults["backlog queue"]
        outages = sum(self.faults.values()) - backlog
        faults = ", ".join(
            f"{count} {kind}"
            for kind, count in sorted(self.faults.items())
            if kind != "backlog queue"
        )
        text = [f"VIOLATION: {wrong}" for wrong in self.wrong[:MOST_SHOWN]]
        text += [
            f"{outages} outages ({faults}), {backlog} with a failing backlog queue, the syphon "
            f"killed {self.kills} times",
            f"{self.failovers} failovers, {self.backlog_sends:,} messages through backlogs, "
            f"{self.refusals:,} sends raised and were made again",
            f"{'kind':18}{'entities':>9}{'sent':>9}{'arrived':>9}{'lost':>6}{'doubled':>9}"
            f"{'changed':>9}{'out of order':>14}{'early':>7}",
        ]
        for kind, row in [*self.rows.items(), ("all", self.total)]:
            text.append(
                f"{kind:18}{row.entities:>9}{row.sent:>9,}{row.arrived:>9,}{row.lost:>6}"
                f"{row.doubled:>9}{row.changed:>9}{row.out_of_order:>14}{row.early:>7}"
            )
        off = sum(row.doubled for kind, row in self.rows.items() if kind == "twice")
        text += [
            f"doubled where duplicates are detected: {self.total.doubled - off} (must be 0), where "
            f"they are not ('twice'): {off}",
            f"{len(self.wrong)} violations",
        ]
        return "\n".join(text)


def judge(report: Report, lines: Sequence[Line], connection_string: str) -> None:
    """Read everything back from the primary, and compare."""
    for line in lines:
        row = _judged(report, line, _received(line, connection_string))
        report.rows.setdefault(line.kind, Row()).add(row)


def _judged(report: Report, line: Line, got: Sequence[ReceivedMessage]) -> Row:
    names = [str(each.message_id) for each in got]
    first = dict.fromkeys(names)
    row = Row(entities=1, sent=len(line.sent), arrived=len(first), doubled=len(got) - len(first))
    if lost := line.sent.keys() - first.keys():
        row.lost = len(lost)
        report.wrong.append(f"{line.path}: {len(lost)} lost, as {min(lost)}")
    if strange := first.keys() - line.sent.keys():
        report.wrong.append(f"{line.path}: {len(strange)} that nobody sent, as {min(strange)}")
    if row.doubled and line.detects_duplicates:
        double = next(name for name, count in Counter(names).items() if count > 1)
        report.wrong.append(f"{line.path}: {row.doubled} doubles, as {double}")
    for name, each in zip(names, got, strict=True):
        said, expected = meant(each.payload), line.sent.get(name)
        if expected is not None and said != expected:
            row.changed += 1
            report.wrong.append(f"{name} has changed: {said} was {expected}")
        if name in line.due and each.enqueued_ms < line.due[name].timestamp() * 1000:
            row.early += 1
            report.wrong.append(f"{name} came before {line.due[name]}")
    if line.has_sessions:
        last: dict[str, int] = {}
        for name in first:
            stream, _, number = name.rpartition("/")
            if int(number) < last.get(stream, -1):
                row.out_of_order += 1
                report.wrong.append(f"{name} came after {last[stream]}")
            last[stream] = max(int(number), last.get(stream, -1))
    return row


def _received(line: Line, connection_string: str) -> list[ReceivedMessage]:
    """All that the entity has, until it says that it has nothing. What is missing gets time: a
    schedule, a machine that is busy."""
    path = f"{line.path}/Subscriptions/all" if line.is_topic else line.path
    found: list[ReceivedMessage] = []
    wanted = set(line.sent)
    deadline = time.monotonic() + PATIENCE_S
    with Client(connection_string) as client:
        while (wanted and time.monotonic() < deadline) or _waiting(client, line):
            for session in SESSIONS if line.has_sessions else (None,):
                with client.receiver(
                    path, session=session, mode=ReceiveMode.RECEIVE_AND_DELETE
                ) as receiver:
                    while some := receiver.receive(500, wait_s=0.2):
                        found += some
                        wanted.difference_update(str(each.message_id) for each in some)
    return found


def _waiting(client: Client, line: Line) -> int:
    entities = client.entities
    if line.is_topic:
        return entities.get_subscription(line.path, "all").counts["ActiveMessageCount"]
    return entities.get_queue(line.path).counts["ActiveMessageCount"]
