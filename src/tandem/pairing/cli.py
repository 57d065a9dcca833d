"""`tandem syphon`, `tandem pairing status` and `tandem pairing cost`.

Connection strings hold keys, so they can also come from the environment: TANDEM_PRIMARY and
TANDEM_SECONDARY. The SDK is imported when a command runs, not for its help.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandem.errors import ArgumentError, ConnectionLostError, TandemError

if TYPE_CHECKING:
    from tandem.pairing.pair import Pair
    from tandem.pairing.syphon import Syphon

DAYS_OF_MONTH: Final = 30


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    syphon = commands.add_parser(
        "syphon",
        help="bring the backlog of a pair home",
        description="Moves what is in the backlog queues of the secondary to its destinations in "
        "the primary, until it is stopped. Any number may run, anywhere.",
    )
    _add_pair(syphon)
    syphon.add_argument(
        "--ledger", type=Path, metavar="FILE", help="keep the counts of `pairing cost` in this file"
    )
    syphon.add_argument(
        "--every", type=float, default=10.0, metavar="SECONDS", help="how often to report (10)"
    )
    syphon.add_argument("--until-empty", action="store_true", help="end when nothing is left")
    syphon.set_defaults(run=_syphon)

    pairing = commands.add_parser("pairing", help="what a pair of namespaces does, and costs")
    tools = pairing.add_subparsers(required=True, metavar="COMMAND")
    status = tools.add_parser(
        "status", help="depth of the backlogs, rate, time to drain, and whether the primary answers"
    )
    _add_pair(status)
    status.add_argument(
        "--during", type=float, default=2.0, metavar="SECONDS", help="measure the rate so long (2)"
    )
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)

    cost = tools.add_parser("cost", help="operations that pairing has cost, beside the formula")
    cost.add_argument("--queues", type=int, default=10, help="backlog queues (10)")
    cost.add_argument("--syphons", type=int, default=1, help="processes with a syphon (1)")
    cost.add_argument("--messages", type=int, default=0, help="messages through the backlog")
    cost.add_argument("--entities", type=int, default=0, help="entities that were unavailable")
    cost.add_argument("--outage", type=float, default=0, metavar="MINUTES", help="for how long")
    cost.add_argument("--ping-interval", type=float, default=1, metavar="MINUTES")
    cost.add_argument("--ledger", type=Path, action="append", default=[], metavar="FILE")
    cost.set_defaults(run=_cost)


def _add_pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--primary", metavar="CONNECTION_STRING", help="or TANDEM_PRIMARY")
    parser.add_argument(
        "--secondary",
        action="append",
        metavar="CONNECTION_STRING",
        help="or TANDEM_SECONDARY; several times for several, in the order of their use",
    )
    parser.add_argument("--queues", type=int, default=10, help="backlog queues (10)")
    parser.add_argument("--name", help="of the primary, if its host name is not used")
    parser.add_argument("--verbose", action="store_true")


def _pair(options: argparse.Namespace) -> Pair:
    import logging

    try:
        from tandem.pairing.options import PairingOptions
        from tandem.pairing.pair import Pair
    except ImportError as error:
        raise ArgumentError("This needs azure-servicebus: pip install 'tandem[pairing]'") from error

    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("azure").setLevel(logging.ERROR)
    primary = options.primary or os.environ.get("TANDEM_PRIMARY")
    secondary = options.secondary or [os.environ.get("TANDEM_SECONDARY")]
    if not primary or not all(secondary):
        raise ArgumentError("Both --primary and --secondary are needed.")
    try:
        chosen = PairingOptions(backlog_queue_count=options.queues, primary_name=options.name)
        return Pair(primary, secondary, chosen, None, None)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


# --- syphon ---------------------------------------------------------------------------------------


def _syphon(options: argparse.Namespace) -> int:
    import asyncio

    pair = _pair(options)
    try:
        return asyncio.run(_run_syphon(pair, options))
    except ConnectionLostError as error:
        raise ArgumentError(f"The secondary does not answer: {error}") from error


async def _run_syphon(pair: Pair, options: argparse.Namespace) -> int:
    import asyncio
    import signal
    from contextlib import suppress

    from tandem.pairing.namespaces import ensure_backlog
    from tandem.pairing.syphon import Syphon

    for namespace in pair.secondaries:
        await asyncio.to_thread(
            ensure_backlog, namespace, pair.name, pair.options.backlog_queue_count
        )
    syphon = Syphon(pair)
    running = asyncio.create_task(syphon.run())
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopped.set)
    print(f"The syphon of '{pair.name}' runs. Ctrl-C stops it.", flush=True)
    told = ""
    while not stopped.is_set() and not running.done():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), 0.5 if options.until_empty else options.every)
        told = _tell(syphon, told)
        _keep(pair, options.ledger)
        if options.until_empty and await asyncio.to_thread(_is_empty, pair, syphon):
            break
    await syphon.stop()
    await asyncio.gather(running, return_exceptions=True)
    _tell(syphon, told)
    _keep(pair, options.ledger)
    return 0


def _is_empty(pair: Pair, syphon: Syphon) -> bool:
    return syphon.flow.in_hand == 0 and sum(waiting for _, waiting, _ in _depths(pair)) == 0


def _tell(syphon: Syphon, told: str) -> str:
    flow = syphon.flow
    text = (
        f"{flow.received:,} received, {flow.sent:,} sent home, {flow.completed:,} completed, "
        f"{flow.dead_lettered:,} dead-lettered, {flow.returned:,} given back, {flow.lost:,} locks "
        f"lost, {flow.in_hand:,} in hand"
    )
    held = [f"; {path} is held back: {why}" for path, why in syphon.holds.why.items()]
    text += "".join(held)
    if text != told:
        print(text, flush=True)
    return text


def _keep(pair: Pair, path: Path | None) -> None:
    if path is not None:
        aside = path.with_name(path.name + ".new")
        aside.write_text(pair.ledger.as_json(), encoding="utf-8")
        aside.replace(path)


# --- status ---------------------------------------------------------------------------------------


def _depths(pair: Pair) -> list[tuple[str, int, int]]:
    """Path, waiting, dead-lettered of every backlog queue."""
    from tandem.pairing.options import backlog_path

    found = []
    for namespace in pair.secondaries:
        assert namespace.administration is not None
        for index in range(pair.options.backlog_queue_count):
            depth = namespace.administration.depth(backlog_path(pair.name, index))
            found.append((depth.path, depth.waiting, depth.dead_lettered))
    return found


def measured(
    depths: Callable[[], list[tuple[str, int, int]]], seconds: float
) -> tuple[list[tuple[str, int, int]], float]:
    """The depths now, and how many messages a second have left since `seconds` ago."""
    before = sum(waiting for _, waiting, _ in depths())
    begin = time.monotonic()
    time.sleep(seconds)
    now = depths()
    elapsed = time.monotonic() - begin
    return now, (before - sum(waiting for _, waiting, _ in now)) / max(elapsed, 1e-9)


def _status(options: argparse.Namespace) -> int:
    pair = _pair(options)
    answer = _asked(pair)
    try:
        depths, rate = measured(lambda: _depths(pair), options.during)
    except ConnectionLostError as error:
        raise ArgumentError(f"The secondary does not answer: {error}") from error
    waiting = sum(each for _, each, _ in depths)
    drain_s = waiting / rate if waiting and rate > 0 else None
    if options.json:
        status = {
            "primary": answer or "answers",
            "queues": [
                {"path": path, "waiting": each, "dead_lettered": dead}
                for path, each, dead in depths
            ],
            "waiting": waiting,
            "messages_per_second": round(rate, 1),
            "seconds_to_drain": None if drain_s is None else round(drain_s, 1),
        }
        print(json.dumps(status, indent=2))
        return 0
    print(f"primary '{pair.name}': {answer or 'answers'}")
    for path, each, dead in depths:
        note = f", {dead:,} dead-lettered" if dead else ""
        print(f"  {path}: {each:,} waiting{note}")
    print(f"{waiting:,} wait in {len(depths)} backlog queues, {rate:,.1f} leave a second", end="")
    if drain_s is not None:
        print(f", empty in {timedelta(seconds=round(drain_s))}")
    elif waiting:
        print(": the backlog does not shrink (does a syphon run, is the primary there?)")
    else:
        print()
    return 0


def _asked(pair: Pair) -> str | None:
    """Why the primary does not answer; None if it does."""
    assert pair.primary.administration is not None
    try:
        # The name need not exist: an answer is an answer.
        pair.primary.administration.depth(f"{pair.name}/x-servicebus-transfer/0")
    except (TandemError, OSError) as error:
        from tandem.errors import EntityNotFoundError

        return None if isinstance(error, EntityNotFoundError) else f"does not answer: {error}"
    return None


# --- cost -----------------------------------------------------------------------------------------


def _cost(options: argparse.Namespace) -> int:
    from tandem.pairing.ledger import Formula, Operations

    formula = Formula(options.queues, options.syphons)
    print(f"The formula, for {options.queues} backlog queues and {options.syphons} syphon(s):")
    for label, period in (
        ("an hour", timedelta(hours=1)),
        ("a day", timedelta(days=1)),
        (f"{DAYS_OF_MONTH} days", timedelta(days=DAYS_OF_MONTH)),
    ):
        print(f"  idle, {label}: {formula.idle_receives(period):,} receives")
    print(
        f"  {options.messages:,} messages through the backlog: "
        f"{formula.syphoned(options.messages):,} operations (send, receive, send, receive)"
    )
    pings = formula.pings(
        options.entities,
        timedelta(minutes=options.outage),
        timedelta(minutes=options.ping_interval),
    )
    print(
        f"  {options.entities:,} entities unavailable for {options.outage:g} min: {pings:,} pings"
    )
    if not options.ledger:
        return 0
    total = Operations()
    for path in options.ledger:
        try:
            total = total.plus(Operations.read(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError, AttributeError) as error:
            print(f"tandem: {path} is not a ledger: {error}", file=sys.stderr)
            return 1
    print("The ledger:")
    rows = {
        "sent to backlogs": total.backlog_sends,
        "received from backlogs": total.backlog_receives,
        "sent home": total.syphon_sends,
        "to be received at home": total.expected_receives,
        "long polls that brought nothing": total.empty_receives,
        "pings": total.pings,
        "peeks, to keep an order": total.peeks,
    }
    for name, count in rows.items():
        print(f"  {name}: {count:,}")
    print(f"  in all: {total.total:,} (dead-lettered: {total.dead_letters:,})")
    return 0
