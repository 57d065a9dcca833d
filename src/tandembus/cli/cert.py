"""`tandem cert`: a certificate for a server, from an authority of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tandembus.certificates import SERVER_DAYS
from tandembus.cli.output import add_json, print_json


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    parser = commands.add_parser(
        "cert",
        help="make a local certificate authority and a server's certificate",
        description="Makes an authority (ca.pem, ca.key) in FOLDER unless one is there, and a "
        "certificate of it for a server (server.pem, server.key); run it again for a new one, "
        "and a running server takes it by itself. It prints how each SDK is told to trust it.",
        epilog="example: tandem cert certs --host bus.example.net --host 10.0.0.7",
    )
    parser.add_argument("folder", type=Path, help="where the files are; made if it is not there")
    parser.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a host name or an address of the server, several times for several (localhost and "
        "the addresses of loopback)",
    )
    parser.add_argument(
        "--days",
        type=int,
        default=SERVER_DAYS,
        metavar="N",
        help=f"how long the server's certificate is good ({SERVER_DAYS})",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tandembus.certificates import make, trust

    hosts = options.host or ["localhost", "127.0.0.1", "::1"]
    made = make(options.folder, hosts, days=options.days)
    files, ways = made.files, trust(made.files.authority)
    if options.json:
        print_json(
            {
                "authority": str(files.authority),
                "is_new_authority": made.has_new_authority,
                "certificate": str(files.certificate),
                "private_key": str(files.private_key),
                "hosts": list(made.hosts),
                "ends": made.ends.isoformat(),
                "trust": ways,
            }
        )
        return 0
    kind = "a new authority" if made.has_new_authority else "the authority that was there"
    print(
        f"{files.authority}: {kind}. Clients trust this file; {files.authority_key} stays secret."
    )
    print(f"{files.certificate}: for {', '.join(made.hosts)}, until {made.ends.date()}.")
    print()
    print("Serve with it:")
    print(
        f"  tandem serve DATA --certificate {files.certificate} "
        f"--private-key {files.private_key} --standard-ports"
    )
    print()
    print("Trust it, by SDK:")
    for language, text in ways.items():
        first, *rest = text.splitlines()
        print(f"  {language + ':':<12}{first}")
        for line in rest:
            print(f"  {'':<12}{line}")
    return 0
