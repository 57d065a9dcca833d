"""`tandem send`: messages from the command line, files, lines, JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tandembus.cli.connection import add_connection, add_entity, connect
from tandembus.cli.messages import property_of
from tandembus.cli.output import print_json, progress, say
from tandembus.client.written import from_json
from tandembus.config.values import duration, moment
from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.client import OutgoingMessage, Sender

_TOLD: Final = 10
"""Refusals of a batch that are printed."""
_BATCH: Final = 1_000
"""Messages that are handed to the client at once; it makes as few transfers of them as fit."""


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    parser = commands.add_parser(
        "send",
        help="send messages to a queue or a topic",
        description="Sends messages, and ends when the broker has them on disk.",
        epilog="examples:\n"
        "  tandem send orders 'one order' 'another one'\n"
        "  tandem send orders --file invoice.pdf --content-type application/pdf\n"
        "  tandem send orders --json-lines orders.jsonl --rate 100\n"
        "  journalctl -f -o cat | tandem send lines --lines\n"
        "  tandem send orders later --schedule 10m --property tier=gold --property amount:=42\n"
        "  tandem receive old --json --count 1000 | tandem send new --json-lines -",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_entity(parser, receives=False)
    parser.add_argument("body", nargs="*", help="a message each; '-' is the standard input, whole")
    source = parser.add_argument_group("where the messages come from")
    source.add_argument(
        "--file", type=Path, action="append", default=[], help="a message that is this file"
    )
    source.add_argument(
        "--json-lines",
        metavar="FILE",
        help="a JSON object a line, as `receive --json` prints; '-' is the standard input",
    )
    source.add_argument(
        "--lines", action="store_true", help="each line of the standard input is a message"
    )
    source.add_argument("--count", type=int, default=1, help="send it all so many times (1)")
    speed = parser.add_argument_group("how fast")
    speed.add_argument("--rate", type=float, metavar="N", help="so many a second, at most")
    speed.add_argument(
        "--batch", type=int, default=_BATCH, metavar="N", help=f"so many at once ({_BATCH:,})"
    )
    fields = parser.add_argument_group("what every message has, unless its JSON says otherwise")
    fields.add_argument("--message-id")
    fields.add_argument("--session", metavar="ID", dest="session_id")
    fields.add_argument("--correlation-id")
    fields.add_argument("--partition-key")
    fields.add_argument("--subject", help="also called label")
    fields.add_argument("--content-type")
    fields.add_argument("--to")
    fields.add_argument("--reply-to")
    fields.add_argument("--reply-to-session", metavar="ID", dest="reply_to_session_id")
    fields.add_argument(
        "--property",
        "-p",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="an application property; NAME:=JSON for a number or a boolean",
    )
    fields.add_argument("--time-to-live", metavar="TIME", help="30s, 1h, 7d, PT30S")
    fields.add_argument(
        "--schedule", metavar="WHEN", help="enqueue it then: 10m, 2026-01-31T12:00:00Z"
    )
    fields.add_argument("--priority", type=int, choices=range(10), metavar="0-9")
    parser.add_argument("--json", action="store_true", help="print what was sent as JSON")
    add_connection(parser)
    parser.set_defaults(run=_send)


def _send(options: argparse.Namespace) -> int:
    now_ms = time.time_ns() // 1_000_000
    given = _fields(options, now_ms)
    if options.rate is not None and options.rate <= 0:
        raise ArgumentError("--rate is above 0.")
    if options.batch < 1 or options.count < 1:
        raise ArgumentError("--batch and --count are 1 or more.")
    messages = _messages(options, given, now_ms)
    total = _total(options)
    began = time.monotonic()
    label = f"sending to {options.entity}"
    with (
        connect(options) as client,
        client.sender(options.entity) as sender,
        progress(label, total) as step,
    ):
        sent, failed = _send_all(sender, messages, options, step)
    seconds = time.monotonic() - began
    if options.json:
        print_json({"sent": sent, "failed": failed, "seconds": round(seconds, 3)})
    else:
        say(f"{sent:,} sent in {seconds:.1f} s" + (f", {failed:,} refused" if failed else ""))
    return 1 if failed else 0


def _send_all(
    sender: Sender, messages: Iterator[OutgoingMessage], options: argparse.Namespace, step: Any
) -> tuple[int, int]:
    """In batches; at a rate, in batches of a tenth of a second."""
    size = options.batch
    if options.rate is not None:
        size = max(1, min(size, int(options.rate / 10)))
    if options.lines and options.body == [] and not options.json_lines:
        size = 1  # what comes in slowly goes out at once
    sent = failed = 0
    began = time.monotonic()
    while batch := list(islice(messages, size)):
        if options.rate is not None:
            ahead = (sent + failed) / options.rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
        if len(batch) == 1:
            sender.send(batch[0])
            sent += 1
        else:
            report = sender.send_all(batch)
            sent += report.accepted
            failed += len(report.failures)
            for number, error in report.failures[:_TOLD]:
                say(f"tandem: message {sent + failed - len(batch) + number + 1}: {error}")
            if not report.is_complete:
                say(f"tandem: {sent:,} {'was' if sent == 1 else 'were'} sent before")
                raise report.failures[-1][1]
        step(len(batch))
    return sent, failed


def _fields(options: argparse.Namespace, now_ms: int) -> dict[str, Any]:
    names = (
        "message_id", "session_id", "correlation_id", "partition_key", "subject", "content_type",
        "to", "reply_to", "reply_to_session_id", "priority",
    )  # fmt: skip
    given = {name: it for name in names if (it := getattr(options, name)) is not None}
    given["properties"] = dict(property_of(said) for said in options.property)
    if options.time_to_live is not None:
        given["ttl_ms"] = duration(options.time_to_live, "--time-to-live")
    if options.schedule is not None:
        given["scheduled_ms"] = moment(options.schedule, now_ms, "--schedule")
    return given


def _total(options: argparse.Namespace) -> int | None:
    """How many it will be, if that is known."""
    if options.lines or options.json_lines or "-" in options.body:
        return None
    return int((len(options.body) + len(options.file)) * options.count)


def _messages(
    options: argparse.Namespace, given: dict[str, Any], now_ms: int
) -> Iterator[OutgoingMessage]:
    from tandembus.client import OutgoingMessage

    if not (options.body or options.file or options.json_lines or options.lines):
        raise ArgumentError("What shall be sent? Give a text, --file, --lines or --json-lines.")
    if options.count > 1 and _total(options) is None:
        raise ArgumentError("--count is for texts and files: an input can be read only once.")
    bodies = [_body(said) for said in options.body]
    bodies += [_contents(file) for file in options.file]
    for _ in range(options.count):
        for body in bodies:
            yield OutgoingMessage(body, **given)
    if options.lines:
        for line in sys.stdin.buffer:
            yield OutgoingMessage(line.rstrip(b"\r\n"), **given)
    if options.json_lines:
        with _opened(options.json_lines) as lines:
            yield from _from_lines(lines, options.json_lines, given, now_ms)


def _body(said: str) -> bytes:
    return sys.stdin.buffer.read() if said == "-" else said.encode()


def _contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ArgumentError(f"--file {file}: {error.strerror}.") from None


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return open(name, "rb")
    except OSError as error:
        raise ArgumentError(f"--json-lines {name}: {error.strerror}.") from None


def _from_lines(
    lines: Iterable[bytes], name: str, given: dict[str, Any], now_ms: int
) -> Iterator[OutgoingMessage]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            tree = json.loads(line)
        except ValueError:
            raise ArgumentError(f"{where}: it is not JSON") from None
        message = from_json(tree, where, now_ms)
        missing = {
            key: value
            for key, value in given.items()
            if key != "properties" and getattr(message, key) is None
        }
        properties = {**given["properties"], **message.properties}
        yield replace(message, **missing, properties=properties)
