"""`tandem serve`: the flags of a server, and what it says when it is ready.

The flags are the list of `config.OPTIONS`. What the server does is `app`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandembus import __version__
from tandembus.config import OPTIONS, Loaded, load
from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.app import Server


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    parser = commands.add_parser(
        "serve",
        help="serve a namespace, or several",
        description="Serves namespaces. One port takes AMQP, AMQP over WebSocket, HTTP and, with a "
        "certificate, TLS around them. The first start makes a key and keeps it in "
        "FOLDER/policies.json; the connection string with it is printed at every start. SIGHUP "
        "reads that file, and the one of --jwt-keys, again: what rested on a key that is gone ends."
        " Flags win over the environment (TANDEM_PORTS=5672,5671), the environment over the file.",
        epilog="examples:\n"
        "  tandem serve data                                  one namespace, port 5672\n"
        "  tandem serve data --port 0                         on a free port\n"
        "  tandem serve data --config Config.json --emulator  instead of Microsoft's emulator\n"
        "  tandem serve --config tandem.toml --dry-run        what the file would change\n"
        "  tandem serve --config tandem.toml --apply          and change it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument(
        "--apply",
        action="store_true",
        help="also change settings of entities that the file declares otherwise; new entities are "
        "made anyway",
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="with --apply: delete entities that the file does not declare, with their messages",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be changed, and serve nothing"
    )
    parser.add_argument("--verbose", action="store_true", help="log what is refused, and why")
    parser.set_defaults(run=_serve)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every command has that needs the configuration of a server."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a TOML file, or the emulator's Config.json (TANDEM_CONFIG, or ./tandem.toml if it is "
        "there); docs/configuration.md",
    )
    for option in OPTIONS:
        if option.key == "folder":
            parser.add_argument("folder", nargs="?", help=option.help)
        elif option.metavar is None:
            parser.add_argument(
                option.flag_name,
                dest=option.key,
                action="store_true",
                default=None,
                help=option.help,
            )
        else:
            parser.add_argument(
                option.flag_name,
                dest=option.key,
                action="append" if option.flag else "store",
                metavar=option.metavar,
                help=option.help,
            )


def loaded(options: argparse.Namespace, *, needs_folder: bool = True) -> Loaded:
    """The configuration that flags, environment and file make."""
    given = {
        option.key: value
        for option in OPTIONS
        if (value := getattr(options, option.key, None)) is not None
    }
    return load(given, os.environ, options.config, needs_folder=needs_folder)


def _serve(options: argparse.Namespace) -> int:
    import asyncio
    import logging

    from tandembus.app import Applying, event_loop, serve
    from tandembus.server.logs import configure

    config = loaded(options).config
    configure(config.log_format, is_verbose=options.verbose)
    if options.delete and not options.apply:
        raise ArgumentError("--delete is given with --apply only.")
    if options.dry_run:
        from tandembus.cli.config import show_differences

        return show_differences(config, deletes=options.delete)
    applying = Applying.NEW
    if options.apply:
        applying = Applying.ALL_AND_DELETE if options.delete else Applying.ALL
    loop_name, loop_factory = event_loop()
    logging.getLogger("tandembus").info("the event loop is %s", loop_name)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(serve(config, _announce, applying))


def _announce(server: Server) -> None:
    config = server.config
    several = len(server.namespaces) > 1
    names = ", ".join(f"'{each.config.name}'" for each in server.namespaces)
    ports = [*server.ports, *(port for each in server.namespaces for port in each.ports)]
    print(
        f"Tandem {__version__} serves {names} on {config.host}, port {', '.join(map(str, ports))}."
    )
    for port, why in server.unbound.items():
        print(f"Not on port {port}: {why}.")
    if config.has_test_clock:
        print("WARNING: --test-clock: the time of this broker can be moved, and what it keeps")
        print("has such times. It is for tests, and for nothing else.")
    for each in server.namespaces:
        for change in each.made:
            print(change)
        if each.pending:
            print("The file declares otherwise, and --apply would change it:")
            for change in each.pending:
                print(change)
        name = f" of '{each.config.name}'" if several else ""
        if _is_kept():
            told = f"`tandem namespace connection-string {each.config.folder}` prints it"
        else:
            told = server.connection_string_of(each)
        print(f"Connection string{name}: {told}")
    print("Ctrl-C stops it.", flush=True)


def _is_kept() -> bool:
    """Whether systemd's journal keeps what is printed: a key has no place there."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
