"""A pair of real servers through real outages: `python -m tests.pairing.outage --count 200`.

Senders on 20 entities (queues, topics, sessions, schedules, times to live) while the primary is
killed, frozen, cut off, silent, or refuses; backlog queues refuse at times too; the syphon, a
process of its own, is killed again and again. At the end everything is read back and judged: lost,
doubled, changed, out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem.amqp.message import sections
from tandem.amqp.types import decode
from tandem.client import Client, ReceivedMessage, ReceiveMode
from tandem.errors import TandemError
from tandem.pairing import Health, PairingOptions, wire
from tandem.pairing import aio as paired_aio
from tandem.pairing import blocking as paired_blocking
from tandem.pairing.options import backlog_path
from tandem.testing import BrokerProcess
from tests.pairing.turnstile import Turnstile, Way

NAME: Final = "outage"
QUEUES: Final = 3
SESSIONS: Final = ("red", "green", "blue")
PATIENCE_S: Final = 300
FAULTS: Final = ("kill", "freeze", "cut", "silence", "refuse")
KINDS: Final = ("plain", "twice", "session", "topic", "later", "mortal", "blocking")


@dataclass
class Line:
    """One entity, its sender, and what it was told."""

    path: str
    kind: str
    sent: dict[str, Any] = field(default_factory=dict)
    """Id → what was meant, in the order in which the sends were taken."""

    @property
    def detects_duplicates(self) -> bool:
        return self.kind != "twice"

    @property
    def is_ordered(self) -> bool:
        return self.kind == "session"


def lines() -> list[Line]:
    """20 entities."""
    counts = {
        "plain": 5, "twice": 2, "session": 5, "topic": 3, "later": 2, "mortal": 2, "blocking": 1,
    }  # fmt: skip
    return [Line(f"{kind}-{n}", kind) for kind in KINDS for n in range(counts[kind])]


def message(line: Line, number: int) -> ServiceBusMessage:
    session = SESSIONS[number % len(SESSIONS)] if line.kind == "session" else None
    made = ServiceBusMessage(
        os.urandom(20) + f"{number}".encode(),
        message_id=f"{line.path}/{session}/{number}",
        session_id=session,
        subject=f"subject {number}",
        correlation_id=f"{number % 7}",
        application_properties={"number": number, "text": "Grüße", "half": number / 2, "yes": True},
    )
    if line.kind == "later":
        made.scheduled_enqueue_time_utc = datetime.now(UTC) + timedelta(seconds=number % 4)
    elif line.kind == "mortal":
        made.time_to_live = timedelta(hours=5)
    return made


def meant(payload: bytes) -> dict[str, Any]:
    """All that a message says, byte for byte; but what a broker writes, and the time at which the
    SDK encoded it, are left out."""
    said: dict[str, Any] = {"body": b""}
    for code, start, end in sections(payload):
        value, _ = decode(payload, start + 3, typed=True) if code < 0x75 else (None, 0)
        if code == 0x70:
            assert isinstance(value, list)
            said["header"] = [*value, *[None] * 5][:4]
        elif code == 0x72:
            assert isinstance(value, dict)
            marks = {name: it for name, it in value.items() if name in ("x-opt-partition-key",)}
            said["annotations"] = marks
        elif code == 0x73:
            assert isinstance(value, list)
            fields = [*value, *[None] * 13][:13]
            fields[8:10] = [None, None]
            said["properties"] = [(type(each), each) for each in fields]
        elif code >= 0x74:
            said["body"] += payload[start:end]
    if not any(said.get("header", ())):
        said.pop("header", None)
    said["annotations"] = said.get("annotations") or {}
    return said


@dataclass
class Report:
    sent: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    failovers: int = 0
    backlog_sends: int = 0
    doubles: int = 0
    wrong: list[str] = field(default_factory=list)


class Outage:
    def __init__(self, seed: int, folder: Path, pace_s: float) -> None:
        self.random = random.Random(seed)
        self.pace_s = pace_s
        self.report = Report()
        self.lines = lines()
        self.is_over = False
        self.primary = BrokerProcess.start(
            folder / "primary", ["--emulator", "--port", str(_free_port())]
        )
        self.secondary = BrokerProcess.start(folder / "secondary", ["--emulator", "--test-clock"])
        self.turnstile = Turnstile(self.primary.port)
        self.way_in = self.primary.connection_string.replace(
            self.primary.address, f"127.0.0.1:{self.turnstile.port}"
        )
        self.syphon: subprocess.Popen[bytes] | None = None
        self.syphon_log = folder / "syphon.log"
        self._make_entities()

    def _make_entities(self) -> None:
        window = "P1D"
        for line in self.lines:
            if line.kind == "topic":
                self.primary.create_topic(
                    line.path,
                    DuplicateDetectionHistoryTimeWindow=window,
                    RequiresDuplicateDetection=True,
                )
                self.primary.create_subscription(line.path, "all")
                continue
            settings: dict[str, Any] = {"RequiresSession": line.kind == "session"}
            if line.detects_duplicates:
                settings["DuplicateDetectionHistoryTimeWindow"] = window
            self.primary.create_queue(
                line.path, RequiresDuplicateDetection=line.detects_duplicates, **settings
            )

    def options(self, *, ordered: bool) -> PairingOptions:
        return PairingOptions(
            backlog_queue_count=QUEUES,
            primary_name=NAME,
            failover_interval=timedelta(seconds=self.random.choice([0, 0, 1])),
            ping_primary_interval=timedelta(seconds=1),
            backlog_retry_interval=timedelta(seconds=3),
            return_check_interval=timedelta(milliseconds=500),
            ordered_return=ordered,
            send_timeout=timedelta(seconds=3),
            client_options={"retry_total": 0},
        )

    # --- senders ----------------------------------------------------------------------------------

    async def send(self, bus: paired_aio.PairedNamespace, line: Line) -> None:
        is_topic = line.kind == "topic"
        sender = bus.get_topic_sender(line.path) if is_topic else bus.get_queue_sender(line.path)
        number = 0
        while not self.is_over:
            await asyncio.sleep(self.random.expovariate(1 / self.pace_s))
            made = message(line, number)
            expected = meant(wire.encoded([made])[0])
            while True:
                try:
                    await sender.send_messages(made)
                    break
                except (ServiceBusError, OSError):
                    await asyncio.sleep(0.2)
            line.sent[str(made.message_id)] = expected
            number += 1

    def send_blocking(self, bus: paired_blocking.PairedNamespace, line: Line) -> None:
        sender = bus.get_queue_sender(line.path)
        number = 0
        while not self.is_over:
            time.sleep(self.random.expovariate(1 / self.pace_s))
            made = message(line, number)
            expected = meant(wire.encoded([made])[0])
            while True:
                try:
                    sender.send_messages(made)
                    break
                except (ServiceBusError, OSError):
                    time.sleep(0.2)
            line.sent[str(made.message_id)] = expected
            number += 1

    # --- faults -----------------------------------------------------------------------------------

    def fault(self, kind: str) -> None:
        """Do it, wait, and mend it."""
        self.report.faults[kind] += 1
        length_s = self.random.choice([0.1, 0.5, 1.5, 4.0])
        process = self.primary.process
        match kind:
            case "kill":
                self.primary.kill()
                time.sleep(length_s)
                self.primary.restart()
            case "freeze":
                process.send_signal(signal.SIGSTOP)
                time.sleep(length_s)
                process.send_signal(signal.SIGCONT)
            case "cut" | "silence":
                self.turnstile.turn(Way.CUT if kind == "cut" else Way.SILENT)
                time.sleep(length_s)
                self.turnstile.turn(Way.OPEN)
            case "refuse":
                some = self.random.sample(self.lines, 5)
                for line in some:
                    self._set_status(self.primary, line, "Disabled")
                time.sleep(length_s)
                for line in some:
                    self._set_status(self.primary, line, "Active")

    def _set_status(self, broker: BrokerProcess, line: Line, status: str) -> None:
        entities = Client(broker.connection_string).entities
        change = entities.update_topic if line.kind == "topic" else entities.update_queue
        _insist(lambda: change(line.path, Status=status))

    def backlog_fault(self) -> None:
        """A backlog queue refuses, with the primary cut off so that it is in use."""
        self.report.faults["backlog"] += 1
        entities = Client(self.secondary.connection_string).entities
        path = backlog_path(NAME, self.random.randrange(QUEUES))
        self.turnstile.turn(Way.CUT)
        time.sleep(1.0)
        _insist(lambda: entities.update_queue(path, Status="SendDisabled"))
        time.sleep(self.random.choice([0.5, 2.0]))
        _insist(lambda: entities.update_queue(path, Status="Active"))
        self.turnstile.turn(Way.OPEN)

    # --- the syphon -------------------------------------------------------------------------------

    def start_syphon(self) -> None:
        command = [sys.executable, "-m", "tandem.cli", "syphon", "--queues", str(QUEUES)]
        log = self.syphon_log.open("ab")
        self.syphon = subprocess.Popen(
            [*command, "--name", NAME, "--every", "5", "--verbose"],
            env={
                **os.environ,
                "TANDEM_PRIMARY": self.way_in,
                "TANDEM_SECONDARY": self.secondary.connection_string,
            },
            stdout=log,
            stderr=log,
        )
        log.close()

    def kill_syphon(self) -> None:
        """And let the time pass until its locks have ended."""
        assert self.syphon is not None
        self.syphon.kill()
        self.syphon.wait()
        self.report.kills += 1
        self.secondary.clock.advance(seconds=61)
        self.start_syphon()

    # --- the whole --------------------------------------------------------------------------------

    async def run(self, count: int, kills: int, say: Callable[[str], None]) -> Report:
        ordered = await self._pair(ordered=True)
        others = await self._pair(ordered=False)
        self.start_syphon()
        senders = [
            asyncio.create_task(self.send(ordered if line.is_ordered else others, line))
            for line in self.lines
            if line.kind != "blocking"
        ]
        bus = await asyncio.to_thread(
            paired_blocking.pair_namespace,
            self.way_in,
            self.secondary.connection_string,
            self.options(ordered=False),
        )
        threads = [
            threading.Thread(target=self.send_blocking, args=(bus, line), daemon=True)
            for line in self.lines
            if line.kind == "blocking"
        ]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(self._weather, count, kills, say)
        self.is_over = True
        await asyncio.gather(*senders)
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
        say("the senders have ended; waiting until all is home")
        await self._come_home([ordered, others, bus], say)
        for each in (ordered, others, bus):
            self.report.backlog_sends += each.ledger.total().backlog_sends
            changes = each._pair.heart.changes
            self.report.failovers += sum(
                times for (_, now), times in changes.items() if now is Health.FAILED_OVER
            )
        await ordered.close()
        await others.close()
        await asyncio.to_thread(bus.close)
        await asyncio.to_thread(self._judge)
        return self.report

    async def _pair(self, *, ordered: bool) -> paired_aio.PairedNamespace:
        return await paired_aio.pair_namespace(
            self.way_in, self.secondary.connection_string, self.options(ordered=ordered)
        )

    def _weather(self, count: int, kills: int, say: Callable[[str], None]) -> None:
        for number in range(count):
            time.sleep(self.random.uniform(0.2, 1.5))
            if number % 10 == 9:
                self.backlog_fault()
            else:
                self.fault(FAULTS[self.random.randrange(len(FAULTS))])
            if self.report.kills < kills and (number + 1) * kills // count > self.report.kills:
                time.sleep(self.random.uniform(0.0, 1.0))
                self.kill_syphon()
            if (number + 1) % 20 == 0:
                sent = sum(len(line.sent) for line in self.lines)
                say(f"{number + 1} faults, {self.report.kills} kills, {sent:,} messages sent")

    async def _come_home(self, buses: list[Any], say: Callable[[str], None]) -> None:
        entities = Client(self.secondary.connection_string).entities
        deadline = time.monotonic() + PATIENCE_S
        moved = time.monotonic()
        while True:
            depths = [
                (await asyncio.to_thread(entities.get_queue, backlog_path(NAME, n))).counts
                for n in range(QUEUES)
            ]
            waiting = sum(each["ActiveMessageCount"] for each in depths)
            is_healthy = all(
                each.health is Health.HEALTHY for bus in buses for each in bus.status().entities
            )
            if not waiting and is_healthy:
                break
            if time.monotonic() - moved > 20:  # locks of a syphon that was killed
                await asyncio.to_thread(self.secondary.clock.advance, seconds=61)
                moved = time.monotonic()
                say(f"{waiting:,} are still in the backlog")
            if time.monotonic() > deadline:
                self.report.wrong.append(f"{waiting} messages do not come home")
                text = self.syphon_log.read_text(encoding="utf-8", errors="replace")
                print("\n".join(text.splitlines()[-40:]))
                break
            await asyncio.sleep(0.2)
        for index, depth in enumerate(depths):
            if depth["DeadLetterMessageCount"]:
                self.report.wrong.append(f"dead letters in backlog queue {index}: {depth}")

    # --- the judge --------------------------------------------------------------------------------

    def _judge(self) -> None:
        time.sleep(5)  # the last scheduled ones
        for line in self.lines:
            got = self._received(line)
            names = [str(each.message_id) for each in got]
            counts = Counter(names)
            self.report.sent += len(line.sent)
            if lost := line.sent.keys() - counts.keys():
                self.report.wrong.append(f"{line.path}: {len(lost)} lost, as {min(lost)}")
            doubles = len(names) - len(counts)
            if doubles and line.detects_duplicates:
                self.report.wrong.append(f"{line.path}: {doubles} doubles")
            self.report.doubles += doubles
            for each in got:
                expected = line.sent.get(str(each.message_id))
                if expected is not None and meant(each.payload) != expected:
                    self.report.wrong.append(f"{each.message_id!r} has changed")
            if line.is_ordered:
                self._judge_order(line, list(dict.fromkeys(names)))

    def _judge_order(self, line: Line, names: list[str]) -> None:
        last: dict[str, int] = {}
        for name in names:
            stream, _, number = name.rpartition("/")
            if int(number) < last.get(stream, -1):
                self.report.wrong.append(f"{name} came after {last[stream]}")
            last[stream] = int(number)

    def _received(self, line: Line) -> list[ReceivedMessage]:
        path = f"{line.path}/Subscriptions/all" if line.kind == "topic" else line.path
        found: list[ReceivedMessage] = []
        with Client(self.primary.connection_string) as client:
            for session in SESSIONS if line.kind == "session" else (None,):
                with client.receiver(
                    path, session=session, mode=ReceiveMode.RECEIVE_AND_DELETE
                ) as receiver:
                    while some := receiver.receive(500, wait_s=1.0):
                        found += some
        return found

    def close(self) -> None:
        if self.syphon is not None:
            self.syphon.kill()
            self.syphon.wait()
        self.turnstile.close()
        for broker in (self.primary, self.secondary):
            if broker.process.poll() is None:
                broker.process.send_signal(signal.SIGCONT)
                broker.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _insist(action: Callable[[], Any]) -> None:
    for _ in range(50):
        with suppress(TandemError, OSError):
            action()
            return
        time.sleep(0.2)
    raise RuntimeError("the broker does not answer")


def outage(
    seed: int, count: int, kills: int, pace_s: float, say: Callable[[str], None] = print
) -> Report:
    with tempfile.TemporaryDirectory(prefix="tandem-outage-") as name:
        story = Outage(seed, Path(name), pace_s)
        try:
            return asyncio.run(story.run(count, kills, say))
        finally:
            story.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="outages (200)")
    parser.add_argument("--kills", type=int, default=100, help="of the syphon (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.2, help="seconds between sends (0.2)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begin = time.perf_counter()
    report = outage(
        options.seed,
        options.count,
        options.kills,
        options.pace,
        lambda text: print(text, flush=True),
    )
    for wrong in report.wrong[:30]:
        print(f"VIOLATION: {wrong}")
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items()))
    print(
        f"{report.sent:,} messages to 20 entities through {sum(report.faults.values())} outages "
        f"({faults}), {report.failovers} failovers, {report.backlog_sends:,} through backlogs, the "
        f"syphon killed {report.kills} times: {len(report.wrong)} violations (lost, doubled where "
        f"duplicates are detected, changed, out of order); {report.doubles} doubles where they are "
        f"not detected; {time.perf_counter() - begin:.0f} s"
    )
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
