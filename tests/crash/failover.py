"""Brokers on one database that fail and take over: `python -m tests.crash.failover --count 20`.

Two real `tandem serve` on one PostgreSQL: one serves, one stands by. While a client sends and
another receives, the one that serves is killed (SIGKILL), stopped for good (SIGSTOP, and resumed
when the other has taken over), or ends cleanly; the other goes on, and the first is started again
to stand by. The books at the end: no acknowledged message lost, none whose completion was confirmed
comes back, and what a stopped broker does after it was resumed counts for nothing.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tandembus.client import Client, ReceivedMessage
from tandembus.errors import TandemError
from tests.postgresql import Cluster, new_database

PATIENCE_S = 60.0
LEASE_S = 3
QUEUE = "orders"
OTHER = "reminders"
"""Where messages wait that a stopped broker knows of, and that are completed at the next one."""
WAYS = ("kill", "stop", "pause")
_STRING = re.compile(r"^Connection string: (.*)$")


class Broker:
    """`tandem serve --store`, which serves or stands by."""

    def __init__(self, folder: Path, url: str, port: int = 0) -> None:
        self.folder = folder
        self.url = url
        self.port = port
        self.begin()

    def begin(self) -> None:
        self.is_serving = threading.Event()
        self.is_standing_by = threading.Event()
        self.connection_string = ""
        self.words: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandembus.cli", "serve", str(self.folder),
             "--port", str(self.port), "--store", self.url,
             "--store-lease-seconds", str(LEASE_S)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.words.append(line)
                if found := _STRING.match(line):
                    self.connection_string = found[1]
                if line.startswith("Ctrl-C"):
                    self.is_serving.set()
                if "standing by" in line:
                    self.is_standing_by.set()

    @property
    def said(self) -> str:
        return "".join(self.words)

    def wait(self, event: threading.Event) -> None:
        until = time.monotonic() + PATIENCE_S
        while not event.wait(0.02):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"not ready ({self.process.poll()}): {self.said}")

    def signal(self, how: signal.Signals) -> None:
        self.process.send_signal(how)

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()


@dataclass
class Books:
    """What the clients were told."""

    acknowledged: set[str] = field(default_factory=set)
    perhaps: set[str] = field(default_factory=set)
    """Sent without an answer."""
    received: Counter[str] = field(default_factory=Counter)
    completed: set[str] = field(default_factory=set)
    """Confirmed."""
    completing: set[str] = field(default_factory=set)
    """Asked for, without an answer: it may have happened, or the message comes again."""
    resurrected: list[str] = field(default_factory=list)
    """Came again after that."""
    strange: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """From the end of one broker until the next one serves."""

    @property
    def lost(self) -> set[str]:
        return self.acknowledged - self.completed - self.completing

    @property
    def is_clean(self) -> bool:
        ghosts = self.completed - self.acknowledged - self.perhaps
        return not (self.lost or self.resurrected or self.strange or ghosts)

    def __str__(self) -> str:
        gaps = self.gaps_s or [0.0]
        return (
            f"{len(self.acknowledged):,} acknowledged, {len(self.perhaps)} without an answer, "
            f"{sum(self.received.values()):,} deliveries, {len(self.completed):,} completed, "
            f"{len(self.completing)} perhaps; "
            f"{len(self.lost)} lost, {len(self.resurrected)} came back, {len(self.strange)} "
            f"strange; {len(self.gaps_s)} take-overs, {statistics.median(gaps):.2f} s median, "
            f"{max(gaps):.2f} s at most"
        )


class Pair:
    """The two brokers, and the clients that use whichever serves."""

    def __init__(self, folder: Path, url: str, port: int = 0) -> None:
        self.books = Books()
        self.active = Broker(folder / "a", url, port)
        self.active.wait(self.active.is_serving)
        (folder / "b").mkdir()
        shutil.copy2(folder / "a" / "policies.json", folder / "b")
        self.standby = Broker(folder / "b", url, port)
        self.standby.wait(self.standby.is_standing_by)
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def client(self) -> Client:
        return Client(self.active.connection_string, timeout_s=5)

    # --- what fails -------------------------------------------------------------------------------

    def fail(self, how: str) -> None:
        """The active one fails; the other goes on, and the first stands by again."""
        old = self.active
        if how == "pause":
            self._pause()
        else:
            began = time.monotonic()
            old.signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
            self._go_on(began)
            code = old.ended()
            self._expect(code == (0 if how == "stop" else -signal.SIGKILL), f"ended with {code}")
        old.begin()
        self.standby = old
        old.wait(old.is_standing_by)

    def _go_on(self, began: float) -> None:
        self.standby.wait(self.standby.is_serving)
        self.books.gaps_s.append(time.monotonic() - began)
        self.active = self.standby

    def _pause(self) -> None:
        """The old one is stopped and resumed. It has messages that wait, and a receiver that asks
        for them while it is stopped; the new one has them completed. The old one must hand out
        nothing."""
        old = self.active
        with self.client() as client, client.receiver(OTHER) as receiver:
            with client.sender(OTHER) as sender:
                for number in range(5):
                    sender.send(b"%d" % number)
            began = time.monotonic()
            old.signal(signal.SIGSTOP)
            stale: list[object] = []
            asking = threading.Thread(target=_receive_into, args=(stale, receiver.receive))
            asking.start()
            self._go_on(began)
            with self.client() as other, other.receiver(OTHER) as taking:
                while messages := taking.receive(5, wait_s=0.2):
                    taking.complete(messages)
            old.signal(signal.SIGCONT)
            self._expect(old.ended() == 1, f"a paused broker ended otherwise: {old.said}")
            self._expect("was taken over by" in old.said, f"it did not say why: {old.said}")
            asking.join()
            self._expect(not stale, f"it handed out {len(stale)} that were completed")

    def _expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.books.strange.append(otherwise)

    # --- clients ----------------------------------------------------------------------------------

    def begin(self) -> None:
        for work in (self._send, self._receive):
            thread = threading.Thread(target=self._again, args=(work,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Send no more, and receive what is there."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        with self.client() as client, client.receiver(QUEUE) as receiver:
            while messages := receiver.receive(100, wait_s=1):
                self._take(receiver.complete, messages)

    def _again(self, work: Callable[[Client], None]) -> None:
        while not self._is_over.is_set():
            try:
                with self.client() as client:
                    work(client)
            except (TandemError, OSError):
                time.sleep(0.05)

    def _send(self, client: Client) -> None:
        books = self.books
        with client.sender(QUEUE) as sender:
            while not self._is_over.is_set():
                number = str(len(books.acknowledged) + len(books.perhaps))
                try:
                    sender.send(number.encode())
                except (TandemError, OSError):
                    books.perhaps.add(number)
                    raise
                books.acknowledged.add(number)

    def _receive(self, client: Client) -> None:
        with client.receiver(QUEUE) as receiver:
            while not self._is_over.is_set():
                if messages := receiver.receive(10, wait_s=0.2):
                    self._take(receiver.complete, messages)

    def _take(self, complete: Callable[..., None], messages: list[ReceivedMessage]) -> None:
        books = self.books
        numbers = [bytes(each.body).decode() for each in messages]
        books.received.update(numbers)
        books.resurrected += [number for number in numbers if number in books.completed]
        books.completing.update(numbers)
        complete(messages)
        books.completing.difference_update(numbers)
        books.completed.update(numbers)

    def close(self) -> None:
        self._is_over.set()
        self.standby.close()
        self.active.close()


def _receive_into(found: list[object], receive: Callable[..., list[ReceivedMessage]]) -> None:
    with suppress(TandemError, OSError):
        found += receive(5, wait_s=PATIENCE_S)


def create_queues(connection_string: str) -> None:
    with Client(connection_string) as client:
        for name in (QUEUE, OTHER):
            client.entities.create_queue(name)


def run(ways: list[str], folder: Path, url: str, *, between_s: float = 0.5) -> Books:
    pair = Pair(folder, url)
    try:
        create_queues(pair.active.connection_string)
        pair.begin()
        for how in ways:
            time.sleep(between_s)
            pair.fail(how)
        time.sleep(between_s)
        pair.end()
        pair.standby.signal(signal.SIGINT)
        if pair.standby.ended() != 0:
            pair.books.strange.append(f"Ctrl-C of one that stands by: {pair.standby.said}")
    finally:
        pair.close()
    return pair.books


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="failures")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    made = Cluster()
    try:
        with tempfile.TemporaryDirectory() as folder:
            ways = [chance.choice(WAYS) for _ in range(options.count)]
            books = run(ways, Path(folder), new_database(made))
    finally:
        made.close()
    print(books)
    for each in books.strange:
        print(each)
    return 0 if books.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
