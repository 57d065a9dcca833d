"""What the heart costs: `make bench-core`.

Each figure is CPU time or a ratio within this run where it can be, because wall-clock rates move
with the neighbours. Nothing here is asserted; the figures are for people, in docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.core.commands import Attach, CreateQueue, Disposition, Flow, Send, Settle
from tandembus.core.effects import Deliver, Delivery, Effect
from tandembus.core.namespace import Namespace
from tandembus.engine.blocking import BlockingEngine, open_engine
from tandembus.settings import QueueSettings
from tandembus.store.files import FileStore

BODY = 1_024
PAYLOAD = encode_message(
    body=b"x" * BODY,
    message_id="0123456789abcdef0123456789abcdef0123",
    content_type="application/json",
    properties={"customer": "c-1234", "attempt": 1},
)
MESSAGE = AmqpMessage(PAYLOAD)
SETTINGS = QueueSettings(max_size_mb=81_920)
START = 1_700_000_000_000


def say(name: str, value: str) -> None:
    print(f"  {name:<62}{value}", flush=True)


# --- core alone -----------------------------------------------------------------------------------


def core_alone(count: int) -> None:
    """send + lock + complete, one command each; deliveries by credit of 100. The messages are at
    hand, not parsed yet: what core asks of them is parsed on the way."""
    namespace = _fresh()
    apply = namespace.apply
    best = [float("inf")] * 3
    for _ in range(5):
        messages = [AmqpMessage(PAYLOAD) for _ in range(count)]
        begin = time.process_time()
        for message in messages:
            apply(Send("orders", (message,)), START)
        sent = time.process_time()
        tokens = [
            delivery.token
            for step in range(count // 100)
            for delivery in _delivered(apply(Flow(1, 100, step << 20), START).effects)
        ]
        locked = time.process_time()
        for token in tokens:
            assert token is not None
            apply(Settle("orders", (token,), Disposition.COMPLETE), START)
        done = time.process_time()
        took = (sent - begin, locked - sent, done - locked)
        best = [min(a, b / count * 1e6) for a, b in zip(best, took, strict=True)]
        namespace.freed.clear()
    say("core: send / lock / complete", " / ".join(f"{figure:.1f}" for figure in best) + " µs")
    say("core: all three, CPU a message (aim ≤ 15)", f"{sum(best):.1f} µs")


def depth(count: int) -> None:
    """The cost of a receive, deep against shallow."""
    shallow, deep = _fresh(), _fresh()
    batch = [MESSAGE] * 500
    for _ in range(2):
        shallow.apply(Send("orders", batch), START)
    for _ in range(count // len(batch)):
        deep.apply(Send("orders", batch), START)
    figures: dict[str, float] = {"shallow": float("inf"), "deep": float("inf")}
    for step in range(200):
        for name, namespace in (("shallow", shallow), ("deep", deep)):
            begin = time.process_time()
            delivered = _delivered(namespace.apply(Flow(1, 200, step << 20), START).effects)
            figures[name] = min(figures[name], (time.process_time() - begin) / len(delivered))
            tokens = [delivery.token for delivery in delivered if delivery.token is not None]
            namespace.apply(Settle("orders", tokens, Disposition.RELEASE), START)
    say(
        f"a receive at 1,000 deep and at {count:,} deep",
        f"{figures['shallow'] * 1e6:.2f} and {figures['deep'] * 1e6:.2f} µs",
    )
    say("ratio (aim ≤ 1.2)", f"{figures['deep'] / figures['shallow']:.2f}×")


def _fresh() -> Namespace:
    namespace = Namespace()
    namespace.apply(CreateQueue("orders", SETTINGS), START)
    namespace.apply(Attach(1, "orders"), START)
    return namespace


def _delivered(effects: Sequence[Effect]) -> list[Delivery]:
    (effect,) = effects
    assert isinstance(effect, Deliver)
    return effect.deliveries


# --- through the durable log ----------------------------------------------------------------------


def through_the_log(folder: Path, count: int, group: int, *, one_by_one: bool) -> None:
    """`group` messages are sent, then as many locked, read and completed; each a commit. In one
    command each, as a batch comes over the wire, or one by one, as from many small clients."""
    received: list[Delivery] = []

    def on_effect(effect: Effect) -> None:
        if isinstance(effect, Deliver):
            received.extend(effect.deliveries)

    with open_engine(folder, decode=AmqpMessage, on_effect=on_effect) as engine:
        engine.execute(CreateQueue("orders", SETTINGS))
        engine.execute(Attach(1, "orders"))
        before, begin = _threads_cpu(), time.perf_counter()
        for step in range(count // group):
            messages = [AmqpMessage(PAYLOAD) for _ in range(group)]
            if one_by_one:
                engine.execute_all(Send("orders", (message,)) for message in messages)
            else:
                engine.execute(Send("orders", messages))
            engine.execute(Flow(1, group, step << 20))
            for delivery in received:
                engine.body(delivery.body)
            tokens = [delivery.token for delivery in received if delivery.token is not None]
            received.clear()
            if one_by_one:
                engine.execute_all(Settle("orders", (t,), Disposition.COMPLETE) for t in tokens)
            else:
                engine.execute(Settle("orders", tokens, Disposition.COMPLETE))
        took = time.perf_counter() - begin
        threads = {name: t - before.get(name, 0.0) for name, t in _threads_cpu().items()}
    how = "one command a message" if one_by_one else "one command a group (aim ≥ 50,000)"
    say(f"log: groups of {group}, {how}", f"{count / took:,.0f} messages/s")
    main, commit = (
        threads.get(name, 0.0) / count * 1e6 for name in ("MainThread", "tandem-commit")
    )
    say("log:   CPU a message, engine's thread + commit thread", f"{main:.1f} + {commit:.1f} µs")


def _threads_cpu() -> dict[str, float]:
    """CPU seconds of each thread, kernel time included."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    result: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        name = names.get(int(task.name), "others")
        result[name] = result.get(name, 0.0) + nanoseconds / 1e9
    return result


# --- a million waiting ----------------------------------------------------------------------------

_FILL = """
import sys
from bench.core import fill
fill(sys.argv[1], int(sys.argv[2]))
"""
_OPEN = """
import sys
from bench.core import open_and_lock
open_and_lock(sys.argv[1])
"""


def rss() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


def fill(folder: str, count: int) -> None:
    """In a process of its own: how much memory `count` waiting messages take."""
    with open_engine(folder, decode=AmqpMessage) as engine:
        engine.execute(CreateQueue("orders", SETTINGS))
        engine.execute_all(Send("orders", [AmqpMessage(PAYLOAD)]) for _ in range(30_000))
        tokens = _take_all(engine)
        engine.execute_all(Settle("orders", (t,), Disposition.COMPLETE) for t in tokens)
        del tokens
        gc.collect()
        empty = rss()
        for _ in range(count // 1_000):
            engine.execute(Send("orders", [AmqpMessage(PAYLOAD) for _ in range(1_000)]))
        gc.collect()
        grown = rss() - empty
        print(f"memory {empty} {grown} {grown / count:.1f}")


def _take_all(engine: BlockingEngine) -> list[bytes]:
    tokens: list[bytes] = []
    while got := engine.receive("orders", 500):
        for delivery in got:
            assert delivery.token is not None
            tokens.append(delivery.token)
    return tokens


def open_and_lock(folder: str) -> None:
    begin = time.perf_counter()
    engine = open_engine(folder, decode=AmqpMessage)
    (delivery,) = engine.receive("orders", 1)
    print(f"opened {time.perf_counter() - begin:.3f} {delivery.sequence_number} {rss()}")
    engine.abandon()


def a_million(folder: Path, count: int) -> None:
    filled = _child(_FILL, str(folder), str(count)).split()
    say("memory of an idle broker", f"{int(filled[1]) / 1e6:.0f} MB")
    say(
        f"memory of {count:,} waiting messages of 1 KB (aim ≤ 60 MB a million)",
        f"{int(filled[2]) / 1e6:.0f} MB, {filled[3]} bytes a message",
    )
    for how in ("after a clean stop", "again, after kill -9 (the tail is replayed)"):
        opened = _child(_OPEN, str(folder)).split()
        say(f"opening it to the first message locked, {how} (aim ≤ 0.5)", f"{opened[1]} s")
    say("log on disk", f"{_size(folder) / 1e6:,.0f} MB")
    _drain(folder)
    say("disk left after all is consumed", f"{_size(folder) / 1e6:,.1f} MB")


def _drain(folder: Path) -> None:
    with open_engine(folder, decode=AmqpMessage) as engine:
        begin, count = time.perf_counter(), 0
        while got := engine.receive("orders", 1_000):
            tokens = [delivery.token for delivery in got if delivery.token is not None]
            count += len(tokens)
            engine.execute(Settle("orders", tokens, Disposition.COMPLETE))
        say(
            "draining it, lock and complete in batches of 1,000",
            f"{count / (time.perf_counter() - begin):,.0f} messages/s",
        )


def _child(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _size(folder: Path) -> int:
    """Bytes that the files take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


# --- the limits of this machine -------------------------------------------------------------------


def the_disk(folder: Path) -> None:
    """What one commit of 1 KB costs here, so that the rates can be judged."""
    store = FileStore(folder)
    took = sorted(_timed(lambda: store.append([PAYLOAD])) for _ in range(300))
    store.close()
    say(
        "this disk: one commit of 1 KB, median / 99 %",
        f"{took[150] * 1e3:.2f} / {took[297] * 1e3:.2f} ms",
    )


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="how many wait (1,000,000)")
    parser.add_argument("--folder", type=Path, help="where the logs go (a temporary folder)")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tandem-bench-", dir=options.folder))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    try:
        the_disk(root / "disk")
        core_alone(20_000)
        depth(options.messages)
        for group, one_by_one in ((100, False), (500, False), (500, True)):
            name = f"groups-{group}-{one_by_one}"
            through_the_log(root / name, 100_000, group, one_by_one=one_by_one)
        a_million(root / "million", options.messages)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
