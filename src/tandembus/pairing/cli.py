"""`tandem syphon`, `tandem pairing status` and `tandem pairing cost`.

Connection strings hold keys, so they can also come from the environment: TANDEM_PRIMARY and
TANDEM_SECONDARY. The SDK is imported when a command runs, not for its help.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandembus.errors import ArgumentError, ConnectionLostError, TandemError, UnauthorizedError

if TYPE_CHECKING:
    from tandembus.pairing.ledger import Operations
    from tandembus.pairing.pair import Pair
    from tandembus.pairing.survey import Survey
    from tandembus.pairing.syphon import Syphon

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
        "--every", type=_length, default=10.0, metavar="SECONDS", help="how often to report (10)"
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
        "--during",
        type=_length,
        default=2.0,
        metavar="SECONDS",
        help="measure the rate so long (2)",
    )
    status.add_argument(
        "--entities",
        action="store_true",
        help="for which entities messages wait: one or more peeks for each queue that has some",
    )
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)

    cost = tools.add_parser("cost", help="operations that pairing has cost, beside the formula")
    cost.add_argument("--queues", type=_count, default=10, help="backlog queues (10)")
    cost.add_argument("--syphons", type=_count, default=1, help="processes with a syphon (1)")
    cost.add_argument("--hours", type=_length, help="that the syphons have run")
    cost.add_argument("--messages", type=_count, help="messages through the backlog")
    cost.add_argument("--entities", type=_count, default=0, help="entities that were unavailable")
    cost.add_argument("--outage", type=_length, metavar="MINUTES", help="for how long")
    cost.add_argument(
        "--ping-interval", type=_length, default=1, metavar="MINUTES", help="between pings (1)"
    )
    cost.add_argument(
        "--ledger",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="of `tandem syphon`, or what `bus.ledger.as_json()` gave; several are added up",
    )
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


def _length(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


_length.__name__, _count.__name__ = "length of time", "count"  # so argparse calls them


def _pair(options: argparse.Namespace) -> Pair:
    import logging

    try:
        from tandembus.pairing.options import PairingOptions
        from tandembus.pairing.pair import Pair
    except ImportError as error:
        raise ArgumentError(
            "This needs azure-servicebus: pip install 'tandembus[pairing]'"
        ) from error

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
    except (ConnectionLostError, UnauthorizedError) as error:
        from tandembus.pairing.survey import why

        raise type(error)(f"The secondary {why(error)}") from error


async def _run_syphon(pair: Pair, options: argparse.Namespace) -> int:
    import asyncio
    import signal
    from contextlib import suppress

    from tandembus.pairing.namespaces import ensure_backlog
    from tandembus.pairing.syphon import Syphon

    for namespace in pair.secondaries:
        await asyncio.to_thread(
            ensure_backlog, namespace, pair.name, pair.options.backlog_queue_count
        )
    earlier = _kept(options.ledger)
    _keep(pair, earlier, options.ledger)
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
        _keep(pair, earlier, options.ledger)
        with suppress(TandemError):  # it cannot be asked now, so it is not known to be empty
            if options.until_empty and await asyncio.to_thread(syphon.is_empty):
                break
    await syphon.stop()
    await running
    _tell(syphon, told)
    _keep(pair, earlier, options.ledger)
    return 0


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


def _kept(path: Path | None) -> Operations:
    """What a ledger has from earlier runs."""
    from tandembus.pairing.ledger import Operations

    if path is None or not path.exists():
        return Operations()
    try:
        return Operations.read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{path} is not a ledger: {error}") from error


def _keep(pair: Pair, earlier: Operations, path: Path | None) -> None:
    if path is not None:
        aside = path.with_name(path.name + ".new")
        aside.write_text(earlier.plus(pair.ledger.total()).as_json(), encoding="utf-8")
        aside.replace(path)


# --- status ---------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    from tandembus.pairing.survey import survey

    pair = _pair(options)
    found = survey(pair, options.during, with_entities=options.entities)
    (_show_json if options.json else _show)(found)
    return 0 if found.is_whole else 1


def _show_json(found: Survey) -> None:
    drain_s = found.seconds_to_drain
    status = {
        "primary": found.primary.state,
        "secondaries": [{"name": each.name, "state": each.state} for each in found.secondaries],
        "queues": [
            {
                "secondary": secondary,
                "path": depth.path,
                "waiting": depth.waiting,
                "dead_lettered": depth.dead_lettered,
            }
            for secondary, depth in found.depths
        ],
        "missing_queues": list(found.missing),
        "waiting": found.waiting,
        "messages_per_second": round(found.rate, 1),
        "seconds_to_drain": None if drain_s is None else round(drain_s, 1),
        **({} if found.entities is None else {"entities": dict(found.entities)}),
    }
    print(json.dumps(status, indent=2))


def _show(found: Survey) -> None:
    print(f"primary '{found.primary.name}': {found.primary.state}")
    for number, side in enumerate(found.secondaries):
        print(f"secondary '{side.name}': {side.state}")
        for secondary, depth in found.depths:
            if secondary == number:
                note = f", {depth.dead_lettered:,} dead-lettered" if depth.dead_lettered else ""
                print(f"  {depth.path}: {depth.waiting:,} waiting{note}")
    if found.missing:
        print(
            f"{len(found.missing)} backlog queues are not there, as {found.missing[0]}: "
            "was this pair ever made, and are --queues and --name those of its senders?"
        )
    waiting, drain_s = found.waiting, found.seconds_to_drain
    print(
        f"{waiting:,} wait in {len(found.depths)} backlog queues, {found.rate:,.1f} leave a second",
        end="",
    )
    if drain_s is not None:
        print(f", empty in {timedelta(seconds=round(drain_s))}")
    elif waiting:
        print(": the backlog does not shrink (does a syphon run, is the primary there?)")
    else:
        print()
    for path, count in sorted((found.entities or {}).items()):
        print(f"  for '{path}': {count:,} seen")


# --- cost -----------------------------------------------------------------------------------------


def _cost(options: argparse.Namespace) -> int:
    from tandembus.pairing.ledger import Formula, Operations

    total = Operations()
    for path in options.ledger:
        if not path.exists():
            raise ArgumentError(f"There is no ledger {path}.")
        total = total.plus(_kept(path))
    formula = Formula(options.queues, options.syphons)
    print(f"The formula, for {options.queues} backlog queues and {options.syphons} syphon(s):")
    for label, period in (
        ("an hour", timedelta(hours=1)),
        ("a day", timedelta(days=1)),
        (f"{DAYS_OF_MONTH} days", timedelta(days=DAYS_OF_MONTH)),
    ):
        print(f"  idle, {label}: {formula.idle_receives(period):,} receives")
    messages = options.messages
    if messages is None:
        messages = max(total.backlog_sends, total.syphon_sends)
    print(
        f"  {messages:,} messages through the backlog: {formula.syphoned(messages):,} operations "
        "(send, receive, send, receive)"
    )
    pings = None
    if options.outage is not None:
        outage, interval = options.outage, options.ping_interval
        pings = formula.pings(
            options.entities, timedelta(minutes=outage), timedelta(minutes=interval)
        )
        print(f"  {options.entities:,} entities unavailable for {outage:g} min: {pings:,} pings")
    if options.ledger:
        polls = None
        if options.hours is not None:
            polls = formula.idle_receives(timedelta(hours=options.hours))
        _show_ledger(total, messages, polls, pings)
    return 0


def _show_ledger(total: Operations, messages: int, polls: int | None, pings: int | None) -> None:
    """What was counted, beside what the formula says; nothing where it has not been told enough."""
    rows: list[tuple[str, int, int | None]] = [
        ("sent to backlogs", total.backlog_sends, messages),
        ("received from backlogs", total.backlog_receives, messages),
        ("sent home", total.syphon_sends, messages),
        ("to be received at home", total.expected_receives, messages),
        ("long polls that brought nothing", total.empty_receives, polls),
        ("pings", total.pings, pings),
        ("peeks, to keep an order", total.peeks, None),
        ("in all", total.total, None),
    ]
    print(f"{'The ledger:':36}{'counted':>12}{'formula':>12}")
    for name, counted, by_formula in rows:
        beside = "" if by_formula is None else f"{by_formula:,}"
        print(f"  {name:34}{counted:>12,}{beside:>12}".rstrip())
    print(f"  dead-lettered, because nobody could understand them: {total.dead_letters:,}")
