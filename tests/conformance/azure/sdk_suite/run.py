"""One run of the SDK's tests: as many servers as workers, each worker with its own.

The tests for administration delete every entity that they find; on a server that no other worker
uses they may do so at any time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tandembus.testing import BrokerProcess
from tests.conformance.azure.admin_server import make_certificate
from tests.conformance.azure.sdk_suite.download import HERE, Sdk

ROOT: Final = HERE.parents[3]
TRANSPORTS: Final = ("plain", "tls")
_IGNORED: Final = ("perf_tests", "unittests", "test_tracing.py")
"""Not live, and in want of more packages."""
_BEGINS: Final = re.compile(r"\S+\.py::\S+\s*$")
"""A line that says that a test begins; its end says as much."""


@dataclass(frozen=True, slots=True)
class Result:
    """`outcome` is passed, failed, xfailed or skipped."""

    outcome: str
    seconds: float
    why: str


@dataclass(slots=True)
class Report:
    """What came out. A test that failed beside others was run `again` alone, once."""

    transport: str
    results: dict[str, Result] = field(default_factory=dict)
    again: dict[str, Result] = field(default_factory=dict)
    seconds: float = 0.0
    workers: int = 0
    troubles: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """With the outcome of the second run where there was one."""
        return Counter(result.outcome for result in (self.results | self.again).values())

    @property
    def failures(self) -> dict[str, Result]:
        final = self.results | self.again
        return {test: result for test, result in final.items() if result.outcome == "failed"}

    def __str__(self) -> str:
        counts = self.counts
        said = ", ".join(f"{counts[it]} {it}" for it in ("passed", "failed", "xfailed", "skipped"))
        return (
            f"{self.transport}: {said}, of {counts.total()} live tests; {self.seconds:.0f} s "
            f"on {self.workers} servers ({sum(r.seconds for r in self.results.values()):.0f} s "
            "one by one)"
        )


def run(
    sdk: Sdk,
    transport: str,
    *,
    workers: int,
    tests: Sequence[str] = (),
    arguments: Sequence[str] = (),
    credential: str = "sas",
    say: Callable[[str], None] = print,
) -> Report:
    """Run `tests` (node ids in the suite; all live ones when empty), then what failed once more."""
    report = Report(transport, workers=workers)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sdk-suite-") as name:
        session = _Session(sdk, Path(name), transport, credential, say)
        session.run(workers, [*tests, *arguments], report.results, report.troubles)
        for test in sorted(report.failures):
            say(f"again, alone: {test}")
            session.run(1, [test], report.again, report.troubles)
    report.seconds = time.monotonic() - begin
    return report


class _Session:
    def __init__(
        self, sdk: Sdk, folder: Path, transport: str, credential: str, say: Callable[[str], None]
    ) -> None:
        self._sdk = sdk
        self._say = say
        self._report = folder / "report.json"
        self._serve = ["--emulator"]
        ca_file = ""
        if transport == "tls":
            certificate, key = make_certificate(folder)
            ca_file = str(certificate)
            self._serve += ["--certificate", ca_file, "--private-key", str(key)]
        # Not what a pytest around this one has set for itself; and every worker reads the same
        # modules, so that compiling them once pays.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTEST_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        self._environment = inherited | {
            "PYTHONPATH": str(ROOT),
            "SDK_SUITE_CA_FILE": ca_file,
            "SDK_SUITE_CREDENTIAL": credential,
            "SDK_SUITE_REPORT": str(self._report),
        }

    def run(
        self, workers: int, arguments: Iterable[str], into: dict[str, Result], troubles: list[str]
    ) -> None:
        """pytest, on fresh servers. What it found goes into `into`, other trouble to `troubles`."""
        self._report.unlink(missing_ok=True)
        with ExitStack() as stack:
            brokers = [
                stack.enter_context(BrokerProcess.start(arguments=self._serve))
                for _ in range(workers)
            ]
            code = self._pytest(arguments, [broker.port for broker in brokers])
            for broker in brokers:
                if (ended := broker.process.poll()) is not None:
                    troubles.append(f"a server ended by itself, with {ended}")
                elif (ended := broker.stop()) != 0:
                    troubles.append(f"a server ended with {ended} when it was asked to")
        if self._report.exists():
            found: dict[str, dict[str, Any]] = json.loads(self._report.read_text(encoding="utf-8"))
            into.update((test, Result(**result)) for test, result in found.items())
        if code not in (0, 1):
            troubles.append(f"pytest ended with {code}")

    def _pytest(self, arguments: Iterable[str], ports: Sequence[int]) -> int:
        tests = self._sdk.tests
        parallel = ("-n", str(len(ports)), "--maxschedchunk", "1") if len(ports) > 1 else ()
        command = [
            *(str(self._sdk.python), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "-v"),
            *("--rootdir", str(tests), "-p", "no:cacheprovider", "--tb", "short", "--no-header"),
            *("-p", "tests.conformance.azure.sdk_suite.plugin", *parallel),
            *(f"--ignore={tests / name}" for name in _IGNORED),
            *arguments,
        ]
        environment = self._environment | {"SDK_SUITE_PORTS": ",".join(map(str, ports))}
        with subprocess.Popen(
            command,
            cwd=tests,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as pytest:
            assert pytest.stdout is not None
            try:
                for line in pytest.stdout:
                    if not _BEGINS.match(line):
                        self._say(line.rstrip())
                return pytest.wait()
            except BaseException:
                pytest.terminate()
                raise
