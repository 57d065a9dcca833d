"""What the report says, by the rows of its tables; no Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tandembus.spark.report import charts, findings
from tandembus.spark.report.findings import named, outage_span

BEGIN = datetime(2026, 1, 1, 12)


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def level(entity: str, number: int | None = 0, **more: Any) -> dict[str, Any]:
    return {"namespace": "n", "entity": entity, "level": number, **more}


def test_levels_are_named_where_there_are_several() -> None:
    levels = [level("a", 0), level("a", 1), level("b", 0), level("b", None)]
    (rows,) = named({"x": levels}, levels).values()
    assert [row["label"] for row in rows] == [
        "a\u00a0·\u00a0level\u00a00",
        "a\u00a0·\u00a0level\u00a01",
        "b",
        "b",
    ]
    twice = [level("a"), {**level("a"), "namespace": "m"}]
    (rows,) = named({"x": twice}, twice).values()
    assert [row["label"] for row in rows] == ["n: a", "m: a"]


def promise(entity: str, percent: float | None, **more: Any) -> dict[str, Any]:
    return level(
        entity, within_s=10.0, promised_percent=99.0, percent=percent, judged=100, overdue=0,
        is_attained=percent is not None and percent >= 99, longest_ms=12_000, **more,
    )  # fmt: skip


def waited(entity: str) -> dict[str, Any]:
    return level(
        entity, wait_count=9, wait_p50_ms=0, wait_p90_ms=300, wait_p99_ms=4_000, window=at(0)
    )


def test_a_missed_promise_is_the_finding() -> None:
    rows = [promise("a", 99.5), promise("b", 80.0), promise("c", 95.0)]
    found = findings.waits([waited("a")], [waited("a")], rows, [], 60)
    assert found.finding == (
        "2 promises of 3 missed: only 80 % of b were done within 10 s, not 99 %"
    )
    assert found.state == "bad"
    assert [row[2] for row in found.tables[0].rows] == ["✗ 80 %", "✗ 95 %", "✓ 99.5 %"]
    kept = findings.waits([waited("a")], [waited("a")], [promise("a", 100.0)], [], 60)
    assert (kept.state, kept.finding) == (
        "good",
        "Every promise was kept: 1 level within the target",
    )
    plain = findings.waits([waited("a")], [waited("a")], [], [], 60)
    assert plain.finding == "99 of 100 messages waited at most 4.0 s, in a the longest"
    starved = [level("a", starved_windows=3, first_starved=at(1), most_waiting=7)]
    assert "a starved: in 3 windows" in findings.waits([], [], [], starved, 60).lead


def story(minute: int, around: int, home: int, left: int, **more: int) -> dict[str, Any]:
    return {"window": at(minute), "sent_straight": 5, "sent_around": around, "brought_home": home,
            "in_backlog": left, "pings": 0, "not_understood": 0, "starts": 0, **more}  # fmt: skip


def test_the_story_of_an_outage() -> None:
    rows = [
        story(0, 0, 0, 0),
        story(1, 10, 0, 10, pings=1),
        story(2, 10, 0, 20),
        story(5, 0, 20, 0),
    ]
    assert outage_span(rows, 60) == (at(1), at(3))
    found = findings.outage(rows, 60)
    assert found is not None
    assert found.finding == ("For 2 min 20 messages took the way around; all are home 3 min later")
    assert "1 ping asked" in found.lead
    late = findings.outage(rows[:3], 60)
    assert late is not None
    assert late.finding.endswith("20 of them are not home yet")
    assert late.state == "bad"
    assert findings.outage(rows[:1], 60) is None


def test_cost_with_pairing_apart() -> None:
    row = {"entity": "a", "operation": "send", "is_pairing": False, "operations": 200, "bytes": 1,
           "cost": 2.0}  # fmt: skip
    paired = {**row, "entity": "n/x-servicebus-transfer/0", "is_pairing": True, "operations": 20,
              "cost": 0.2}  # fmt: skip
    base = {**row, "entity": None, "operation": "base price", "operations": 0, "cost": 5.0}
    found = findings.cost([row, paired, base], [], "EUR")
    assert found.finding == "220 billed operations: 7.20 EUR; pairing adds 10 %"
    assert "5.00 EUR is the base price" in found.lead
    assert findings.cost([row], [], "EUR").finding == "200 billed operations: 2.00 EUR"


def test_time_dead_letters_audit_workers() -> None:
    states = [
        level("a", state="waiting", ms=900, messages=3),
        level("a", state="worked_on", ms=100, messages=3),
    ]
    assert findings.time_spent(states).finding == (
        "Messages spent 90 % of their time waiting, 10 % being worked on"
    )
    assert "yet" in findings.time_spent([]).finding
    sample = {"sequence_number": 4, "delivery_count": 10, "detail": "x" * 200}
    dead: list[dict[str, Any]] = [
        {
            "entity": "a",
            "reason": "R",
            "messages": 3,
            "stubborn": sample,
            "first_time": at(0),
            "last_time": at(1),
        },
        {
            "entity": "b",
            "reason": None,
            "messages": 1,
            "stubborn": None,
            "first_time": at(0),
            "last_time": at(1),
        },
    ]
    section = findings.dead_letters(dead)
    assert section.finding == "4 messages dead-lettered, 75 % of them for R in a"
    assert section.tables[0].rows[0][2] == f"#4, 10 tries, {'x' * 80}…"
    assert findings.dead_letters([]).state == "good"
    summary = [{"arrived": 10, "there": 3}]
    assert findings.audited([], summary).finding == (
        "All 10 arrivals are accounted for: 7 ended once, 3 are there"
    )
    offender = {"entity": "a", "fault": "lost", "detail": None, "sequence_number": 5, "place": 77}
    assert findings.audited([offender], summary).finding == "1 message of 10 do not add up: 1 lost"
    assert findings.workers([], []) is None


def test_a_line_does_not_run_over_what_it_does_not_know() -> None:
    """Where no window has a row nothing happened: the rate is 0 there, and what waits goes on."""

    rows = [
        {"window": at(minute), "arrived_per_s": rate, "waiting": waiting}
        for minute, rate, waiting in ((0, 5, 1), (1, 4, 2), (2, 3, 3), (4, 2, 4), (8, 1, 5))
    ]
    shown = charts.with_quiet(rows, 60, {"arrived_per_s": 0})
    assert [each["window"] for each in shown] == [at(minute) for minute in (0, 1, 2, 3, 4, 5, 7, 8)]
    assert [each["arrived_per_s"] for each in shown] == [5, 4, 3, 0, 2, 0, 0, 1]
    assert [each["waiting"] for each in shown] == [1, 2, 3, 3, 4, 4, 4, 5]
    assert charts.with_quiet([], 60, {}) == []
