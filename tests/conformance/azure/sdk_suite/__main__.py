"""`make sdk-suite`: all live tests, without TLS and with it, side by side."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.conformance.azure.sdk_suite.download import Unavailable, fetch
from tests.conformance.azure.sdk_suite.run import TRANSPORTS, Report, run

CAN_PASS: Final = {"plain": 341, "tls": 347}
"""Of the 365 live tests of SDK 7.15.0; README.md names the others."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sdk-suite", description=__doc__)
    parser.add_argument("tests", nargs="*", help="node ids in the suite; all when there are none")
    parser.add_argument("--transport", choices=TRANSPORTS, help="only this one")
    parser.add_argument("--workers", type=int, default=12, help="servers for each transport (12)")
    parser.add_argument("-k", metavar="EXPRESSION", help="pytest's -k")
    parser.add_argument(
        "--credential", choices=("sas", "jwt"), default="sas", help="the login; jwt with TLS only"
    )
    parser.add_argument("--json", type=Path, help="write every test's outcome here")
    options = parser.parse_args(arguments)
    transports = (options.transport,) if options.transport else TRANSPORTS
    if options.credential == "jwt":
        transports = ("tls",)  # The SDK sends no bearer token over plain HTTP.
    if "tls" in transports and shutil.which("openssl") is None:
        print("openssl makes the certificate, and is not there.", file=sys.stderr)
        return 2
    begin = time.monotonic()
    try:
        sdk = fetch()
    except Unavailable as error:
        print(f"azure-servicebus and its tests could not be fetched: {error}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(len(transports)) as pool:
        running = [
            pool.submit(
                run,
                sdk,
                transport,
                workers=options.workers,
                tests=options.tests,
                arguments=("-k", options.k) if options.k else (),
                credential=options.credential,
                say=_speaker(transport),
            )
            for transport in transports
        ]
        reports = [each.result() for each in running]
    if options.json:
        texts = [asdict(report) for report in reports]
        options.json.write_text(json.dumps(texts, indent=1), encoding="utf-8")
    is_whole = not options.tests and not options.k
    print()
    is_well = False not in [_conclude(report, is_whole=is_whole) for report in reports]
    cores = os.cpu_count()
    print(f"azure-servicebus {sdk.version}: {time.monotonic() - begin:.0f} s on {cores} cores.")
    return 0 if is_well else 1


def _speaker(transport: str) -> Callable[[str], None]:
    lock = threading.Lock()

    def say(line: str) -> None:
        with lock:
            print(f"{transport:5} {line}", flush=True)

    return say


def _conclude(report: Report, *, is_whole: bool) -> bool:
    """Print what came out; whether it is what has to."""
    print(report)
    for test, result in report.again.items():
        print(f"  failed beside others, {result.outcome} alone: {test}")
        print(f"    then: {report.results[test].why}")
    for test, result in report.failures.items():
        print(f"  FAILED {test}: {result.why}")
    for trouble in report.troubles:
        print(f"  TROUBLE {trouble}")
    is_well = not report.failures and not report.troubles and bool(report.results)
    if is_whole and (passed := report.counts["passed"]) < CAN_PASS[report.transport]:
        print(f"  {passed} passed, and {CAN_PASS[report.transport]} can")
        is_well = False
    return is_well


if __name__ == "__main__":
    sys.exit(main())
