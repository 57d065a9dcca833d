"""Hostile clients (RELIABILITY.md §3.1), each beside a client that behaves.

`python -m tests.hostile.run --seconds 60 [--only H3]`: for each scenario a broker of its own, a
while of calm, the attack, and a look at what is left. The broker has stood it if the calm client's
99th percentile stayed under twice what it was just before, and what it is meanwhile at a *twin*,
a broker on the same machine that nobody attacks (both counted as 5 ms at least: below that it is
this machine's noise that doubles), the memory under its cap, and nothing was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tandembus.testing import BrokerProcess
from tests.interop import certificates
from tests.repeat import repeat

from .attack import load
from .calm import QUEUE, Calm
from .wire import Hung, Target, Wire

FLOOR_MS = 5.0
RATIO = 2.0
CAP_MIB = 384
CALM_S = 10.0
PER_SECOND = 80.0
STANDSTILL_S = 0.5
"""So late, the calm client itself was not run: the figures of the broker say nothing then."""
MOST_TRIES = 6
_SLACK_S = 60
LOOPS = {"loop-a": "loop-b", "loop-b": "loop-a"}


@dataclass(slots=True)
class Result:
    scenario: str
    baseline_ms: float
    twin_ms: float
    attacked_ms: float
    resident_mib: float
    stood_still_s: float
    deed: dict[str, int]
    wrongs: list[str]

    @property
    def ratio(self) -> float:
        return self.attacked_ms / max(self.baseline_ms, self.twin_ms, FLOOR_MS)

    def judge(self) -> list[str]:
        """What is not as it must be."""
        wrongs = list(self.wrongs)
        if self.ratio >= RATIO:
            wrongs.append(f"p99 grew to {self.ratio:.1f} times its baseline")
        if self.resident_mib > CAP_MIB:
            wrongs.append(f"{self.resident_mib:.0f} MiB resident; the cap is {CAP_MIB}")
        return wrongs


def broker_for_attacks(folder: Path) -> tuple[BrokerProcess, Target]:
    """A broker with the entities that the attacks are on; with TLS if this machine can make a
    certificate."""
    try:
        tls: tuple[str, ...] = certificates.make(folder, "localhost", "127.0.0.1").arguments
    except certificates.NoOpenSsl:
        tls = ()
    broker = BrokerProcess.start(folder / "data", arguments=["--emulator", *tls])
    for queue in (QUEUE, "victim", "large", "scheduled", "unsettled", "loop-a", "loop-b"):
        broker.create_queue(queue)
    broker.create_queue("sessions", RequiresSession=True)
    broker.create_queue("duplicates", RequiresDuplicateDetection=True)
    broker.create_topic("filtered")
    broker.create_subscription("filtered", "s")
    for queue, other in LOOPS.items():
        # A loop that is refused when it is made is the best answer of all.
        with contextlib.suppress(RuntimeError):
            broker.put(queue, "QueueDescription", {"ForwardTo": other})
    return broker, Target(broker.port, broker.key, bool(tls))


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1_024
    return 0.0


async def run(scenario: str, seconds: float, *, scale: float = 1.0, calm_s: float = 5.0) -> Result:
    """One scenario, on a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        broker, target = await asyncio.to_thread(broker_for_attacks, Path(folder))
        with broker, BrokerProcess.start(Path(folder) / "twin", arguments=["--emulator"]) as twin:
            twin.create_queue(QUEUE)
            other = Target(twin.port, twin.key, has_tls=False)
            return await _run(scenario, seconds, scale, calm_s, broker, target, other)


async def _run(
    scenario: str,
    seconds: float,
    scale: float,
    calm_s: float,
    broker: BrokerProcess,
    target: Target,
    twin: Target,
) -> Result:
    calm, beside = Calm(target, PER_SECOND), Calm(twin, PER_SECOND)
    await calm.connect()
    await beside.connect()
    running = asyncio.gather(calm.run(), beside.run())
    await asyncio.sleep(min(1.0, calm_s))
    with calm.measuring() as before:
        await asyncio.sleep(calm_s)
    with calm.measuring() as during, beside.measuring() as meanwhile:
        deed, wrongs = await _attack(scenario, seconds, scale, target)
    await asyncio.sleep(0.2)
    calm.stop()
    beside.stop()
    await running
    if calm.trouble is not None:
        wrongs.append(calm.trouble)
    if calm.missing:
        wrongs.append(f"{calm.missing} messages of the calm client are missing")
    if calm.duplicates:
        wrongs.append(f"{calm.duplicates} messages came twice")
    resident = 0.0
    if broker.process.poll() is not None:
        wrongs.append(f"the broker ended with {broker.process.returncode}")
    else:
        wrongs += await asyncio.to_thread(_newcomer, target)
        resident = resident_mib(broker.process.pid)
    return Result(
        scenario, before.p99_ms(), meanwhile.p99_ms(), during.p99_ms(), resident,
        calm.stood_still_s, deed, wrongs,
    )  # fmt: skip


async def _attack(
    scenario: str, seconds: float, scale: float, target: Target
) -> tuple[dict[str, int], list[str]]:
    arguments = [
        "-m", "tests.hostile.attack", scenario, "--port", str(target.port), "--key", target.key,
        "--seconds", str(seconds), "--scale", str(scale), *(["--tls"] if target.has_tls else []),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        async with asyncio.timeout(seconds + _SLACK_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {}, ["the attack itself did not end"]
    if process.returncode:
        return {}, [f"the attack itself failed with {process.returncode}"]
    said = json.loads(out.decode().strip().splitlines()[-1])
    return said["done"], said["wrongs"]


def _newcomer(target: Target) -> list[str]:
    """Whether somebody new is served, after all that."""
    began = time.monotonic()
    while time.monotonic() < began + 20:
        try:
            with Wire.opened(target) as wire:
                wire.attach(QUEUE, is_sender=True)
                return []
        except (OSError, Hung, TimeoutError) as error:
            last = error
            time.sleep(0.2)
    return [f"a new client is not served 20 s after the attack: {last}"]


def measured(scenario: str, seconds: float, calm_s: float) -> Result:
    """Who is over the ratio is measured twice more, and the median counts: a machine that stands
    still for some milliseconds looks like a broker that does. Where the machine stood still for
    longer, nothing was measured. Any other wrong stays one."""
    results: list[Result] = []
    for _ in range(MOST_TRIES):
        result = asyncio.run(run(scenario, seconds, calm_s=calm_s))
        if result.stood_still_s > STANDSTILL_S and not result.wrongs:
            continue
        results.append(result)
        if result.wrongs or results[0].ratio < RATIO or len(results) == 3:
            break
    if not results:
        result.wrongs.append(f"the machine stood still for {result.stood_still_s:.1f} s each time")
    if not results or result.wrongs:
        return result
    return sorted(results, key=lambda each: each.ratio)[len(results) // 2]


def be_first() -> None:
    """Broker and calm client before all else that this machine does, if that may be asked for: then
    their latency is their own. The attacker makes itself the last."""
    with contextlib.suppress(OSError):
        os.setsid()  # Linux shares the CPU out among sessions first
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
        Path("/proc/self/autogroup").write_text("-15", encoding="ascii")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="scenarios whose name begins with this")
    parser.add_argument("--seconds", type=float, required=True, help="of each attack")
    parser.add_argument("--calm", type=float, default=CALM_S, help="seconds of the baseline")
    options = parser.parse_args()
    be_first()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the broker goes, too
    names = [name for name in load() if name.startswith(options.only)]
    if not names:
        parser.error(f"no scenario begins with {options.only}")
    failed: list[str] = []
    print(
        f"{'scenario':<15} {'p99 before':>12} {'of the twin':>12} {'attacked':>12} {'ratio':>6} "
        f"{'RSS MiB':>8}  "
        "verdict and what the attacker did",
        flush=True,
    )
    worst = 0.0
    for name in names:
        result = measured(name, options.seconds, options.calm)
        wrongs = result.judge()
        if wrongs:
            failed.append(name)
        worst = max(worst, result.ratio)
        did = ", ".join(f"{count:,} {what}" for what, count in result.deed.items())
        print(
            f"{name:<15} {result.baseline_ms:>9.2f} ms {result.twin_ms:>9.2f} ms "
            f"{result.attacked_ms:>9.2f} ms "
            f"{result.ratio:>6.2f} {result.resident_mib:>8.0f}  "
            f"{'FAILED' if wrongs else 'stood'}: {did}",
            flush=True,
        )
        for wrong in wrongs:
            print(f"{'':<15} - {wrong}", flush=True)
    print(
        f"{len(names)} scenarios of {options.seconds:g} s: {len(names) - len(failed)} stood, "
        f"{len(failed)} failed; the worst p99 was {worst:.2f} times its baseline "
        f"(allowed: {RATIO:g}, counted from {FLOOR_MS:g} ms)."
    )
    for name in failed:
        calm = f"{options.calm:g}"
        repeat("hostile", "--only", name, "--calm", calm, ATTACK_S=f"{options.seconds:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
