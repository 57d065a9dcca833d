"""Messages on the command line: as lines, and what is said about them there.

Their JSON is `client.written`; `tandem receive a --json | tandem send b --json-lines -` moves them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tandembus.cli.output import print_json_line, print_rows
from tandembus.config.values import show_moment
from tandembus.errors import ArgumentError
from tandembus.model import Value

if TYPE_CHECKING:
    from tandembus.client import ReceivedMessage


def property_of(said: str) -> tuple[str, Value]:
    """`name=text`, or `name:=JSON` for a number or a boolean."""
    name, is_json, value = said.partition(":=")
    if is_json and "=" not in name:
        try:
            found = json.loads(value)
        except ValueError:
            raise ArgumentError(f"--property {said}: {value!r} is not JSON") from None
        if not isinstance(found, bool | int | float | str | None):
            raise ArgumentError(f"--property {said}: it is a text, a number, true, false or null")
        return name, found
    name, equals, value = said.partition("=")
    if not equals or not name:
        raise ArgumentError(f"--property {said}: it is NAME=TEXT or NAME:=JSON")
    return name, value


# --- lines ----------------------------------------------------------------------------------------

COLUMNS: Final = ("sequence_number", "enqueued_time", "state", "message_id", "body")


def add_form(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a line of JSON for each message")
    form.add_argument("--body", action="store_true", help="the bodies alone, a line each")


def show(options: argparse.Namespace, message: ReceivedMessage) -> None:
    """One, at once."""
    if options.json:
        from tandembus.client.written import as_json

        print_json_line(as_json(message))
    elif options.body:
        print(_text(message), flush=True)
    else:
        print("\t".join(map(_field, _row(message))), flush=True)


def show_all(options: argparse.Namespace, messages: list[ReceivedMessage]) -> None:
    """Some, together: a table on a terminal."""
    if options.json or options.body:
        for message in messages:
            show(options, message)
    else:
        print_rows(options, COLUMNS, [_row(message) for message in messages])


def _row(message: ReceivedMessage) -> tuple[object, ...]:
    from tandembus.client.written import state_of

    state = state_of(message)
    if message.dead_letter_reason is not None:
        state = message.dead_letter_reason
    return (
        # Not with commas: it is a name, and copied.
        str(message.sequence_number),
        show_moment(message.enqueued_ms),
        state,
        message.message_id,
        _text(message)[:200],
    )


def _field(value: object) -> str:
    return "-" if value is None else str(value).replace("\t", " ").replace("\n", " ")


def _text(message: ReceivedMessage) -> str:
    from tandembus.client.written import body_of

    (form, body), *_ = body_of(message).items()
    return json.dumps(body) if form == "body_value" else str(body)


def numbers(said: list[str]) -> Iterator[int]:
    """Sequence numbers, one by one or with commas."""
    for word in said:
        for part in word.split(","):
            if not part.strip().isdecimal():
                raise ArgumentError(f"{part!r} is not a sequence number")
            yield int(part)
