"""What `tandem pipeline run` and `tandem report` do, once Spark is there."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandembus.errors import ArgumentError, TandemError
from tandembus.spark.cli import connection_string, pair_of, trigger_of
from tandembus.spark.pipelines import audit
from tandembus.spark.pipelines import capture as capturing
from tandembus.spark.pipelines import replay as replaying
from tandembus.spark.pipelines import syphon as syphoning
from tandembus.spark.pipelines.autoscale import advised, as_rows, plans_of
from tandembus.spark.pipelines.checkpoints import opened
from tandembus.spark.pipelines.events import Span, flagged, good
from tandembus.spark.pipelines.prices import read_prices
from tandembus.spark.pipelines.progress import Standing, Steps, watched
from tandembus.spark.pipelines.running import (
    Outcome,
    keep,
    part_done,
    read_existing,
    run_live,
    run_once,
)
from tandembus.spark.pipelines.targets import read_targets
from tandembus.spark.pipelines.view import PIPELINES, View
from tandembus.spark.run import running


def run_journal(options: argparse.Namespace) -> int:
    """`tandem pipeline run rates`, and the others over the journal."""
    pipeline = PIPELINES[options.pipeline]
    view, span, pools = _view(options), _span(options), _pools(options)
    with running(options, pipeline.name) as run:
        spark = run.spark
        if options.trigger is None:
            steps = Steps(len(pipeline.needs) + 1)
            with watched(run, lambda: steps.standing(part_done(spark))):
                outcome, tables = run_once(
                    spark, [pipeline], options.journal, view, options.out, span, steps.begin
                )
                steps.begin("tables")
                for name, table in tables.items():
                    outcome.tables[name] = keep(name, table, options.out)
            if pools is not None and "advice" in tables:
                _write_pools(options.out, pools, as_rows(tables["advice"]))
            return run.tell(outcome)
        if span != Span():
            raise ArgumentError("--from and --to are for a run without --trigger")
        facts = {"journals": [*options.journal], "out": options.out, "window_s": view.window_s}
        checkpoint = opened(spark, _checkpoint(options, options.out), pipeline.name, facts)
        query, outcome = run_live(
            spark, pipeline, options.journal, view, options.out, checkpoint,
            trigger_of(options.trigger), run.show_batches,
        )  # fmt: skip
        _until_end(query)
        return run.tell(outcome, is_resumed=checkpoint.is_resumed)


def run_capture(options: argparse.Namespace) -> int:
    target = connection_string(options)
    source = dict(pair_of(each) for each in options.option)
    capture = capturing.Capture(options.out, options.format, options.body_schema)
    with running(options, "capture") as run:
        spark = run.spark
        facts = {"entities": [*options.entity], "out": options.out, "format": options.format}
        checkpoint = opened(spark, _checkpoint(options, options.out), "capture", facts)
        source.setdefault("consumer", f"capture-{checkpoint.id}")
        messages = capturing.stream_of(spark, target, options.entity, source)
        query, outcome = capturing.start(
            messages, capture, checkpoint, trigger_of(options.trigger),
            run.show_batches,
        )  # fmt: skip
        _until_end(query)
        return run.tell(outcome, is_resumed=checkpoint.is_resumed)


def run_replay(options: argparse.Namespace) -> int:
    target = connection_string(options)
    if options.rate is not None and options.rate <= 0:
        raise ArgumentError("--rate is above 0")
    replay = replaying.Replay(
        options.into, _span(options), options.where, options.rate, max(1, options.tasks),
        options.keep_ids,
    )  # fmt: skip
    with running(options, "replay") as run:
        spark = run.spark
        rows = capturing.read_capture(spark, options.capture)
        facts = {"capture": options.capture, "into": options.into, "where": options.where,
                 "from": str(options.start), "to": str(options.end)}  # fmt: skip
        home = options.checkpoint or f"{options.capture.rstrip('/')}_replay-{os.getpid()}"
        checkpoint = opened(spark, home, "replay", facts)

        def told(outcome: Outcome, done: int, hours: int) -> None:
            text = f"{outcome.events:,} messages, {done} of {hours} hours"
            run.show(Standing(done, hours, text))

        outcome = replaying.run(spark, rows, replay, target, checkpoint, f"{home}/quarantine", told)
        return run.tell(outcome, is_resumed=checkpoint.is_resumed)


def run_syphon(options: argparse.Namespace) -> int:
    primary = options.primary or os.environ.get("TANDEM_PRIMARY")
    secondary = options.secondary or [os.environ.get("TANDEM_SECONDARY")]
    if not primary or not all(secondary):
        raise ArgumentError("Both --primary and --secondary are needed.")
    settings = syphoning.PairSettings(
        primary, tuple(map(str, secondary)), options.queues, options.name
    )
    pair = settings.pair()
    try:
        depths = [pair.depth(queue) for queue in pair.backlog_queues()]
    except (TandemError, OSError) as error:
        raise ArgumentError(f"The secondary does not answer: {error}") from error
    total = sum(depth.waiting for depth in depths)

    def look() -> Standing:
        left = sum(pair.depth(queue).waiting for queue in pair.backlog_queues())
        return Standing(max(0, total - left), total, f"{left:,} of {total:,} left")

    with running(options, "syphon") as run:
        spark = run.spark
        tasks = options.tasks or spark.sparkContext.defaultParallelism
        shards = syphoning.shards(spark, settings, tasks)
        with watched(run, look):
            rows = [row.asDict() for row in syphoning.drained(shards, settings).collect()]
        moved = sum(row["completed"] for row in rows)
        outcome = Outcome(moved, sum(row["dead_lettered"] for row in rows), 1)
        return run.tell(outcome, tasks=rows)


def run_audit(options: argparse.Namespace) -> int:
    """Exit code 1 if there is an offender."""
    with running(options, "audit") as run:
        spark = run.spark
        steps = Steps(3)
        with watched(run, lambda: steps.standing(part_done(spark))):
            steps.begin("reading")
            events = good(flagged(read_existing(spark, options.journal, Span())))
            outcome = Outcome(batches=1)
            steps.begin("offenders")
            found = audit.audit(events, _standing(spark, options.broker, options.journal))
            outcome.tables["offenders"] = keep("offenders", found, options.out)
            steps.begin("summary")
            outcome.tables["summary"] = keep("summary", audit.summary(events), options.out)
        summary = spark.read.parquet(f"{options.out}/summary")
        outcome.events = int((summary.agg({"arrived": "sum"}).first() or (0,))[0] or 0)
        table = spark.read.parquet(f"{options.out}/offenders").orderBy("namespace", "place")
        rows = [row.asDict() for row in table.limit(max(0, options.show)).collect()]
        offenders = outcome.tables["offenders"]
        run.tell(outcome, offenders=offenders, first_offenders=rows)
        if not options.json:
            for row in rows:
                print(
                    f"{row['fault']}: {row['namespace']} {row['entity']} #{row['sequence_number']} "
                    f"at place {row['place']}: {row['detail'] or audit.FAULTS[row['fault']]}"
                )
            print(f"{offenders:,} offenders" if offenders else "no offender: everything adds up")
        return 1 if offenders else 0


def _standing(spark: SparkSession, brokers: list[str], journals: list[str]) -> DataFrame | None:
    from tandembus.journal.standing import standing

    frames = [
        spark.createDataFrame(standing(Path(folder), namespace, journals))
        for namespace, folder in map(pair_of, brokers)
    ]
    return reduce(DataFrame.unionByName, frames) if frames else None


def run_report(options: argparse.Namespace) -> int:
    from tandembus.spark.report.making import make_report

    view, span = _view(options), _span(options)
    options.out.mkdir(parents=True, exist_ok=True)
    with running(options, "report") as run:
        spark = run.spark
        summary = make_report(
            spark,
            options.journal,
            options.out,
            view,
            span,
            run,
            options.window,
            has_audit=not options.no_audit,
        )
        text = f"{summary['events']:,} events, {run.seconds} s"
        run.conclude(summary["events"], text, str(summary["page"]), [*summary["findings"].values()])
        if options.json:
            print(json.dumps({"pipeline": "report", **summary, "seconds": run.seconds}, indent=2))
        else:
            for finding in summary["findings"].values():
                print(f"· {finding}")
            print(f"{summary['page']} ({text})")
        return 0


# --- what they share ------------------------------------------------------------------------------


def _until_end(query: StreamingQuery) -> None:
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure


def _checkpoint(options: argparse.Namespace, out: str) -> str:
    return str(options.checkpoint or f"{out.rstrip('/')}_checkpoint")


def _span(options: argparse.Namespace) -> Span:
    if options.start and options.end and options.start >= options.end:
        raise ArgumentError("--from is before --to")
    return Span(options.start, options.end)


def _view(options: argparse.Namespace) -> View:
    pools = _pools(options)
    targets = () if options.targets is None else read_targets(options.targets)
    if pools is not None and not targets:
        targets = read_targets(options.pools) if "target" in options.pools.read_text() else ()
    return View(
        window_s=options.window or View().window_s,
        prices=read_prices(options.prices),
        targets=targets,
        plans=() if pools is None else plans_of(pools),
    )


def _pools(options: argparse.Namespace) -> Mapping[str, Any] | None:
    import tomllib

    from tandembus.workers.pools_file import read_pools

    if options.pools is None:
        return None
    text = options.pools.read_text(encoding="utf-8")
    read_pools(text, options.pools.name)  # which says what is wrong
    return tomllib.loads(text)


def _write_pools(out: str, pools: Mapping[str, Any], advice: list[dict[str, Any]]) -> None:
    path = os.path.join(out.removeprefix("file://"), "pools.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(advised(pools, advice))
    print(f"advice for `tandem workers run`: {path}", file=sys.stderr)
