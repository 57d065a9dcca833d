"""Hours of outages in seconds: `python -m tests.pairing.hours --hours 24`.

Senders on queues with and without sessions, over a primary that refuses, hangs, or is there;
backlog queues that fail; syphons that are killed, sometimes two at a time. All of it in virtual
time, from a seed. At the end: nothing lost, nothing doubled where duplicates are detected, order
kept, and the ledgers agree with what the namespaces have counted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandembus.amqp.message import AmqpMessage
from tandembus.pairing.aio import PairedNamespace
from tandembus.pairing.heart import Health
from tandembus.pairing.ledger import Operations
from tandembus.pairing.options import PairingOptions
from tandembus.pairing.pair import Pair
from tandembus.pairing.syphon import Syphon
from tests.pairing.virtual import Life, LoopClock, Mood, World, run
from tests.repeat import repeat

HOUR: Final = 3600.0
SESSIONS: Final = ("a", "b", None)
QUEUES: Final = 4


@dataclass
class Report:
    """What happened, and what was wrong."""

    sent: int = 0
    through_backlog: int = 0
    outages: int = 0
    kills: int = 0
    failovers: int = 0
    doubles: int = 0
    """Where duplicates are not detected."""
    wrong: list[str] = field(default_factory=list)
    operations: Operations = field(default_factory=Operations)


class Story:
    def __init__(self, seed: int, hours: float, *, ordered: bool, kill_every_s: float) -> None:
        self.kill_every_s = kill_every_s
        self.random = random.Random(seed)
        self.until = hours * HOUR
        self.report = Report()
        self.primary = World(seed + 1)
        self.secondary = World(seed + 2)
        self.clock = LoopClock(asyncio.get_running_loop(), seed + 3)
        self.options = PairingOptions(
            backlog_queue_count=QUEUES,
            ordered_return=ordered,
            send_timeout=timedelta(seconds=10),
            syphon_batch=5,
            syphon_in_hand=50,
        )
        self.paths = [f"q{number}" for number in range(6)]
        self.primary.mood = Mood.UP
        for path in self.paths:
            self.primary.queue(path, detects_duplicates=path != "q5")
        self.sent: dict[str, list[str]] = {path: [] for path in self.paths}
        """Ids, in the order in which they were taken."""
        self.pair = self._pair(Life())
        self.bus = PairedNamespace(self.pair)
        self.syphons: list[tuple[Syphon, Life, asyncio.Task[None]]] = []
        self.ledgers = [self.pair.ledger]

    def _pair(self, life: Life) -> Pair:
        return Pair(
            self.primary.namespace("p", life),
            self.secondary.namespace("s", life),
            self.options,
            self.clock,
            None,
        )

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- who takes part ---------------------------------------------------------------------------

    async def sender(self, path: str, number: int) -> None:
        sender = self.bus.get_queue_sender(path)
        count = 0
        while self.now < self.until:
            await asyncio.sleep(self.random.expovariate(1 / 40))
            session = SESSIONS[count % len(SESSIONS)]
            name = f"{path}/{number}/{session}/{count}"
            count += 1
            while True:
                message = ServiceBusMessage(name, message_id=name, session_id=session)
                try:
                    await sender.send_messages(message)
                except ServiceBusError:
                    await asyncio.sleep(5)
                else:
                    break
            self.sent[path].append(name)

    async def weather(self) -> None:
        """Outages of the primary, of one of its entities, of backlog queues, of the secondary."""
        while self.now < self.until:
            await asyncio.sleep(self.random.expovariate(1 / 900))
            self.report.outages += 1
            mood = self.random.choice([Mood.REFUSES, Mood.HANGS])
            length = self.random.choice([5, 50, 300, 1_500])
            match self.random.randrange(10):
                case 0 | 1 | 2 | 3:
                    self.primary.mood = mood
                    await asyncio.sleep(length)
                    self.primary.mood = Mood.UP
                case 4 | 5 | 6:
                    queue = self.primary.queue(self.random.choice(self.paths))
                    queue.mood = mood
                    await asyncio.sleep(length)
                    queue.mood = Mood.UP
                case 7 | 8:
                    path = (
                        self.pair.name + f"/x-servicebus-transfer/{self.random.randrange(QUEUES)}"
                    )
                    self.primary.mood = mood
                    await asyncio.sleep(length)
                    self.secondary.queue(path).mood = mood
                    await asyncio.sleep(length)
                    self.secondary.queue(path).mood = Mood.UP
                    self.primary.mood = Mood.UP
                case _:
                    self.secondary.mood = mood
                    await asyncio.sleep(min(length, 300))
                    self.secondary.mood = Mood.UP

    def start_syphon(self) -> None:
        life = Life(calls=self.random.choice([None, self.random.randrange(20, 400)]))
        pair = self._pair(life)
        self.ledgers.append(pair.ledger)
        syphon = Syphon(pair)
        self.syphons.append((syphon, life, asyncio.create_task(syphon.run())))

    async def reaper(self) -> None:
        """Kills syphons, at any moment or in the middle of their work, and starts one or two."""
        due = 0.0
        while self.now < self.until:
            await asyncio.sleep(1)
            if self.now >= due and self.syphons:
                self.random.choice(self.syphons)[1].is_over = True
                due = self.now + self.random.expovariate(1 / self.kill_every_s)
            dead = [each for each in self.syphons if each[1].is_over]
            for each in dead:
                self.syphons.remove(each)
                self.report.kills += 1
                each[2].cancel()
                await asyncio.gather(each[2], return_exceptions=True)
            if dead:
                await asyncio.sleep(self.random.choice([0, 5, 100]))
            if not self.syphons:
                self.start_syphon()
                if self.random.random() < 0.3:
                    self.start_syphon()

    # --- the whole --------------------------------------------------------------------------------

    async def tell(self) -> Report:
        self.start_syphon()
        people = [self.sender(path, number) for path in self.paths for number in range(2)]
        await asyncio.gather(self.weather(), self.reaper(), *people)
        self.start_syphon()
        self.syphons[-1][1].calls = None
        begin = self.now
        while self._is_busy():
            await asyncio.sleep(1)
            if self.now - begin > 2 * HOUR:
                self.report.wrong.append("the backlog does not come home")
                break
        for syphon, _, task in self.syphons:
            await syphon.stop()
            await asyncio.gather(task, return_exceptions=True)
        self._judge()
        await self.bus.close()
        return self.report

    def _is_busy(self) -> bool:
        waiting = any(queue.messages for queue in self.secondary.queues.values())
        healths = {entity.health for entity in self.bus.status().entities}
        return waiting or healths != {Health.HEALTHY}

    def _judge(self) -> None:
        report = self.report
        for path in self.paths:
            sent, queue = self.sent[path], self.primary.queue(path)
            got = [str(AmqpMessage(payload).message_id) for payload in queue.arrived]
            counts = Counter(got)
            report.sent += len(sent)
            if lost := set(sent) - set(got):
                report.wrong.append(f"{path}: {len(lost)} lost, as {min(lost)}")
            doubles = sum(count - 1 for count in counts.values())
            if doubles and queue.detects_duplicates:
                report.wrong.append(f"{path}: {doubles} doubles")
            report.doubles += doubles
            if self.options.ordered_return:
                self._judge_order(path, list(dict.fromkeys(got)))
        for payload, why in (
            dead for queue in self.secondary.queues.values() for dead in queue.dead
        ):
            report.wrong.append(f"dead-lettered: {AmqpMessage(payload).message_id!r}: {why}")
        changes = self.bus._pair.heart.changes
        report.failovers = sum(n for (_, now), n in changes.items() if now is Health.FAILED_OVER)
        self._judge_ledgers()

    def _judge_order(self, path: str, got: Sequence[str]) -> None:
        """What one sender has sent with one session id arrived in that order."""
        last: dict[str, tuple[int, str]] = {}
        for name in got:
            stream, _, number = name.rpartition("/")
            before = last.get(stream, (-1, ""))
            if int(number) < before[0]:
                self.report.wrong.append(f"{path}: {name} came after {before[1]}")
            last[stream] = (int(number), name)

    def _judge_ledgers(self) -> None:
        total = Operations()
        for ledger in self.ledgers:
            total = total.plus(ledger.total())
        self.report.operations = total
        self.report.through_backlog = total.backlog_sends
        here, there = self.primary.counts, self.secondary.counts
        for what, mine, theirs in (
            ("sends to the primary", total.primary_sends + total.syphon_sends, here["sends"]),
            ("pings", total.pings, here["pings"]),
            ("sends to backlogs", total.backlog_sends, there["sends"]),
            ("receives from backlogs", total.backlog_receives, there["receives"]),
            ("empty receives", total.empty_receives, there["empty receives"]),
        ):
            if mine != theirs:
                self.report.wrong.append(f"ledger: {mine} {what}, and the namespace says {theirs}")


def tell(seed: int, hours: float, *, ordered: bool, kill_every_s: float = 900.0) -> Report:
    async def story() -> Report:
        return await Story(seed, hours, ordered=ordered, kill_every_s=kill_every_s).tell()

    return run(story())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    failed: list[int] = []
    for seed in range(options.seed, options.seed + options.seeds):
        begin = time.perf_counter()
        report = tell(seed, options.hours, ordered=seed % 2 == 0)
        failed += [seed] * bool(report.wrong)
        print(
            f"seed {seed}: {options.hours:g} h in {time.perf_counter() - begin:.1f} s: "
            f"{report.sent:,} sent, {report.through_backlog:,} through backlogs, "
            f"{report.outages} outages, {report.failovers} failovers, {report.kills} syphons "
            f"killed, {report.doubles} doubles where none are detected, "
            f"{report.operations.total:,} operations, {len(report.wrong)} violations"
        )
        for wrong in report.wrong[:10]:
            print(f"  {wrong}")
    if failed:
        hours = f"{options.hours:.15g}"
        return repeat("outage-hours", "--seed", failed[0], OUTAGE_HOURS=hours, OUTAGE_SEEDS=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
