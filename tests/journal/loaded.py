"""A real broker under load and a real journal beside it, both killed with SIGKILL while they work.

What lives here: `Loaded`, one run of both. What does not: what must come out (`test_kills.py`,
`faults.py`).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tandembus.client import Client, OutgoingMessage
from tandembus.errors import ConnectionLostError, MessageLockLostError, Refused, TandemError
from tandembus.testing import BrokerProcess
from tests.journal.reading import write_journal

PATIENCE_S = 60.0
DEAD = "/$DeadLetterQueue"


class Loaded:
    """As a context: broker, load and journal run, and are stopped at its end."""

    def __init__(
        self, folder: Path, out: Path, *, seed: int = 0, namespace: str = "default"
    ) -> None:
        self.folder, self.out, self.namespace = folder, out, namespace
        self.random = random.Random(f"loaded {seed}")
        self.broker = BrokerProcess.start(folder, ["--namespace", namespace])
        with Client(self.broker.connection_string) as client:
            entities = client.entities
            entities.create_queue("orders", LockDuration="PT5S", MaxDeliveryCount=3)
            entities.create_queue("in", ForwardTo="orders")
            entities.create_topic("news")
            for name in ("a", "b"):
                entities.create_subscription("news", name, MaxDeliveryCount=2)
        self.done = 0
        """Rounds of the load that were answered."""
        self._progress = threading.Condition()
        self._stop = threading.Event()
        self._journal: subprocess.Popen[bytes]
        self._begin_journal()
        self._threads = [threading.Thread(target=self._load, args=(n,)) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._await_journal()
        self._journal.send_signal(signal.SIGTERM)
        code = self._end_journal()
        self.broker.close()
        assert code == 0, f"the journal ended with {code}"

    def wait(self, rounds: int) -> None:
        """Until so many more rounds of the load are done."""
        wanted = self.done + rounds
        with self._progress:
            if not self._progress.wait_for(lambda: self.done >= wanted, PATIENCE_S):
                raise TimeoutError("the load does not come on")

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.restart()

    def kill_journal(self, after_rounds: int) -> None:
        """So many rounds after it has begun to read."""
        self._await_journal()
        self.wait(after_rounds)
        self._journal.kill()
        self._end_journal()
        self._begin_journal()

    def finish(self) -> None:
        """After the context: what is left of the log goes into the journal."""
        write_journal(self.folder, self.out, namespace=self.namespace)

    def _begin_journal(self) -> None:
        command = [sys.executable, "-m", "tandembus.cli", "journal", "run", str(self.folder)]
        command += ["--out", str(self.out), "--namespace", self.namespace]
        self._journal = subprocess.Popen([*command, "--every", "0.2"], stderr=subprocess.PIPE)

    def _await_journal(self) -> None:
        assert self._journal.stderr is not None
        assert b"from place" in self._journal.stderr.readline()

    def _end_journal(self) -> int:
        assert self._journal.stderr is not None
        code = self._journal.wait(PATIENCE_S)
        self._journal.stderr.close()
        return code

    # --- the load ---------------------------------------------------------------------------------

    def _load(self, number: int) -> None:
        rng = random.Random(f"load {number} {self.random.random()}")
        while not self._stop.is_set():
            try:
                with Client(self.broker.connection_string, timeout_s=10) as client:
                    while not self._stop.is_set():
                        self._round(client, rng)
                        with self._progress:
                            self.done += 1
                            self._progress.notify_all()
            except (ConnectionLostError, OSError, TandemError):
                self._stop.wait(0.05)  # it was killed; the next one has another port

    def _round(self, client: Client, rng: random.Random) -> None:
        path = rng.choice(("orders", "orders", "in", "news"))
        count = rng.choice((1, 5, 40))
        messages = [
            OutgoingMessage(
                rng.randbytes(rng.choice((10, 300))), message_id=f"m-{rng.getrandbits(64):x}"
            )
            for _ in range(count)
        ]
        with client.sender(path) as sender:
            sender.send_all(messages)
        if rng.random() < 0.1:
            client.schedule(messages[:2], _soon(rng), "orders")
        if rng.random() < 0.2:
            client.browse("orders", count=10)
        source = rng.choice(("orders", "orders", "news/Subscriptions/a", "news/Subscriptions/b"))
        source += DEAD if rng.random() < 0.1 else ""
        with client.receiver(source) as receiver:
            got = receiver.receive(count + 5, wait_s=0.05)
            cut = rng.randrange(len(got) + 1)
            try:
                receiver.complete(got[:cut])
                for message in got[cut:]:
                    draw = rng.random()
                    if draw < 0.5:
                        receiver.abandon(message)
                    elif draw < 0.7 and not source.endswith(DEAD):
                        receiver.dead_letter(message, reason="no", description="not today")
                    elif draw < 0.75:
                        receiver.defer(message)
            except (MessageLockLostError, Refused):
                pass


def _soon(rng: random.Random) -> int:
    return int(time.time() * 1000) + rng.choice((20, 200, 60_000))
