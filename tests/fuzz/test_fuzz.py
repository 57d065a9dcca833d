"""The slice of `make fuzz` of every test run, its canaries, and all scenarios again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fuzz import growth, jobs, judge
from tests.fuzz.canary import CANARIES
from tests.fuzz.judge import SCENARIOS, Distinct, Finding, Judge, Violation

SLICE = {
    jobs.DECODER: 20_000, "live": 1_500, "client": 300, "nodes": 2_000, "http": 2_000, "xml": 600,
    "admin": 600, "websocket": 3_000, "names": 5_000,
}  # fmt: skip


@pytest.mark.parametrize("target", SLICE)
def test_hostile_bytes_do_no_harm(target: str) -> None:
    """RELIABILITY F1-F3, F5, F6: a value or a refusal, within 50 ms and 16 MB, and nobody else is
    touched."""
    report = jobs.run(target, SLICE[target], seed=1)
    assert not report.findings, report.findings[0]
    assert report.distinct >= SLICE[target]


@pytest.mark.parametrize("number", range(len(CANARIES)))
def test_a_planted_bug_is_found(number: int) -> None:
    """RELIABILITY F7: a target that misses its canary proves nothing."""
    report = jobs.run_canary(number, seed=1)
    assert report.findings, report.notes


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.json")), ids=lambda path: path.stem)
def test_what_did_harm_once_does_none_again(path: Path) -> None:
    """Every input that was ever found, for ever."""
    jobs.replay(Finding.load(path))


@pytest.mark.long
def test_over_tcp_the_sdk_is_not_touched() -> None:
    """A real broker, the official SDK at work, and strangers beside it."""
    pytest.importorskip("azure.servicebus")
    report = jobs.run("wire", 200, seed=1)
    assert not report.findings, report.findings[0]


@pytest.mark.long
@pytest.mark.parametrize("family", growth.FAMILIES, ids=lambda family: family.name)
def test_twice_the_size_is_twice_the_time(family: growth.Family) -> None:
    """No reader is quadratic in what it reads."""
    assert growth.measure(family).ratio < growth.MAX_RATIO


def test_a_finding_comes_back_from_its_file(tmp_path: Path) -> None:
    """Saved once, however often it is found."""
    finding = Finding("value", (b"\x00\xff", b"x" * 500), "why")
    path = finding.save(tmp_path)
    assert finding.save(tmp_path) == path
    assert Finding.load(path) == finding
    assert Finding("value", (b"y",), "why").save(tmp_path).stem == "002"


def test_the_judge_sees_exceptions_time_and_memory() -> None:
    """Each limit by itself."""

    def feed(data: bytes) -> None:
        match data:
            case b"raise":
                raise Violation("as planned")
            case b"slow":
                until = time.thread_time() + 2 * judge.MAX_CPU_S
                while time.thread_time() < until:
                    pass
            case b"large":
                bytes(40_000_000)

    one = Judge("t", feed)
    one.WATCH = 2  # type: ignore[misc]
    for data in (b"fine", b"raise", b"slow", b"large", b"fine", b"fine"):
        one.run(data)
    kinds = [finding.why.split()[0] for finding in one.findings]
    assert set(kinds) == {"Violation:", "took"}
    assert {finding.inputs[0] for finding in one.findings} >= {b"raise", b"slow"}
    assert one.weigh(b"large") > judge.MAX_BYTES


def test_different_inputs_are_never_counted_twice() -> None:
    """Not over several jobs either."""
    one, other = Distinct(), Distinct()
    for data in (b"a", b"b", b"a"):
        one.add(data)
    other.add(b"b")
    other.add(b"c")
    assert one.count == 2
    one.merge_dump(other.dump())
    assert one.count == 3
