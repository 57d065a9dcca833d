"""A pair of real servers through real outages: `python -m tests.pairing.outage --count 200`.

Senders on 20 entities (queues, topics, sessions, schedules, times to live; see `lines`) while the
primary is killed, frozen, cut off, silent, or refuses; every tenth time a backlog queue refuses
too; the syphon, a process of its own, is killed again and again. At the end everything is read back
and judged (see `verdict`): lost, doubled, changed, out of order. The exit code is 1 if a promise is
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusError

from tandembus.client import Client
from tandembus.pairing import Health, PairingOptions, wire
from tandembus.pairing import aio as paired_aio
from tandembus.pairing import blocking as paired_blocking
from tandembus.pairing.options import backlog_path
from tandembus.testing import BrokerProcess
from tests.pairing.lines import Line, free_port, lines, meant, message
from tests.pairing.turnstile import Turnstile, Way
from tests.pairing.verdict import Report, judge

NAME: Final = "outage"
QUEUES: Final = 3
PATIENCE_S: Final = 300
NOTHING_YET: Final = 1 << 60
FAULTS: Final = ("kill", "freeze", "cut", "silence", "refuse")
LULL_S: Final = 10.0
"""Between two outages, at most."""
REFUSALS: Final = 5
"""Entities that refuse at a time."""

Say = Callable[[str], None]


class Outage:
    def __init__(self, seed: int, folder: Path, pace_s: float) -> None:
        self.random = random.Random(seed)
        self.pace_s = pace_s
        self.report = Report()
        self.lines = lines()
        self.is_over = False
        self.primary = BrokerProcess.start(
            folder / "primary", ["--emulator", "--port", str(free_port())]
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
        for line in self.lines:
            settings: dict[str, Any] = {"RequiresDuplicateDetection": line.detects_duplicates}
            if line.detects_duplicates:
                settings["DuplicateDetectionHistoryTimeWindow"] = "P1D"
            if line.is_topic:
                self.primary.create_topic(line.path, **settings)
                self.primary.create_subscription(line.path, "all")
            else:
                settings["RequiresSession"] = line.has_sessions
                self.primary.create_queue(line.path, **settings)

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
        make = bus.get_topic_sender if line.is_topic else bus.get_queue_sender
        sender = make(line.path)
        number = 0
        while not self.is_over:
            await asyncio.sleep(self.random.expovariate(1 / self.pace_s))
            made = [message(line, number)]
            if line.is_batched:
                made += [message(line, number + more) for more in (1, 2)]
            number += len(made)
            outgoing: Any = None if line.is_batched else made[0]
            said = _said(made[:1])
            while True:
                try:
                    if outgoing is None:
                        outgoing = await sender.create_message_batch()
                        said = _said(made, outgoing)
                    if line.kind == "planned":
                        due = made[0].scheduled_enqueue_time_utc
                        assert due is not None
                        await sender.schedule_messages(outgoing, due)
                    else:
                        await sender.send_messages(outgoing)
                    break
                except (ServiceBusError, OSError):
                    self.report.refusals += 1
                    await asyncio.sleep(0.2)
            line.sent.update(said)

    def send_blocking(self, bus: paired_blocking.PairedNamespace, line: Line) -> None:
        sender = bus.get_queue_sender(line.path)
        number = 0
        while not self.is_over:
            time.sleep(self.random.expovariate(1 / self.pace_s))
            made = message(line, number)
            number += 1
            while True:
                try:
                    sender.send_messages(made)
                    break
                except (ServiceBusError, OSError):
                    self.report.refusals += 1
                    time.sleep(0.2)
            line.sent.update(_said([made]))

    # --- faults -----------------------------------------------------------------------------------

    def fault(self, kind: str, *, backlog_too: bool) -> None:
        """Do it, wait, and mend it."""
        self.report.faults[kind] += 1
        mend = self._break(kind)
        time.sleep(self.random.choice([0.1, 0.5, 1.5, 4.0]))
        if backlog_too:
            self._backlog_fault()
        mend()

    def _break(self, kind: str) -> Callable[[], None]:
        match kind:
            case "kill":
                self.primary.kill()
                return self.primary.restart
            case "freeze":
                self.primary.process.send_signal(signal.SIGSTOP)
                return lambda: self.primary.process.send_signal(signal.SIGCONT)
            case "cut" | "silence":
                self.turnstile.turn(Way.CUT if kind == "cut" else Way.SILENT)
                return lambda: self.turnstile.turn(Way.OPEN)
        some = self.random.sample(self.lines, REFUSALS)
        self._set_status(some, "Disabled")
        return lambda: self._set_status(some, "Active")

    def _set_status(self, some: list[Line], status: str) -> None:
        entities = Client(self.primary.connection_string).entities
        for line in some:
            change = entities.update_topic if line.is_topic else entities.update_queue
            change(line.path, Status=status)

    def _backlog_fault(self) -> None:
        """A backlog queue refuses while it is in use."""
        self.report.faults["backlog queue"] += 1
        entities = Client(self.secondary.connection_string).entities
        path = backlog_path(NAME, self.random.randrange(QUEUES))
        entities.update_queue(path, Status="SendDisabled")
        time.sleep(self.random.choice([0.5, 2.0]))
        entities.update_queue(path, Status="Active")

    # --- the syphon -------------------------------------------------------------------------------

    def start_syphon(self) -> None:
        command = [sys.executable, "-m", "tandembus.cli", "syphon", "--queues", str(QUEUES)]
        with self.syphon_log.open("ab") as log:
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

    def kill_syphon(self) -> None:
        """And let the time pass until its locks have ended."""
        assert self.syphon is not None
        if self.syphon.poll() is not None:
            self.report.wrong.append(f"the syphon has ended with {self.syphon.returncode}")
        self.syphon.kill()
        self.syphon.wait()
        self.report.kills += 1
        self.secondary.clock.advance(seconds=61)
        self.start_syphon()

    def stop_syphon(self) -> None:
        """As a user would: what it has in hand it gives back."""
        assert self.syphon is not None
        self.syphon.send_signal(signal.SIGTERM)
        try:
            code = self.syphon.wait(60)
        except subprocess.TimeoutExpired:
            self.report.wrong.append("the syphon does not stop")
        else:
            if code:
                self.report.wrong.append(f"the syphon has ended with {code}")

    # --- the whole --------------------------------------------------------------------------------

    async def run(self, count: int, kills: int, say: Say) -> Report:
        ordered = await self._pair(ordered=True)
        others = await self._pair(ordered=False)
        bus = await asyncio.to_thread(
            paired_blocking.pair_namespace,
            self.way_in,
            self.secondary.connection_string,
            self.options(ordered=False),
        )
        self.start_syphon()
        senders = [
            asyncio.create_task(self._insist(line, ordered if line.has_sessions else others))
            for line in self.lines
            if line.kind != "blocking"
        ]
        threads = [
            threading.Thread(target=self._insist_blocking, args=(line, bus), daemon=True)
            for line in self.lines
            if line.kind == "blocking"
        ]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(self._weather, count, kills, say)
        self.is_over = True
        say("the outages are over; waiting until all is sent and home")
        _, late = await asyncio.wait(senders, timeout=PATIENCE_S)
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
        if hung := len(late) + sum(thread.is_alive() for thread in threads):
            self.report.wrong.append(f"{hung} senders do not end")
        await self._come_home([ordered, others, bus], say)
        for each in (ordered, others, bus):
            status = each.status()
            self.report.backlog_sends += status.operations.backlog_sends
            self.report.failovers += sum(
                times for (_, now), times in status.changes.items() if now is Health.FAILED_OVER
            )
        await asyncio.to_thread(self.stop_syphon)
        await ordered.close()
        await others.close()
        await asyncio.to_thread(bus.close)
        await asyncio.to_thread(judge, self.report, self.lines, self.primary.connection_string)
        return self.report

    async def _pair(self, *, ordered: bool) -> paired_aio.PairedNamespace:
        return await paired_aio.pair_namespace(
            self.way_in, self.secondary.connection_string, self.options(ordered=ordered)
        )

    async def _insist(self, line: Line, bus: paired_aio.PairedNamespace) -> None:
        """An exception that is none of the SDK's own, no caller would expect."""
        try:
            await self.send(bus, line)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            self.report.wrong.append(f"the sender of {line.path} ended: {error!r}")

    def _insist_blocking(self, line: Line, bus: paired_blocking.PairedNamespace) -> None:
        try:
            self.send_blocking(bus, line)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            self.report.wrong.append(f"the sender of {line.path} ended: {error!r}")

    def _weather(self, count: int, kills: int, say: Say) -> None:
        begin = time.perf_counter()
        for number in range(1, count + 1):
            self._let_pass()
            self.fault(self.random.choice(FAULTS), backlog_too=number % 10 == 0)
            while self.report.kills < number * kills // count:
                time.sleep(self.random.uniform(0.0, 1.5))
                self.kill_syphon()
            if number % 10 == 0 or number == count:
                say(
                    f"{time.perf_counter() - begin:6.0f} s: {number} outages, "
                    f"{self.report.kills} kills, {self._count():,} messages sent"
                )

    def _let_pass(self) -> None:
        """A random time, in messages that were sent: on a busy machine they take longer."""
        deadline = time.monotonic() + LULL_S
        enough = self._count() + self.random.randrange(2, 80)
        while self._count() < enough and time.monotonic() < deadline:
            time.sleep(0.02)

    def _count(self) -> int:
        return sum(len(line.sent) for line in self.lines)

    async def _come_home(self, buses: list[Any], say: Say) -> None:
        entities = Client(self.secondary.connection_string).entities
        since = time.monotonic()
        least = NOTHING_YET
        while True:
            depths = [
                (await asyncio.to_thread(entities.get_queue, backlog_path(NAME, n))).counts
                for n in range(QUEUES)
            ]
            waiting = sum(each["ActiveMessageCount"] for each in depths)
            away = [
                each
                for bus in buses
                for each in bus.status().entities
                if each.health is not Health.HEALTHY
            ]
            if not waiting and not away:
                break
            left = waiting + len(away)
            if left < 0.9 * least:
                least, since = left, time.monotonic()
                say(f"        {waiting:,} are still in the backlog, {len(away)} entities away")
            if time.monotonic() - since > PATIENCE_S:  # without any progress to speak of
                self.report.wrong.append(f"{waiting} messages do not come home; away: {away[:3]}")
                text = self.syphon_log.read_text(encoding="utf-8", errors="replace")
                say("\n".join(text.splitlines()[-40:]))
                break
            await asyncio.sleep(0.2)
        for index, depth in enumerate(depths):
            if depth["DeadLetterMessageCount"]:
                self.report.wrong.append(f"dead letters in backlog queue {index}: {depth}")

    def close(self) -> None:
        if self.syphon is not None and self.syphon.poll() is None:
            self.syphon.kill()
            self.syphon.wait()
        self.turnstile.close()
        for broker in (self.primary, self.secondary):
            if broker.process.poll() is None:
                broker.process.send_signal(signal.SIGCONT)
                broker.kill()


def _said(
    made: list[ServiceBusMessage], batch: ServiceBusMessageBatch | None = None
) -> dict[str, dict[str, Any]]:
    """What each message says, encoded by a batch: the given one, which then has them."""
    if batch is None:
        batch = ServiceBusMessageBatch(max_size_in_bytes=200_000)
    for each in made:
        batch.add_message(each)
    return {
        str(each.message_id): meant(payload)
        for each, payload in zip(made, wire.payloads_of(batch), strict=True)
    }


def outage(seed: int, count: int, kills: int, pace_s: float, say: Say) -> Report:
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
    parser.add_argument("--pace", type=float, default=0.3, help="seconds between sends (0.3)")
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
    print(report.table())
    print(f"{time.perf_counter() - begin:.0f} s, seed {options.seed}")
    return 1 if report.is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
