"""The command line. For now: what an operator needs when a log looks wrong, and a backup.

Exit codes: 0 all well, 1 a problem was found (it is printed), 2 the command itself was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tandem import __version__
from tandem.errors import ArgumentError, StoreError
from tandem.limits import MAX_CONNECTIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except (ArgumentError, StoreError, OSError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem",
        description="A durable message broker with the semantics of Azure Service Bus.",
    )
    parser.add_argument("--version", action="version", version=f"tandem {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="serve a namespace"))
    _add_pairing(commands)
    _add_workers(commands)
    store = commands.add_parser("store", help="check, repair or back up a namespace's log")
    tools = store.add_subparsers(required=True, metavar="COMMAND")

    check = tools.add_parser(
        "check",
        help="read the whole log and say what is wrong",
        description="Reads every file of a data folder and writes nothing. The broker must not be "
        "running on it: check a backup of a running one.",
    )
    check.set_defaults(run=_check)

    repair = tools.add_parser(
        "repair",
        help="mend what can be mended without loss",
        description="Cuts a write that was never acknowledged and puts damaged indexes aside. What "
        "was acknowledged and is damaged is given up only with --accept-loss; its places are "
        "printed and its bytes are kept beside the log.",
    )
    repair.add_argument(
        "--accept-loss", action="store_true", help="give up what is damaged, and say what it was"
    )
    repair.set_defaults(run=_repair)

    backup = tools.add_parser(
        "backup",
        help="copy a stopped broker's log",
        description="Copies a data folder as it is now into a new folder that opens as a store.",
    )
    backup.add_argument("target", type=Path, help="a folder that does not exist yet")
    backup.set_defaults(run=_backup)

    for tool in (check, repair, backup):
        tool.add_argument("folder", type=Path, help="the data folder")
    for tool in (check, repair):
        tool.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _add_pairing(commands: Any) -> None:
    from tandem.pairing.cli import add_commands

    add_commands(commands)


def _add_workers(commands: Any) -> None:
    from tandem.workers.cli import add_commands

    add_commands(commands)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves one namespace. One port takes AMQP, AMQP over WebSocket, HTTP and, with a "
        "certificate, TLS around them. The first start makes a key and keeps it in "
        "FOLDER/policies.json; the connection string with it is printed at every start. SIGHUP "
        "reads that file, and the one of --jwt-keys, again: what rested on a key that is gone ends."
    )
    parser.add_argument("folder", type=Path, help="the data folder; made if it is not there")
    parser.add_argument("--namespace", default="default", help="its name (default)")
    parser.add_argument("--host", default="localhost", help="where to listen (localhost)")
    parser.add_argument(
        "--port", type=int, action="append", help="which port, several times for several (5672)"
    )
    parser.add_argument(
        "--standard-ports",
        action="store_true",
        help="the ports where clients look: 5672 and 80, and with a certificate 5671 and 443; it "
        "says which could not be had",
    )
    parser.add_argument(
        "--emulator",
        action="store_true",
        help="also take the key that Microsoft's emulator takes; on loopback only",
    )
    parser.add_argument("--certificate", type=Path, help="a PEM file: TLS on the same ports")
    parser.add_argument("--private-key", type=Path, help="its key, a PEM file")
    parser.add_argument(
        "--max-connections",
        type=int,
        default=MAX_CONNECTIONS,
        metavar="N",
        help=f"how many can be open at once ({MAX_CONNECTIONS:,})",
    )
    parser.add_argument(
        "--jwt-keys",
        type=Path,
        metavar="FILE",
        help='whose JWTs are believed: a JWK set with "issuers" beside its "keys", and if '
        'wanted "audiences" and "roles" (FOLDER/jwt.json, if it is there)',
    )
    parser.add_argument(
        "--test-clock",
        action="store_true",
        help="for tests, on loopback only: whoever may manage the namespace can move its clock",
    )
    parser.add_argument("--verbose", action="store_true", help="log what is refused, and why")
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    import asyncio
    import logging

    from tandem.app import PORT, ServeOptions, Server, event_loop, serve

    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )

    def announce(server: Server) -> None:
        ports = ", ".join(map(str, server.ports))
        print(f"Tandem {__version__} serves '{options.namespace}' on {options.host}, port {ports}.")
        for port, why in server.unbound.items():
            print(f"Not on port {port}: {why}.")
        if options.test_clock:
            print("WARNING: --test-clock: the time of this broker can be moved, and what it keeps")
            print("has such times. It is for tests, and for nothing else.")
        print(f"Connection string: {server.connection_string}")
        print("Ctrl-C stops it.", flush=True)

    how = ServeOptions(
        folder=options.folder,
        namespace=options.namespace,
        host=options.host,
        ports=tuple(options.port or (() if options.standard_ports else (PORT,))),
        use_standard_ports=options.standard_ports,
        is_emulator=options.emulator,
        certificate=options.certificate,
        private_key=options.private_key,
        max_connections=options.max_connections,
        jwt_keys=options.jwt_keys,
        has_test_clock=options.test_clock,
    )
    loop_name, loop_factory = event_loop()
    logging.getLogger("tandem").info("the event loop is %s", loop_name)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(serve(how, announce))


def _check(options: argparse.Namespace) -> int:
    from tandem.store.check import check

    return _report(check(_existing(options.folder)), as_json=options.json)


def _repair(options: argparse.Namespace) -> int:
    from tandem.store.check import repair

    report = repair(_existing(options.folder), accept_loss=options.accept_loss)
    return _report(report, as_json=options.json)


def _backup(options: argparse.Namespace) -> int:
    from tandem.store.files import FileStore

    store = FileStore(_existing(options.folder))
    try:
        size = store.backup(options.target)
    finally:
        store.close()
    print(f"{size:,} bytes of log copied to {options.target}")
    return 0


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}")
    return folder


def _report(report: object, *, as_json: bool) -> int:
    from tandem.store.check import Report

    assert isinstance(report, Report)
    if as_json:
        print(json.dumps(asdict(report), indent=2))
        return 0 if report.is_clean else 1
    print(
        f"{report.folder}: {report.segments} segments, {report.groups:,} groups, "
        f"{report.bytes:,} bytes"
    )
    for note in report.notes:
        print(f"note: {note}")
    for action in report.actions:
        print(f"done: {action}")
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    if report.is_clean:
        print("no problem found")
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
