"""What the tables say, in sentences: each section of the page opens with its finding. Rows in, text
out; nothing here knows Spark or HTML."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from tandembus.spark.report import charts
from tandembus.spark.report.words import (
    NONE,
    clock,
    count,
    length,
    money,
    percent,
    plural,
    rate,
    size,
)

Row: TypeAlias = Mapping[str, Any]
MOST_ROWS: Final = 12
"""Of a table or a chart on the page; the rest is in the files."""
MOST_LINES: Final = 6


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    is_text: int = 1
    """So many columns from the left are words; the rest are figures, and stand right."""
    more: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    anchor: str
    title: str
    """What it is about, for the list of contents."""
    finding: str
    lead: str = ""
    figures: tuple[charts.Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    state: str = ""
    """`good`, `bad`, or nothing to judge."""


def name_of(row: Row) -> str:
    """An entity, with its level where it has several (`named` says so)."""
    return str(row.get("label") or row["entity"])


def named(tables: Mapping[str, Sequence[Row]], levels: Sequence[Row]) -> dict[str, list[Row]]:
    """The same rows with a `label`: the entity; its level, if it has several; its namespace, if
    another one has an entity of that name. `levels` has a row for each there is."""
    of_entity = Counter(
        (row["namespace"], row["entity"]) for row in levels if row["level"] is not None
    )
    homes = Counter(entity for _, entity in of_entity)

    def label(row: Row) -> str:
        entity = row["entity"]
        text = f"{row['namespace']}: {entity}" if homes[entity] > 1 else entity
        has_levels = row.get("level") is not None and of_entity[row["namespace"], entity] > 1
        return f"{text}\u00a0·\u00a0level\u00a0{row['level']}" if has_levels else text

    return {
        name: [{**row, "label": label(row)} if row.get("entity") else row for row in rows]
        for name, rows in tables.items()
    }


def _short(shown: int, all_of: int, where: str) -> str:
    return f"{count(all_of - shown)} more in {where}" if all_of > shown else ""


def _sum(rows: Sequence[Row], of: str) -> int:
    return sum(row[of] or 0 for row in rows)


# --- throughput -----------------------------------------------------------------------------------


def throughput(
    rates: Sequence[Row],
    over_time: Sequence[Row],
    outage: tuple[datetime, datetime] | None,
    window_s: int,
) -> Section:
    """`rates` one row for each entity and level; `over_time` one for each window."""
    arrived, completed = _sum(over_time, "arrived"), _sum(over_time, "completed")
    busiest = max(over_time, key=lambda row: row["completed_per_s"], default=None)
    waiting = over_time[-1]["waiting"] if over_time else 0
    finding = f"{plural(arrived, 'message')} arrived, {count(completed)} were completed"
    if waiting:
        finding += f"; {count(waiting)} still wait"
    lead = ""
    if busiest is not None:
        lead = (
            f"The busiest moment, {clock(busiest['window'])} UTC, completed "
            f"{rate(busiest['completed_per_s'])} a second. "
        )
    failed = _sum(rates, "dead_lettered")
    sent = [row for row in rates if row["entity_kind"] != "subscription"]  # which has copies
    lead += (
        f"{count(_sum(rates, 'returned'))} deliveries came back, {count(failed)} messages were "
        f"dead-lettered, {count(_sum(rates, 'expired'))} expired. "
        f"{size(_sum(sent, 'bytes_in'))} came in, {size(_sum(rates, 'bytes_out'))} went out."
    )
    served = [row for row in rates if row["entity_kind"] != "topic"]
    ordered = sorted(served, key=lambda row: -row["arrived"])
    table = Table(
        ("Entity", "Arrived", "Completed", "Came back", "Dead", "Expired", "Waiting", "Bytes in"),
        [
            (
                name_of(row), count(row["arrived"]), count(row["completed"]),
                count(row["returned"]), count(row["dead_lettered"]), count(row["expired"]),
                count(row["waiting"]), size(row["bytes_in"]),
            )
            for row in ordered[:MOST_ROWS]
        ],
        more=_short(MOST_ROWS, len(ordered), "rates"),
    )  # fmt: skip
    figures = (charts.throughput(over_time, window_s, outage),) if over_time else ()
    return Section("throughput", "Throughput", finding, lead, figures, (table,))


# --- waits ----------------------------------------------------------------------------------------


def waits(
    latency: Sequence[Row],
    over_time: Sequence[Row],
    targets: Sequence[Row],
    starvation: Sequence[Row],
    window_s: int,
) -> Section:
    promised = {
        (row["entity"], row["level"]): 1000 * row["within_s"]
        for row in targets
        if row["within_s"] is not None
    }
    judged = [row for row in targets if row["percent"] is not None]
    missed = sorted(
        (row for row in judged if not row["is_attained"]),
        key=lambda row: row["percent"] - row["promised_percent"],
    )
    shown = sorted(
        (row for row in latency if row["wait_count"]), key=lambda row: -(row["wait_p99_ms"] or 0)
    )
    if missed:
        worst = missed[0]
        finding = (
            f"{plural(len(missed), 'promise')} of {len(judged)} missed: only "
            f"{percent(worst['percent'] / 100)} of {name_of(worst)} were done within "
            f"{length(1000 * worst['within_s'])}, not {worst['promised_percent']:g} %"
        )
    elif judged:
        finding = f"Every promise was kept: {plural(len(judged), 'level')} within the target"
    elif shown:
        finding = (
            f"99 of 100 messages waited at most {length(shown[0]['wait_p99_ms'])}, in "
            f"{name_of(shown[0])} the longest"
        )
    else:
        finding = "Nothing was delivered, so nothing is known about waits"
    lead = (
        "The wait is from the arrival of a message to its first delivery. A promise is judged on "
        "the time to completion; what expired, was dead-lettered or is overdue has missed it."
    )
    if starvation:
        hungry = max(starvation, key=lambda row: row["starved_windows"])
        lead += (
            f" {name_of(hungry)} starved: in {plural(hungry['starved_windows'], 'window')} it got "
            "nothing, while other levels of the same entity were served."
        )
    table = Table(
        ("Level", "Promise", "Done in time", "Judged", "Overdue", "Longest"),
        [
            (
                name_of(row),
                f"{row['promised_percent']:g} % within {length(1000 * row['within_s'])}",
                ("✓ " if row["is_attained"] else "✗ ") + percent(row["percent"] / 100),
                count(row["judged"]), count(row["overdue"]), length(row["longest_ms"]),
            )
            for row in [*missed, *(row for row in judged if row["is_attained"])][:MOST_ROWS]
        ],
        is_text=2,
        more=_short(MOST_ROWS, len(judged), "targets"),
    )  # fmt: skip
    labelled = [{"label": name_of(row), **row} for row in shown[:MOST_ROWS]]
    lines: dict[str, list[Row]] = {name_of(row): [] for row in shown[:MOST_LINES]}
    for row in over_time:
        if name_of(row) in lines:
            lines[name_of(row)].append(row)
    figures: list[charts.Figure] = []
    if labelled:
        figures = [charts.waits(labelled, promised), charts.waits_over_time(lines, window_s)]
    return Section(
        "waits", "Waits and promises", finding, lead, tuple(figures),
        (table,) if judged else (), "bad" if missed else "good" if judged else "",
    )  # fmt: skip


# --- where the time goes --------------------------------------------------------------------------


def time_spent(states: Sequence[Row]) -> Section:
    total: defaultdict[str, int] = defaultdict(int)
    by_entity: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in states:
        total[row["state"]] += row["ms"]
        by_entity[row["entity"]][row["state"]] += row["ms"]
    whole = sum(total.values())
    if not whole:
        return Section("time", "Where the time goes", "No message has spent any time here yet")
    most = max(total, key=lambda state: total[state])
    finding = (
        f"Messages spent {percent(total[most] / whole)} of their time "
        f"{charts.STATES[most][0].lower()}"
    )
    work = total["worked_on"] / whole
    if most != "worked_on":
        finding += f", {percent(work)} being worked on"
    lead = (
        f"{length(whole)} in all. In vain is time under a lock that ended without success: "
        f"{length(total['in_vain'])}; given up is the time of messages that expired or were "
        f"dead-lettered: {length(total['given_up'])}."
    )
    entities = [entity for entity in by_entity if any(by_entity[entity].values())]
    entities.sort(key=lambda entity: -sum(by_entity[entity].values()))
    rows = [
        {
            "entity": entity,
            "state": state,
            "share": ms / max(1, sum(by_entity[entity].values())),
            "text": length(ms),
        }
        for entity in entities[:MOST_ROWS]
        for state, ms in by_entity[entity].items()
    ]
    return Section("time", "Where the time goes", finding, lead, (charts.states(rows),))


# --- cost -----------------------------------------------------------------------------------------


def cost(ledger: Sequence[Row], pairing: Sequence[Row], currency: str) -> Section:
    billed = [row for row in ledger if row["operations"]]
    operations, total = _sum(billed, "operations"), sum(row["cost"] or 0 for row in ledger)
    base = sum(row["cost"] or 0 for row in ledger if not row["operations"])
    extra = sum(row["operations"] for row in billed if row["is_pairing"])
    finding = f"{plural(operations, 'billed operation')}: {money(total, currency)}"
    lead = (
        f"Of that, {money(base, currency)} is the base price of the time that the journal spans. "
    )
    if extra:
        extra_cost = sum(row["cost"] or 0 for row in billed if row["is_pairing"])
        finding += f"; pairing adds {percent(extra / max(1, operations - extra))}"
        lead += (
            f"Pairing added {plural(extra, 'operation')} ({money(extra_cost, currency)}): what "
            "went into and out of backlog queues, empty polls of the syphon, and pings. "
        )
    else:
        lead += "No operation was due to pairing. "
    empty = sum(row["operations"] for row in billed if row["operation"] == "empty receive")
    if operations and empty / operations >= 0.05:
        lead += f"{percent(empty / operations)} of all are receives that brought nothing. "
    lead += "Prices are those of the table that the report was given."
    by_entity: defaultdict[str, list[Row]] = defaultdict(list)
    for row in billed:
        by_entity[row["entity"] or NONE].append(row)
    entities = sorted(by_entity, key=lambda entity: -_sum(by_entity[entity], "operations"))
    drawn = [
        {**row, "entity": entity} for entity in entities[:MOST_ROWS] for row in by_entity[entity]
    ]
    tables = [
        Table(
            ("Entity", "Operations", "of which pairing", "Bytes", "Cost"),
            [
                (
                    entity, count(_sum(by_entity[entity], "operations")),
                    count(sum(r["operations"] for r in by_entity[entity] if r["is_pairing"])),
                    size(_sum(by_entity[entity], "bytes")),
                    money(sum(r["cost"] or 0 for r in by_entity[entity]), currency),
                )
                for entity in entities[:MOST_ROWS]
            ],
            more=_short(MOST_ROWS, len(entities), "ledger"),
        )
    ]  # fmt: skip
    if extra:
        tables.append(
            Table(
                ("Operation of pairing", "How known", "Operations"),
                [
                    (
                        row["operation"],
                        "counted" if row["is_counted"] else "follows from what came home",
                        count(row["operations"]),
                    )
                    for row in pairing
                ],
                is_text=2,
            )
        )
    figures = (charts.costs(drawn),) if drawn else ()
    return Section("cost", "Cost", finding, lead, figures, tuple(tables))


# --- the outage -----------------------------------------------------------------------------------


def outage_span(rows: Sequence[Row], window_s: int) -> tuple[datetime, datetime] | None:
    """From the first message that went around to the last."""
    around = [row["window"] for row in rows if row["sent_around"]]
    return (around[0], around[-1] + timedelta(seconds=window_s)) if around else None


def outage(rows: Sequence[Row], window_s: int) -> Section | None:
    """None: nothing went around, so there is no story to tell."""
    span = outage_span(rows, window_s)
    if span is None:
        return None
    begin, end = span
    around, home, left = (
        _sum(rows, "sent_around"),
        _sum(rows, "brought_home"),
        rows[-1]["in_backlog"],
    )
    lost = _sum(rows, "not_understood")
    away = length((end - begin).total_seconds() * 1000)
    finding = f"For {away} {plural(around, 'message')} took the way around; "
    if left:
        finding += f"{count(left)} of them are not home yet"
    else:
        last = max(row["window"] for row in rows if row["brought_home"] or row["not_understood"])
        after_ms = (last + timedelta(seconds=window_s) - end).total_seconds() * 1000
        finding += "all are home"
        finding += f" {length(after_ms)} later" if after_ms > 0 else " by the end of it"
    lead = (
        f"From {clock(begin)} to {clock(end)} UTC sends went to backlog queues of the secondary. "
        f"{plural(_sum(rows, 'pings'), 'ping')} asked for the primary. The syphon brought "
        f"{count(home)} home"
    )
    lead += f"; {count(lost)} were dead-lettered, because it could not bring them." if lost else "."
    return Section(
        "outage", "The outage", finding, lead, (charts.outage(rows, window_s, span),),
        state="bad" if left or lost else "good",
    )  # fmt: skip


# --- the rest -------------------------------------------------------------------------------------


def dead_letters(rows: Sequence[Row]) -> Section:
    total = _sum(rows, "messages")
    if not total:
        return Section("dead-letters", "Dead letters", "Nothing was dead-lettered", state="good")
    ordered = sorted(rows, key=lambda row: -row["messages"])
    first = ordered[0]
    finding = (
        f"{plural(total, 'message')} dead-lettered, {percent(first['messages'] / total)} of them "
        f"for {first['reason'] or 'no given reason'} in {first['entity']}"
    )
    table = Table(
        ("Entity", "Reason", "Sample: number, tries, text", "Messages", "First", "Last"),
        [
            (
                row["entity"], row["reason"] or NONE, _sample(row["stubborn"]),
                count(row["messages"]), clock(row["first_time"]), clock(row["last_time"]),
            )
            for row in ordered[:MOST_ROWS]
        ],
        is_text=3,
        more=_short(MOST_ROWS, len(ordered), "dead_letters"),
    )  # fmt: skip
    return Section("dead-letters", "Dead letters", finding, "", (), (table,), "bad")


def audited(offenders: Sequence[Row], summary: Sequence[Row]) -> Section:
    arrived, there = _sum(summary, "arrived"), _sum(summary, "there")
    lead = (
        "From the journal alone: numbers without a gap, each message ended once or is still there, "
        "and what was dead-lettered, forwarded or syphoned arrived exactly once."
    )
    if not offenders:
        finding = (
            f"All {plural(arrived, 'arrival')} are accounted for: {count(arrived - there)} ended "
            f"once, {count(there)} are there"
        )
        return Section("audit", "Audit", finding, lead, state="good")
    faults = Counter(row["fault"] for row in offenders)
    most = ", ".join(f"{count(number)} {fault}" for fault, number in faults.most_common(3))
    table = Table(
        ("Entity", "Fault", "Detail", "Number", "Place in the log"),
        [
            (
                str(row["entity"] or NONE), row["fault"], str(row["detail"] or NONE)[:100],
                str(row["sequence_number"] or NONE), str(row["place"]),
            )
            for row in offenders[:MOST_ROWS]
        ],
        is_text=3,
        more=_short(MOST_ROWS, len(offenders), "audit"),
    )  # fmt: skip
    finding = f"{plural(len(offenders), 'message')} of {count(arrived)} do not add up: {most}"
    return Section("audit", "Audit", finding, lead, (), (table,), "bad")


def _sample(sample: Row | None) -> str:
    if not sample:
        return NONE
    text = (sample["detail"] or "").strip()
    parts = [f"#{sample['sequence_number']}", f"{sample['delivery_count'] or 0} tries"]
    return ", ".join([*parts, text[:80] + "…" if len(text) > 80 else text] if text else parts)


def workers(sizes: Sequence[Row], advice: Sequence[Row]) -> Section | None:
    busy = [row for row in advice if row["max"] and row["mean_busy"]]
    if not busy:
        return None
    first = busy[0]
    finding = f"{first['pool']} needs {count(first['min'])} to {plural(first['max'], 'worker')}" + (
        f", the most of {len(busy)} pools" if len(busy) > 1 else ""
    )
    lead = (
        "What the work that came would have kept busy, through the same rules by which "
        "`tandem workers` sizes a pool. A pool of its own is assumed for each entity that no file "
        "of pools names."
    )
    table = Table(
        ("Pool", "Least", "Most", "At the end", "Mean busy", "Busiest at"),
        [
            (
                row["pool"], count(row["min"]), count(row["max"]), count(row["size"]),
                f"{row['mean_busy']:.2f}", clock(row["busiest_window"]),
            )
            for row in busy[:MOST_ROWS]
        ],
        more=_short(MOST_ROWS, len(busy), "advice"),
    )  # fmt: skip
    lines: dict[str, list[Row]] = {row["pool"]: [] for row in busy[:MOST_LINES]}
    for row in sizes:
        if row["pool"] in lines:
            lines[row["pool"]].append(row)
    return Section("workers", "Workers", finding, lead, (charts.workers(lines),), (table,))
