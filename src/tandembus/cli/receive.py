"""`tandem receive` and `tandem peek`: messages taken, and messages looked at."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tandembus.cli import codes
from tandembus.cli.connection import (
    add_connection,
    add_dead_letters,
    add_entity,
    connect,
    path_of,
)
from tandembus.cli.messages import add_form, numbers, show, show_all
from tandembus.cli.output import say
from tandembus.client.written import matcher, state_of
from tandembus.config.values import duration
from tandembus.errors import ArgumentError, Refused, TandemError

if TYPE_CHECKING:
    from tandembus.client import Client, ReceivedMessage, Receiver

_AT_ONCE: Final = 100
_POLL_S: Final = 5.0
"""How long a receiver that follows waits at a time; Ctrl-C is heard in between and within."""
_SETTLE: Final = ("complete", "abandon", "dead-letter", "defer", "release", "delete")
STATES: Final = ("active", "deferred", "scheduled", "delayed")


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    _add_receive(commands)
    _add_peek(commands)


def _add_receive(commands: Any) -> None:
    parser = commands.add_parser(
        "receive",
        help="receive messages, and complete, abandon, dead-letter, defer or delete them",
        description="Receives messages under a lock, prints each, and then completes it, or does "
        "with it what is asked. Ctrl-C leaves what is not printed where it was. The exit code is "
        f"{codes.NOTHING} if nothing came.",
        epilog="examples:\n"
        "  tandem receive orders                                 one, and complete it\n"
        "  tandem receive orders --count 100 --wait 2 --body     up to a hundred, their bodies\n"
        "  tandem receive events -s audit --follow --json        all that come, until Ctrl-C\n"
        "  tandem receive orders --abandon --delay 30s           back in the queue, later\n"
        "  tandem receive orders --dead-letter --reason 'no such customer'\n"
        "  tandem receive orders --dead-letters --count 10       from the dead-letter queue\n"
        "  tandem receive orders --session A                     of one session\n"
        "  tandem receive orders --sequence-number 42            a deferred one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_entity(parser, receives=True)
    add_dead_letters(parser)
    parser.add_argument("--count", "-n", type=int, default=1, help="so many at most (1)")
    parser.add_argument(
        "--wait", type=float, default=5.0, metavar="SECONDS", help="for the next one (5)"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="go on until Ctrl-C")
    session = parser.add_mutually_exclusive_group()
    session.add_argument("--session", metavar="ID", help="of this session")
    session.add_argument(
        "--next-session", action="store_true", help="of the next session that nobody has"
    )
    session.add_argument(
        "--sequence-number",
        action="append",
        metavar="N",
        help="deferred messages, by their numbers",
    )
    how = parser.add_argument_group("what becomes of them").add_mutually_exclusive_group()
    how.add_argument(
        "--complete", dest="how", action="store_const", const="complete", default="complete"
    )
    for word, text in (
        ("abandon", "back into the queue, with one delivery more"),
        ("release", "back into the queue, as if it had never been out"),
        ("defer", "aside, until it is asked for by its number"),
        ("dead-letter", "into the dead-letter queue"),
        ("delete", "deleted as it is sent, without a lock; nothing more can go wrong or right"),
    ):
        how.add_argument(f"--{word}", dest="how", action="store_const", const=word, help=text)
    more = parser.add_argument_group("with that")
    more.add_argument(
        "--delay", metavar="TIME", help="of --abandon: it comes back so much later (Tandem only)"
    )
    more.add_argument("--reason", help="of --dead-letter")
    more.add_argument("--description", help="of --dead-letter")
    add_form(parser)
    add_connection(parser)
    parser.set_defaults(run=_receive)


def _receive(options: argparse.Namespace) -> int:
    _check(options)
    with connect(options) as client, _receiver(client, options) as receiver:
        if options.sequence_number:
            found = receiver.receive_deferred(list(numbers(options.sequence_number)))
            _take(client, receiver, found, options)
            return codes.WELL
        count = 0
        while options.follow or count < options.count:
            most = _AT_ONCE if options.follow else min(_AT_ONCE, options.count - count)
            messages = receiver.receive(most, wait_s=_POLL_S if options.follow else options.wait)
            if not messages and not options.follow:
                break
            _take(client, receiver, messages, options)
            count += len(messages)
    if not count and not options.follow:
        say("nothing came")
        return codes.NOTHING
    return codes.WELL


def _check(options: argparse.Namespace) -> None:
    if options.count < 1:
        raise ArgumentError("--count is 1 or more.")
    if options.delay is not None and options.how != "abandon":
        raise ArgumentError("--delay is given with --abandon.")
    if options.how != "dead-letter" and (options.reason or options.description):
        raise ArgumentError("--reason and --description are given with --dead-letter.")
    if options.how == "delete" and options.sequence_number:
        raise ArgumentError("--delete takes none by its number: complete it.")


def _receiver(client: Client, options: argparse.Namespace) -> Receiver:
    from tandembus.client import NextSession, ReceiveMode

    mode = ReceiveMode.RECEIVE_AND_DELETE if options.how == "delete" else ReceiveMode.PEEK_LOCK
    session = NextSession.AVAILABLE if options.next_session else options.session
    wait_s = 3_600.0 if options.follow else options.wait
    return client.receiver(path_of(options), mode=mode, session=session, session_wait_s=wait_s)


def _take(
    client: Client,
    receiver: Receiver,
    messages: Sequence[ReceivedMessage],
    options: argparse.Namespace,
) -> None:
    """Print them, then settle them: one that could not be printed stays."""
    shown: list[ReceivedMessage] = []
    try:
        for message in messages:
            show(options, message)
            shown.append(message)
    finally:
        _settle(client, receiver, shown, options)
        rest = messages[len(shown) :]
        if rest and options.how != "delete":
            receiver.release(rest)


def _settle(
    client: Client,
    receiver: Receiver,
    messages: Sequence[ReceivedMessage],
    options: argparse.Namespace,
) -> None:
    from tandembus.client import Settlement

    match options.how:
        case "complete":
            receiver.complete(messages)
        case "abandon" if options.delay is not None and messages:
            client.settle(
                [message.lock_token for message in messages],
                Settlement.ABANDON,
                path_of(options),
                delay_ms=duration(options.delay, "--delay"),
            )
        case "abandon":
            receiver.abandon(messages)
        case "release":
            receiver.release(messages)
        case "defer":
            receiver.defer(messages)
        case "dead-letter":
            receiver.dead_letter(messages, reason=options.reason, description=options.description)


# --- peek -----------------------------------------------------------------------------------------


def _add_peek(commands: Any) -> None:
    parser = commands.add_parser(
        "peek",
        help="look at messages without taking them",
        description="Shows messages where they are: nothing is locked, nothing changes.",
        epilog="examples:\n"
        "  tandem peek orders --count 20\n"
        "  tandem peek orders --state scheduled\n"
        "  tandem peek orders --filter \"tier = 'gold' AND amount > 100\" --json\n"
        "  tandem peek orders --filter \"sys.EnqueuedTimeUtc < '2026-01-31T12:00:00Z'\"\n"
        "  tandem peek events -s audit --dead-letters\n"
        "  tandem peek orders --from 1000 --count 10",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_entity(parser, receives=True)
    add_dead_letters(parser)
    parser.add_argument("--count", "-n", type=int, default=10, help="so many at most (10)")
    parser.add_argument("--all", action="store_true", help="every one that there is")
    parser.add_argument(
        "--from",
        dest="start",
        type=int,
        default=0,
        metavar="N",
        help="from this sequence number on",
    )
    parser.add_argument("--state", choices=STATES, help="those in this state only")
    parser.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes")
    parser.add_argument("--session", metavar="ID", help="of this session")
    add_form(parser)
    add_connection(parser)
    parser.set_defaults(run=_peek)


def _peek(options: argparse.Namespace) -> int:
    if options.count < 1:
        raise ArgumentError("--count is 1 or more.")
    with connect(options) as client:
        found = find(
            client,
            path_of(options),
            state=options.state,
            sql=options.filter,
            start=options.start,
            session=options.session,
        )
        if not options.all:
            found = islice(found, options.count)
        if options.json or options.body or not sys.stdout.isatty():
            for message in found:
                show(options, message)
        else:
            show_all(options, list(found))
    return codes.WELL


def find(
    client: Client,
    path: str,
    *,
    state: str | None = None,
    sql: str | None = None,
    start: int = 0,
    session: str | None = None,
) -> Iterator[ReceivedMessage]:
    """Messages where they are. Tandem looks through them itself; of another broker all are fetched
    and looked through here."""
    matches = matcher(sql)  # a wrong filter is told before anything is asked
    if state is None and sql is None:
        yield from client.browse_all(path, from_sequence_number=start, session_id=session)
        return
    states = () if state is None else (state,)
    searched = client.search(
        path, filter=sql, states=states, from_sequence_number=start, session_id=session
    )
    try:
        first = next(searched, None)
    except Refused as error:
        if not is_unknown(error):
            raise
    else:
        if first is not None:
            yield first
            yield from searched
        return
    for message in client.browse_all(path, from_sequence_number=start, session_id=session):
        if state in (None, state_of(message)) and matches(message):
            yield message


def is_unknown(error: TandemError) -> bool:
    """Whether a broker has refused an operation that it does not have."""
    from tandembus.errors import NotAllowedError, RemoteError

    words = str(error).lower()
    is_of_kind = isinstance(error, RemoteError | NotAllowedError | ArgumentError)
    signs = ("tandem:", "501", "not supported", "unsupported", "not implemented")
    return is_of_kind and any(sign in words for sign in signs)
