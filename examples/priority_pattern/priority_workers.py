"""The workers of the pattern: a base class that says what came, and one class for each priority."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, ClassVar

from tandembus.workers import PermanentError, Worker


class PriorityWorker(Worker):
    """Counts what it did. Override `process_message`."""

    done: ClassVar[Counter[str]] = Counter()
    order: ClassVar[list[str]] = []

    def finished(self, message: Any) -> None:
        PriorityWorker.done[self.work.level] += 1
        PriorityWorker.order.append(str(message).partition(" ")[0])
        print(f"  {type(self).__name__}: {message}", flush=True)


class HighWorker(PriorityWorker):
    def process_message(self, message: Any) -> None:
        if not str(message):
            raise PermanentError("Empty")
        self.finished(message)


class LowWorker(PriorityWorker):
    """What has time. It blocks, so it runs in a thread."""

    def process_message(self, message: Any) -> None:
        time.sleep(0.02)
        self.finished(message)
