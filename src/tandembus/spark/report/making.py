"""`tandem report`: the pipelines over a journal, their tables as files, and the page of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from tandembus.errors import ArgumentError
from tandembus.spark.pipelines.audit import audit, summary
from tandembus.spark.pipelines.cube import BACKLOG, is_backlog
from tandembus.spark.pipelines.events import Span, flagged, footers, good, read_journal
from tandembus.spark.pipelines.latency import latency
from tandembus.spark.pipelines.progress import Progress, Steps, watched
from tandembus.spark.pipelines.rates import by_level
from tandembus.spark.pipelines.running import (
    QUARANTINED,
    REDUCED,
    Outcome,
    needs_of,
    part_done,
    run_once,
)
from tandembus.spark.pipelines.view import PIPELINES, View
from tandembus.spark.report import findings
from tandembus.spark.report.findings import Row, Section
from tandembus.spark.report.page import Fact, Page, html
from tandembus.spark.report.words import clock, count, length, money, plural, rate

PAGE: Final = "report.html"
TABLES: Final = "tables"
WINDOWS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, 86_400)
MOST_WINDOWS: Final = 300
"""More than a chart can show."""
EXPECTED_TABLES: Final = 18
"""For the bar, before they are known."""
MOST_PAGE_ROWS: Final = 100_000
"""Of a table, that the page looks at; the files have all."""


def window_for(first: datetime | None, last: datetime | None) -> int:
    """The shortest window that leaves a chart readable."""
    seconds = 0.0 if first is None or last is None else (last - first).total_seconds()
    return next((each for each in WINDOWS_S if seconds / each <= MOST_WINDOWS), WINDOWS_S[-1])


def make_report(
    spark: SparkSession,
    journals: Sequence[str],
    out: Path,
    view: View,
    span: Span,
    shown: Progress,
    window_s: int | None = None,
    *,
    has_audit: bool = True,
) -> dict[str, Any]:
    """Writes `report.html` and `tables/` below `out`; returns the summary."""
    ends = footers(_files(spark, journals, span))
    if not ends.rows and not ends.broken:
        raise ArgumentError(f"there are no events in {', '.join(journals)}")
    first, last = span.start or ends.first, span.end or ends.last
    view = replace(view, window_s=window_s or window_for(first, last))
    folder = out.absolute() / TABLES
    pipelines = tuple(PIPELINES.values())
    steps = Steps(len(needs_of(pipelines)) + EXPECTED_TABLES)
    with watched(shown, lambda: steps.standing(part_done(spark))):
        outcome, frames = run_once(
            spark, pipelines, journals, view, folder.as_uri(), span, steps.begin
        )
        cube = spark.read.parquet((folder / REDUCED / "cube").as_uri())
        frames |= {
            "rates_by_level": by_level(frames["rates"]),
            "latency_overall": latency(cube.where(~is_backlog()), ()),
        }
        if has_audit:
            events = good(flagged(read_journal(spark, journals, span)))
            frames |= {"audit": audit(events), "audit_summary": summary(events)}
        tables = {}
        for name, frame in frames.items():
            steps.begin(f"table {name.replace('_', ' ')}")
            tables[name] = frame.toArrow()
    for name, table in tables.items():
        outcome.tables[name] = table.num_rows
        parquet.write_table(table, folder / f"{name}.parquet")
        write_csv(table, folder / f"{name}.csv")
    plain = {name: rows_of(table) for name, table in tables.items()}
    rows = findings.named(plain, plain["rates_by_level"])
    page = _page(outcome, rows, view, journals, (first, last))
    (out / PAGE).write_text(html(page), encoding="utf-8")
    return {
        "page": str(out / PAGE),
        "tables": outcome.tables,
        "events": outcome.events,
        "quarantined": outcome.quarantined,
        "window_s": view.window_s,
        "findings": {section.anchor: section.finding for section in page.sections},
    }


def _files(spark: SparkSession, journals: Sequence[str], span: Span) -> list[str]:
    for journal in journals:
        if "://" not in journal and not Path(journal).is_dir():
            raise ArgumentError(f"there is no folder {journal}")
    return read_journal(spark, journals, span).inputFiles()


def _plain(table: pa.Table) -> pa.Table:
    """Without sketches, which nobody can read."""
    return table.select(
        [field.name for field in table.schema if not pa.types.is_binary(field.type)]
    )


def rows_of(table: pa.Table) -> list[Row]:
    rows: list[Row] = _plain(table).slice(0, MOST_PAGE_ROWS).to_pylist()
    return rows


def write_csv(table: pa.Table, path: Path) -> None:
    """For a spreadsheet: structures as JSON."""
    plain = _plain(table)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(plain.schema.names)
        for batch in plain.to_batches(10_000):
            writer.writerows(map(_cells, batch.to_pylist()))


def _cells(row: Mapping[str, Any]) -> Iterator[Any]:
    for value in row.values():
        yield json.dumps(value, default=str) if isinstance(value, dict | list) else value


# --- the page -------------------------------------------------------------------------------------


def _page(
    outcome: Outcome,
    rows: Mapping[str, Sequence[Row]],
    view: View,
    journals: Sequence[str],
    ends: tuple[datetime | None, datetime | None],
) -> Page:
    levels = rows["rates_by_level"]
    waited = [row for row in rows["latency_by_level"] if _is_at_home(row)]
    promised = [row for row in rows["targets"] if row["within_s"] is not None]
    outage_span = findings.outage_span(rows["outage"], view.window_s)
    sections: list[Section | None] = [
        findings.throughput(
            [row for row in levels if _is_at_home(row) and row["arrived"]],
            rows["throughput"],
            outage_span,
            view.window_s,
        ),
        findings.waits(waited, rows["latency"], promised, rows["starvation"], view.window_s),
        findings.outage(rows["outage"], view.window_s),
        findings.time_spent([row for row in rows["states"] if _is_at_home(row)]),
        findings.cost(rows["ledger"], rows["pairing"], view.prices.currency),
        findings.dead_letters(rows["dead_letters"]),
        findings.audited(rows["audit"], rows["audit_summary"]) if "audit" in rows else None,
        findings.workers(rows["autoscale"], rows["advice"]),
    ]
    namespaces = sorted({str(row["namespace"]) for row in levels})
    first, last = ends
    title = " and ".join(namespaces) or "An empty namespace"
    when = "no events"
    if first is not None and last is not None:
        lasted = length((last - first).total_seconds() * 1000)
        when = f"{clock(first, with_day=True)} to {clock(last, with_day=True)} UTC, {lasted}"
    return Page(
        title,
        f"{when} · {plural(outcome.events, 'event')} of the journal",
        _facts(rows, promised, view),
        [section for section in sections if section is not None],
        _notes(outcome, view, journals),
    )


def _is_at_home(row: Row) -> bool:
    """A queue or a subscription that receivers work on: no dead letters, and no backlog, which has
    a section of its own."""
    return "/$DeadLetterQueue" not in row["entity"] and BACKLOG not in row["entity"]


def _facts(rows: Mapping[str, Sequence[Row]], promised: Sequence[Row], view: View) -> list[Fact]:
    everything = rows["latency_overall"][0]
    over_time = rows["throughput"]
    kept = sum(bool(row["is_attained"]) for row in promised)
    judged = sum(row["percent"] is not None for row in promised)
    facts = [
        Fact(count(sum(row["completed"] for row in over_time)), "messages completed"),
        Fact(
            f"{rate(max((row['completed_per_s'] for row in over_time), default=0))}/s",
            f"at the busiest, over {view.window_s} s",
        ),
        Fact(length(everything["wait_p50_ms"]), "half of them waited at most"),
        Fact(length(everything["wait_p99_ms"]), "99 of 100 waited at most"),
    ]
    if judged:
        state = "good" if kept == judged else "bad"
        facts.append(Fact(f"{kept} of {judged}", "promises kept", state))
    if "audit" in rows:
        offenders = len(rows["audit"])
        facts.append(
            Fact(count(offenders), "offenders found by the audit", "bad" if offenders else "good")
        )
    cost = sum(row["cost"] or 0 for row in rows["ledger"])
    return [*facts, Fact(money(cost, view.prices.currency), "for all operations and the base")]


def _notes(outcome: Outcome, view: View, journals: Sequence[str]) -> list[str]:
    notes = [
        f"One point of a chart is {length(view.window_s * 1000)}. All times are UTC.",
        "Percentiles are from KLL sketches, right to some 1.7 % of rank; all else is counted.",
        f"Each figure is from a table in {TABLES}/, as Parquet and as CSV.",
        f"Made from {', '.join(journals)}.",
    ]
    if outcome.quarantined:
        notes.insert(
            0,
            f"{plural(outcome.quarantined, 'record')} could not be understood: see "
            f"{TABLES}/{QUARANTINED}, which says why.",
        )
    return notes
