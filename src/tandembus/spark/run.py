"""One run of a pipeline: its session, what is shown of it, and what is said at its end."""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tandembus.client.board import Reporter
from tandembus.errors import ArgumentError
from tandembus.spark.cli import connection_string, pair_of
from tandembus.spark.pipelines.progress import Progress, Standing, progress
from tandembus.spark.pipelines.running import Outcome
from tandembus.spark.session import spark_session


@dataclass(slots=True)
class Run:
    """Use `running`."""

    name: str
    options: argparse.Namespace
    spark: SparkSession
    _shown: Progress
    _said: dict[str, Any]
    """For the console."""
    _begun: float

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._begun, 1)

    def show(self, standing: Standing) -> None:
        self._shown.show(standing)
        share = None if not standing.total else min(1.0, standing.done / standing.total)
        self._said.update(text=standing.text, share=share)

    def show_batches(self, outcome: Outcome) -> None:
        self.show(Standing(0, None, _rows(outcome, f"{outcome.batches:,} batches")))
        self._said["rows"] = outcome.events

    def conclude(
        self, rows: int, text: str, report: str | None = None, findings: Sequence[str] = ()
    ) -> None:
        """What stays on the console."""
        self._said.update(rows=rows, text=text, share=1.0, report=report, findings=[*findings])

    def tell(self, outcome: Outcome, **more: Any) -> int:
        """The summary, on stdout; the exit code of a run that went well."""
        summary: dict[str, Any] = {
            "pipeline": self.name,
            "rows": outcome.events,
            "quarantined": outcome.quarantined,
            "batches": outcome.batches,
            "tables": outcome.tables,
            "seconds": self.seconds,
            **more,
        }
        text = _rows(outcome, f"{summary['seconds']} s")
        self.conclude(outcome.events, text)
        if self.options.json:
            print(json.dumps(summary, indent=2))
            return 0
        print(f"{self.name}: {text}")
        for table, rows in outcome.tables.items():
            print(f"  {table}: {rows:,}")
        return 0


def _rows(outcome: Outcome, within: str) -> str:
    text = f"{outcome.events:,} rows in {within}"
    return f"{text}, {outcome.quarantined:,} in quarantine" if outcome.quarantined else text


@contextmanager
def running(options: argparse.Namespace, name: str) -> Iterator[Run]:
    """A session for one run. What Spark refuses is said in a line, not as a trace of its stack."""
    begun = time.monotonic()
    conf = dict(pair_of(each) for each in options.conf)
    said: dict[str, Any] = {"state": "running", "text": "Spark is starting"}
    reporter = _reporter(options, name, said)
    try:
        with progress(name, is_quiet=options.quiet) as shown:
            shown.show(Standing(0, None, "Spark is starting"))
            was_there = SparkSession.getActiveSession() is not None
            spark = spark_session(name, options.master, conf, is_quiet=not options.verbose)
            try:
                yield Run(name, options, spark, shown, said, begun)
            finally:
                if not was_there:
                    spark.stop()
        said["state"] = "done"
    except (PySparkException, Py4JError) as error:
        said.update(state="failed", text=brief(error))
        raise ArgumentError(f"Spark: {brief(error)}") from error
    except BaseException as error:
        said.update(state="failed", text=brief(error))
        raise
    finally:
        if reporter is not None:
            reporter.stop()


def _reporter(options: argparse.Namespace, name: str, said: dict[str, Any]) -> Reporter | None:
    if options.console is None:
        return None
    target = options.console or connection_string(options)
    here = f"{name} {socket.gethostname()}:{os.getpid()}"
    return Reporter(target, "pipeline", here, lambda: dict(said)).start()


def brief(error: BaseException) -> str:
    """The first line that says something; the cause, if a task of ours has failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("tandembus.errors.")]
    return (ours[-1].partition(": ")[2] if ours else lines[0] if lines else repr(error))[:2000]
