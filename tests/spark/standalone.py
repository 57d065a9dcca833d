"""A standalone cluster of Spark on this machine: a master and workers from the PySpark package,
each a JVM of its own, as on a real one. For tests and benchmarks."""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tandembus.spark.java import ensure_java

PATIENCE_S = 180
HOME = Path(pyspark.__file__).parent
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "640m",
}
"""For a driver on this machine."""


class StandaloneCluster:
    """As a context it is stopped at the end. Its logs, and those of its executors, are in `folder`;
    without one they go with it."""

    def __init__(self, workers: int = 2, cores: int = 2, folder: Path | None = None) -> None:
        self._stack = ExitStack()
        if folder is None:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory("-spark")))
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
            log = self._start("master", [*master, "--webui-port", "0"])
            self.url = self._said(log, r"Starting Spark master at (spark://\S+)")
            for number in range(workers):
                worker = ["org.apache.spark.deploy.worker.Worker", self.url, "--host", "127.0.0.1"]
                size = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
                place = ["--work-dir", str(self._folder / f"work-{number}")]
                log = self._start(f"worker-{number}", [*worker, *size, *place])
                self._said(log, r"Successfully registered with (master)")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, arguments: Sequence[str]) -> Path:
        log = self._folder / f"{name}.log"
        env = {
            **os.environ,
            "JAVA_HOME": str(ensure_java()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            # Else the master ends an application whose executors have died ten times in a row.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
        }
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [str(HOME / "bin" / "spark-class"), *arguments],
                    env=env,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    preexec_fn=_die_with_parent,
                )
            )
        return log

    def _said(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            if self._processes[-1].poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{log.name}: {log.read_text(errors='replace')[-2000:]}")

    def executors(self) -> list[int]:
        """Their processes."""
        return _descendants([process.pid for process in self._processes], "ExecutorBackend")

    def working(self) -> dict[int, list[int]]:
        """Executors that have Python workers, and these: a task of ours has come so far."""
        return {
            executor: below
            for executor in self.executors()
            if (below := _descendants([executor], "pyspark.daemon"))
        }

    def kill_executor(self, choose: random.Random) -> bool:
        """One that has Python workers, and all of them, with -9: as if its machine were gone.
        False: none has any, because they are all just starting, or nothing is to be done."""
        working = self.working()
        if not working:
            return False
        executor = choose.choice(sorted(working))
        # The children, too: orphans would go on with their task until they write to nobody.
        return _kill([executor, *working[executor]])

    def wait_until_idle(self) -> None:
        """The executors of a driver that is gone end by themselves."""
        deadline = time.monotonic() + PATIENCE_S
        while found := self.executors():
            if time.monotonic() > deadline:
                raise RuntimeError(f"executors without a driver: {found}")
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            _kill([*_descendants([process.pid]), process.pid])
            process.wait(PATIENCE_S)
        self._stack.close()


def _die_with_parent() -> None:
    """In the child: whatever ends us, no JVM is left behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def kill_python_worker(root: int, choose: random.Random) -> bool:
    """One of a local Spark, with -9. False: there is none now."""
    found = python_workers_of(root)
    return bool(found) and _kill([choose.choice(sorted(found))])


def _kill(processes: Sequence[int]) -> bool:
    """Whether the first of them was still there."""
    was_there = []
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
            was_there.append(process)
        except ProcessLookupError:
            continue
    return processes[0] in was_there


def python_workers_of(root: int) -> list[int]:
    """The Python workers of a local Spark whose driver is the process `root`: those of tasks. The
    driver plans in workers like these, with other modules, and a query does not outlive them; on a
    cluster they die with the driver only."""
    return _descendants([root], "pyspark.daemon\0pyspark.worker", depth=2)


def _descendants(roots: Sequence[int], command: str = "", depth: int = 1) -> list[int]:
    """Processes below these whose command line has `command`, as have `depth` of them above each
    other: what a daemon has forked has its command line, too."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            commands[int(entry.name)] = (entry / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        parents[int(entry.name)] = int(stat[1])

    def matches(process: int) -> bool:
        at = process
        for _ in range(depth):
            if command not in commands.get(at, ""):
                return False
            at = parents.get(at, 0)
        at = process
        while at > 1:
            at = parents.get(at, 0)
            if at in roots:
                return True
        return False

    return [process for process in parents if matches(process)]
