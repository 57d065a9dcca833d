"""A Spark session as the pipelines want it, on any master.

The rule: what is set here is right on a laptop and on a cluster, and what the user says (`conf`)
wins. `local[*,4]` is the default master: all cores, and a task that fails is tried four times, as
on a cluster (plain `local[*]` never tries again).
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

MASTER: Final = "local[*,4]"
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",  # we have our own
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    # A sink or a syphon that runs twice at once only costs locks and duplicates.
    "spark.speculation": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # Bodies are up to 100 MB; a batch of 10,000 rows of them would be too much.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    # Sketches of more groups than 128 at a time are hashed, not sorted.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
    # A file that cannot be read is put into quarantine by us, not passed over (pipelines.events).
    "spark.sql.files.ignoreCorruptFiles": "true",
}
_LOCAL: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Safe where the checkpoint is on a disk of this machine: a rename is atomic there.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def spark_session(
    app: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    is_quiet: bool = False,
) -> SparkSession:
    """The one that runs already, if there is one (a notebook, spark-submit, a test); else a new
    one. If it `is_quiet`, what the JVM and its workers print goes nowhere: what they have to say
    comes as exceptions, too."""
    active = SparkSession.getActiveSession()
    if active is not None and master is None:
        return active
    chosen = master or os.environ.get("TANDEM_SPARK_MASTER") or MASTER
    is_local = chosen.startswith("local")
    _prepare(is_local)
    builder = SparkSession.builder.appName(f"tandem {app}").master(chosen)
    settings = {**SETTINGS, **(_LOCAL if is_local else {}), **(conf or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _stderr_of_children(os.devnull) if is_quiet else nullcontext():
        spark = builder.getOrCreate()
    if not chosen.startswith("local["):
        ship(spark)
    return spark


def _prepare(is_local: bool) -> None:
    """What the JVM and the Python workers must find in the environment when they start."""
    from tandembus.spark.java import ensure_java

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = f"--driver-java-options -Dlog4j2.configurationFile={_LOG4J.as_uri()} pyspark-shell"
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", quiet)


@contextmanager
def _stderr_of_children(path: str) -> Iterator[None]:
    """Processes that start meanwhile have their stderr there, for all of their lives."""
    before = os.dup(2)
    there = os.open(path, os.O_WRONLY)
    sys.stderr.flush()
    os.dup2(there, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(there)
        os.close(before)


def ship(spark: SparkSession) -> None:
    """Give the executors of a cluster the same Tandem that the driver runs."""
    package = Path(__file__).resolve().parents[2]
    # Executors fetch it when they start, so it stays as long as this process.
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("tandembus", "pyspark_servicebus"):
        if (package / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package / name, folder / "tree" / name, ignore=ignored)
    made = shutil.make_archive(str(folder / "tandembus"), "zip", folder / "tree")
    spark.sparkContext.addPyFile(made)
