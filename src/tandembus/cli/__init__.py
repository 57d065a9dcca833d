"""The command line, one file a group of commands. This one puts them together.

A group has `add_commands(commands)`, which adds its parsers and sets `run` on each: a function
that takes the options and returns the exit code (`codes`). What a command needs is imported when it
runs, and of the groups only the one that is asked for, so that a command is there at once. Errors
of ours are a line and an exit code; what else is raised is a mistake of the program.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tandembus import __version__
from tandembus.cli.codes import BROKEN_PIPE, INTERRUPTED, code_of
from tandembus.errors import TandemError

GROUPS: Final = (
    "serve", "namespace", "queue", "send", "receive", "dead-letter", "export", "backup",
    "config", "cert", "doctor", "bench", "pairing", "workers", "priority", "pipeline", "journal",
    "completion",
)  # fmt: skip
"""One command of each group, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser(words).parse_args(words)
        code: int = options.run(options)
        sys.stdout.flush()
    except (TandemError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # Nobody reads any more (`| head`); Python would complain again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        print(f"tandem: {error}", file=sys.stderr)
        return code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The commands that `words` begin with, if they are known; else every one there is."""
    whole = argparse.ArgumentParser(
        prog="tandem",
        description="A durable message broker with the semantics of Azure Service Bus.",
        epilog="`tandem COMMAND --help` has examples. docs/cli.md has it all.",
    )
    whole.add_argument("--version", action="version", version=f"tandem {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    wanted: Iterable[str] = words[:1]
    if not all(_add(each, commands) for each in wanted) or not words:
        for each in GROUPS:
            _add(each, commands)
    return whole


def _add(name: str, commands: Any) -> bool:
    """The group of a command; False: no group has it. A new group: a case here, and its first
    command in `GROUPS`."""
    match name:
        case "serve":
            from tandembus.cli.serve import add_commands
        case "namespace":
            from tandembus.cli.namespaces import add_commands
        case "queue" | "topic" | "subscription" | "rule":
            from tandembus.cli.entities import add_commands
        case "send":
            from tandembus.cli.send import add_commands
        case "receive" | "peek":
            from tandembus.cli.receive import add_commands
        case "dead-letter" | "deferred" | "session" | "purge":
            from tandembus.cli.dead_letters import add_commands
        case "export" | "import":
            from tandembus.cli.transfer import add_commands
        case "backup" | "store":
            from tandembus.cli.store import add_commands
        case "config":
            from tandembus.cli.config import add_commands
        case "cert":
            from tandembus.cli.cert import add_commands
        case "doctor":
            from tandembus.cli.doctor import add_commands
        case "bench":
            from tandembus.cli.bench import add_commands
        case "pairing" | "syphon":
            from tandembus.pairing.cli import add_commands
        case "workers":
            from tandembus.workers.cli import add_commands
        case "priority":
            from tandembus.workers.planning_cli import add_commands
        case "pipeline" | "report":
            from tandembus.spark.cli import add_commands
        case "journal":
            from tandembus.journal.cli import add_commands
        case "completion":
            from tandembus.cli.completion import add_commands
        case _:
            return False
    add_commands(commands)
    return True
