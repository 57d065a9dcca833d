"""`tandem priority simulate`: try levels, orders and pools before anything is deployed.

An overload is a warning, and no error: to see what it does is what a simulator is for.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.workers.planning_run import Simulated

PICTURES: Final = (".png", ".svg")
_EXAMPLE: Final = (
    "tandem priority simulate --workers 4 --level high,rate=20,service=exp:0.05,within_s=1 "
    "--level low,rate=30,service=0.08"
)


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    priority = commands.add_parser("priority", help="plan queues with priorities")
    tools = priority.add_subparsers(required=True, metavar="COMMAND")
    simulate = tools.add_parser(
        "simulate",
        help="how long messages of each level would wait, in each order and with each kind of pool",
        description="Plays a load through in virtual time, with the broker's own order and the "
        "pools' own: a native priority queue in strict, weighted and aged order, one pool over a "
        f"queue for each level, and a pool for each level. For example: {_EXAMPLE}",
    )
    simulate.add_argument("file", type=Path, nargs="?", help="a TOML file (docs/priority.md)")
    simulate.add_argument(
        "--level",
        action="append",
        default=[],
        metavar="NAME,rate=…,service=…",
        help="the highest first; rate in messages/s, service in seconds (0.05, exp:0.05 or "
        "file:times.txt), and if wanted within_s, percent, weight, workers",
    )
    simulate.add_argument("--workers", type=int, help="in all")
    simulate.add_argument("--aging-s", type=float, help="one level higher after each (30)")
    simulate.add_argument("--prefetch", type=int, help="messages in hand of each level (1)")
    simulate.add_argument("--look-ms", type=int, help="of one pool over several queues (100)")
    simulate.add_argument("--trip-ms", type=float, help="the way to the broker and back (2)")
    simulate.add_argument("--seconds", type=float, help="how long (until there are enough)")
    simulate.add_argument("--warm-s", type=float, help="left out at the beginning (a tenth)")
    simulate.add_argument("--seed", type=int, help="other chances (1)")
    simulate.add_argument(
        "--form", action="append", dest="forms", metavar="FORM", help="only these (all)"
    )
    simulate.add_argument("--json", action="store_true", help="print the figures as JSON")
    simulate.add_argument(
        "--plot", type=Path, metavar="FILE", help="a picture, .png or .svg (tandembus[plot])"
    )
    simulate.set_defaults(run=_simulate)


_GIVEN: Final = (
    "workers aging_s prefetch look_ms trip_ms seconds warm_s seed forms".split()  # as in the file
)


def _simulate(options: argparse.Namespace) -> int:
    from tandembus.workers.planning_file import read_plan
    from tandembus.workers.planning_run import simulate
    from tandembus.workers.planning_show import lines, values

    given = {name: getattr(options, name) for name in _GIVEN}
    given = {name: value for name, value in given.items() if value is not None}
    if "forms" in given:
        given["forms"] = tuple(given["forms"])
    _check_picture(options.plot)
    found = simulate(read_plan(options.file, options.level, given))
    if options.json:
        print(json.dumps(values(found), indent=2))
    else:
        print("\n".join(lines(found)))
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if options.plot is not None:
        _plot(found, options.plot)
    return 0


def _check_picture(path: Path | None) -> None:
    """Before anything is simulated."""
    if path is None:
        return
    if path.suffix not in PICTURES:
        raise ArgumentError(f"--plot: a picture is .png or .svg, not '{path.name}'")
    if not path.resolve().parent.is_dir():
        raise ArgumentError(f"--plot: there is no folder {path.parent}")
    try:
        import tandembus.workers.planning_plot  # noqa: F401 - whether it can be
    except ImportError as error:
        raise ArgumentError(
            "--plot needs matplotlib, which is not installed: pip install 'tandembus[plot]'"
        ) from error


def _plot(found: Simulated, path: Path) -> None:
    from tandembus.workers.planning_plot import plot

    plot(found, path)
    print(f"the picture is in {path}", file=sys.stderr)
