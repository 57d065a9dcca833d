"""`make demo` and the first program of docs/spark.md, on a machine without Java."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandembus.client import Client
from tandembus.testing import LocalBroker
from tests.demo.without_java import environment_without_java

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo" / "demo.py"
MODULE = "--add-modules=jdk.incubator.vector"


@pytest.mark.req("C13")
@pytest.mark.req("N9")
@pytest.mark.req("P1")
def test_fl1_the_demo_passes_without_java(tmp_path: Path) -> None:
    """All of it, with the report of Spark. It checks what it shows."""
    environment = environment_without_java(tmp_path)
    assert shutil.which("java", path=environment["PATH"]) is None
    done = subprocess.run(
        [sys.executable, DEMO, "--folder", tmp_path / "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every order exactly once" in done.stdout
    assert "is failed over" in done.stdout
    assert re.search(r"the report: .*\.html", done.stdout)
    assert done.stderr == ""
    # A runtime of ours was used through its launcher, not one that was overlooked.
    assert list((tmp_path / "a home" / ".cache" / "tandem").glob("java-*/bin/java"))


@pytest.mark.req("C13")
def test_fl1_a_plain_session_starts_without_java(tmp_path: Path) -> None:
    """The first program of docs/spark.md as it stands there; also when the options of Java ask for
    the module that the runtime does not have."""
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert program is not None
    environment = environment_without_java(tmp_path)
    environment["JDK_JAVA_OPTIONS"] = MODULE
    environment["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-java-options '{MODULE} -XX:TieredStopAtLevel=1' pyspark-shell"
    )
    with LocalBroker.start() as broker:
        broker.create_queue("orders")
        with Client(broker.connection_string) as client, client.sender("orders") as sender:
            sender.send(b"the first")
        file = tmp_path / "program.py"
        file.write_text(f"connection_string = {broker.connection_string!r}\n{program[1]}")
        done = subprocess.run(
            [sys.executable, file],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with Client(broker.connection_string) as client:
            assert len(list(client.browse_all("orders"))) == 11
    assert list((tmp_path / "orders.parquet").glob("*.parquet"))
