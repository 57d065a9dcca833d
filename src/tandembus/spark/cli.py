"""`tandem pipeline list`, `tandem pipeline run NAME`, `tandem pipeline prices` and `tandem report`.

Spark is imported when a command runs, not for its help: `tandem` works without it, and says what to
install when it is needed. What happens goes to stderr, the summary to stdout; with --json it is one
JSON object and nothing else. Exit codes: 0 all well, 1 a problem was found, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tandembus.errors import ArgumentError

INSTALL: Final = "Pipelines run on Spark: pip install 'tandembus[spark]'"

JOURNAL: Final = {
    "rates": "messages and bytes in and out, what waits and what fails, over time",
    "latency": "percentiles of waiting, work and both, as sketches that can be added up",
    "states": "where the time of messages goes: scheduled, waiting, worked on, in vain",
    "targets": "which levels keep their promise, and which starve",
    "ledger": "every billable operation and its price; what pairing costs, apart",
    "autoscale": "how many workers each pool needs; with --pools, as a file for `tandem workers`",
    "dead-letters": "what was dead-lettered, by reason, with samples",
    "outage": "the story of a pair: what went straight, around, and home",
}
"""Over the journal; live with --trigger. They are in `pipelines.view`, which needs Spark."""
MESSAGES: Final = {
    "capture": "messages of entities into Parquet, by entity and hour, each of them once",
    "replay": "a range of a capture into an entity again",
    "syphon": "backlog queues of a long outage brought home by many tasks",
}
AUDIT: Final = "prove from the journal that nothing was lost, doubled or left out"


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    pipeline = commands.add_parser("pipeline", help="data pipelines on Spark")
    tools = pipeline.add_subparsers(required=True, metavar="COMMAND")
    listed = tools.add_parser("list", help="which there are")
    listed.add_argument("--json", action="store_true")
    listed.set_defaults(run=_list)
    prices = tools.add_parser("prices", help="print the table of prices, to be changed")
    prices.set_defaults(run=_prices)
    run = tools.add_parser("run", help="run one")
    names = run.add_subparsers(required=True, metavar="NAME")
    for name, summary in JOURNAL.items():
        _add_journal_pipeline(names.add_parser(name, help=summary, description=summary), name)
    _add_audit(names.add_parser("audit", help=AUDIT, description=AUDIT))
    _add_capture(names.add_parser("capture", help=MESSAGES["capture"]))
    _add_replay(names.add_parser("replay", help=MESSAGES["replay"]))
    _add_syphon(names.add_parser("syphon", help=MESSAGES["syphon"]))
    report = commands.add_parser(
        "report",
        help="a journal as one HTML page with charts, and the tables behind it",
        description="Runs the pipelines over one or several journals and writes DIR/report.html, "
        "which needs no network, and DIR/tables, as Parquet and CSV.",
    )
    report.add_argument(
        "journal", nargs="+", type=_place, metavar="JOURNAL", help="folder of a journal"
    )
    report.add_argument("--out", type=Path, required=True, metavar="DIR")
    report.add_argument("--no-audit", action="store_true", help="leave the audit out: it is half")
    _add_view(report)
    _add_spark(report)
    report.set_defaults(run=_needs_spark("run_report"))


# --- arguments ------------------------------------------------------------------------------------


def _add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", help="of Spark: local[*,4] (default), spark://host:7077, yarn, k8s://…"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--console",
        nargs="?",
        const="",
        metavar="CONNECTION_STRING",
        help="also show the run on the console of a namespace (of the one it works on)",
    )
    parser.add_argument("--verbose", action="store_true", help="with what Spark itself prints")


def _add_live(parser: argparse.ArgumentParser, default: str | None) -> None:
    told = "once, exactly" if default is None else default
    parser.add_argument(
        "--trigger",
        default=default,
        metavar="WHEN",
        help="`available-now`: all that is there, then end; `10s`: every so often, until Ctrl-C "
        f"({told})",
    )
    parser.add_argument(
        "--checkpoint",
        type=_place,
        metavar="DIR",
        help="how far it has come; a later run goes on from there",
    )


def _add_view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window", type=_seconds, metavar="LENGTH", help="of time: 10s, 1m, 1h")
    parser.add_argument("--from", dest="start", type=_time, metavar="TIME", help="UTC if no zone")
    parser.add_argument("--to", dest="end", type=_time, metavar="TIME")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="see `tandem pipeline prices`")
    parser.add_argument(
        "--targets", type=Path, metavar="FILE", help="[[target]] tables, or a file of pools"
    )
    parser.add_argument("--pools", type=Path, metavar="FILE", help="a file of `tandem workers`")


def _add_journal_pipeline(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "journal", nargs="+", type=_place, metavar="JOURNAL", help="folder of a journal"
    )
    parser.add_argument(
        "--out", required=True, type=_place, metavar="DIR", help="where the tables go"
    )
    _add_view(parser)
    _add_live(parser, None)
    _add_spark(parser)
    parser.set_defaults(run=_needs_spark("run_journal"), pipeline=name)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "journal", nargs="+", type=_place, metavar="JOURNAL", help="folder of a journal"
    )
    parser.add_argument(
        "--out", required=True, type=_place, metavar="DIR", help="where the tables go"
    )
    parser.add_argument(
        "--broker",
        action="append",
        default=[],
        metavar="NAMESPACE=FOLDER",
        help="a broker's data folder: what its own index says must agree with the journal",
    )
    parser.add_argument("--show", type=int, default=20, metavar="N", help="offenders printed (20)")
    _add_spark(parser)
    parser.set_defaults(run=_needs_spark("run_audit"))


def _add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connection-string", help="or TANDEM_CONNECTION_STRING, or SERVICEBUS_CONNECTION_STRING"
    )


def _add_capture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "entity", nargs="+", help="a queue, topic/Subscriptions/name, queue/$DeadLetterQueue"
    )
    parser.add_argument("--out", required=True, type=_place, metavar="DIR")
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument(
        "--body-schema", metavar="DDL", help="of JSON bodies, for a column `data`: 'id BIGINT, …'"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of the data source"
    )
    _add_connection(parser)
    _add_live(parser, "available-now")
    _add_spark(parser)
    parser.set_defaults(run=_needs_spark("run_capture"))


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("capture", type=_place, metavar="DIR", help="what `capture` wrote")
    parser.add_argument("--into", required=True, metavar="ENTITY", help="a queue or a topic")
    parser.add_argument("--from", dest="start", type=_time, metavar="TIME", help="UTC if no zone")
    parser.add_argument("--to", dest="end", type=_time, metavar="TIME")
    parser.add_argument("--where", metavar="SQL", help="over the columns of the capture")
    parser.add_argument("--rate", type=float, metavar="N", help="messages a second")
    parser.add_argument(
        "--tasks", type=int, default=2, metavar="N", help="1 keeps all in order (2)"
    )
    parser.add_argument("--keep-ids", action="store_true", help="the ids that messages had")
    parser.add_argument(
        "--checkpoint", type=_place, metavar="DIR", help="to go on after an interruption"
    )
    _add_connection(parser)
    _add_spark(parser)
    parser.set_defaults(run=_needs_spark("run_replay"))


def _add_syphon(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--primary", metavar="CONNECTION_STRING", help="or TANDEM_PRIMARY")
    parser.add_argument(
        "--secondary",
        action="append",
        metavar="CONNECTION_STRING",
        help="or TANDEM_SECONDARY; several times for several, in the order of their use",
    )
    parser.add_argument("--queues", type=int, default=10, help="backlog queues (10)")
    parser.add_argument("--name", help="of the primary, if its host name is not used")
    parser.add_argument("--tasks", type=int, metavar="N", help="at most one a backlog queue")
    _add_spark(parser)
    parser.set_defaults(run=_needs_spark("run_syphon"))


def _place(text: str) -> str:
    """A folder, or the URI of one. Spark may have been started elsewhere, so it is whole."""
    return text if "://" in text else os.path.abspath(text)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([smhd]?)", text.strip())
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"a length of time is written 10s, 5m, 1h; not '{text}'")
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def trigger_of(text: str) -> dict[str, Any]:
    """Of a streaming query."""
    if text in ("available-now", "once"):
        return {"availableNow": True}
    try:
        return {"processingTime": f"{_seconds(text)} seconds"}
    except argparse.ArgumentTypeError as error:
        raise ArgumentError(f"--trigger is available-now, or a length of time: {error}") from error


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"a time is written 2026-01-31T12:00:00Z; not '{text}'"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# --- commands -------------------------------------------------------------------------------------


def _needs_spark(name: str) -> Callable[[argparse.Namespace], int]:
    """The command of that name in `commands`, which imports Spark."""

    def run(options: argparse.Namespace) -> int:
        try:
            import pyspark  # noqa: F401

            from tandembus.spark import commands
        except ImportError as error:
            raise ArgumentError(f"{INSTALL} ({error})") from error
        code: int = getattr(commands, name)(options)
        return code

    return run


def _list(options: argparse.Namespace) -> int:
    known = {**JOURNAL, "audit": AUDIT, **MESSAGES}
    if options.json:
        print(json.dumps([{"name": name, "what": what} for name, what in known.items()], indent=2))
        return 0
    for name, what in known.items():
        print(f"{name:14}{what}")
    return 0


def _prices(options: argparse.Namespace) -> int:
    path = Path(__file__).with_name("pipelines") / "prices.toml"
    sys.stdout.write(path.read_text(encoding="utf-8"))
    return 0


def connection_string(options: argparse.Namespace) -> str:
    names = ("TANDEM_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING")
    given = getattr(options, "connection_string", None) or getattr(options, "primary", None)
    found = given or next(filter(None, map(os.environ.get, names)), None)
    if not found:
        flag = "--connection-string" if "connection_string" in options else "it after --console"
        raise ArgumentError(f"no connection string: give {flag}, or set {names[0]}")
    return str(found)


def pair_of(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise ArgumentError(f"an option is written KEY=VALUE, not '{text}'")
    return key, value
