"""`tandem dead-letter|deferred|session|purge`: what is in the way, and what to do about it.

The rule of a resubmission: a message is sent anew before it is completed where it was, with the
same message id. So none is lost; if the command is ended in between, one can be there twice, and
an entity that detects duplicates drops it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tandembus.cli import codes
from tandembus.cli.connection import add_connection, add_dead_letters, add_entity, connect, path_of
from tandembus.cli.messages import add_form, numbers, property_of, show, show_all
from tandembus.cli.output import (
    add_json,
    add_yes,
    confirm,
    counted,
    print_json,
    print_pairs,
    print_rows,
    progress,
    say,
)
from tandembus.cli.receive import find, is_unknown
from tandembus.client.written import as_json, context_of
from tandembus.config.values import moment
from tandembus.errors import ArgumentError, NotAllowedError, Refused
from tandembus.model import NEVER, Edits, Value

if TYPE_CHECKING:
    from tandembus.client import Client, EncodedMessage, ReceivedMessage, Receiver

_AT_ONCE: Final = 100
_WAIT_S: Final = 1.0
_DEAD: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    _add_dead_letter(commands)
    _add_deferred(commands)
    _add_session(commands)
    _add_purge(commands)


def _tool(tools: Any, name: str, text: str, examples: str, run: Callable[..., int]) -> Any:
    tool = tools.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_entity(tool, receives=True)
    tool.set_defaults(run=run)
    return tool


def _group(commands: Any, name: str, text: str, examples: str) -> Any:
    group = commands.add_parser(
        name, help=text, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return group.add_subparsers(required=True, metavar="COMMAND")


# --- dead letters ---------------------------------------------------------------------------------

_DEAD_LETTER: Final = (
    "examples:\n"
    "  tandem dead-letter list orders\n"
    "  tandem dead-letter list orders --filter \"DeadLetterReason = 'TTLExpiredException'\"\n"
    "  tandem dead-letter resubmit orders --yes\n"
    '  tandem dead-letter resubmit orders --filter "customer = 7" --set customer:=8 --dry-run\n'
    "  tandem dead-letter resubmit orders --action \"SET sys.Label = 'again'; REMOVE retries\"\n"
    '  tandem dead-letter purge orders --filter "amount = 0" --yes\n'
    "  tandem dead-letter list orders --transfer             what could not be forwarded"
)


def _add_dead_letter(commands: Any) -> None:
    text = "list, repair and resubmit, or delete dead letters"
    tools = _group(commands, "dead-letter", text, _DEAD_LETTER)
    listing = _tool(
        tools, "list", "the messages of a dead-letter queue, and why they are there", _DEAD_LETTER,
        _list_dead,
    )  # fmt: skip
    _add_transfer(listing)
    listing.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes")
    add_form(listing)
    add_connection(listing)

    again = _tool(
        tools, "resubmit", "send dead letters again to where they were, or elsewhere",
        _DEAD_LETTER, _resubmit,
    )  # fmt: skip
    _add_transfer(again)
    again.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes (all)")
    again.add_argument("--to", metavar="ENTITY", help="send them there (where they came from)")
    again.add_argument(
        "--set", action="append", default=[], metavar="NAME=TEXT", help="an application property"
    )
    again.add_argument("--remove", action="append", default=[], metavar="NAME", help="one to go")
    again.add_argument("--action", metavar="SQL", help="repair them: SET …; REMOVE …")
    again.add_argument("--count", type=int, metavar="N", help="so many at most")
    again.add_argument("--dry-run", action="store_true", help="say which, and send nothing")
    add_yes(again)
    add_json(again)
    add_connection(again)

    purge = _tool(tools, "purge", "delete dead letters", _DEAD_LETTER, _purge_dead)
    _add_transfer(purge)
    purge.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes (all)")
    add_yes(purge)
    add_json(purge)
    add_connection(purge)


def _add_transfer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transfer", action="store_true", help="those that could not be forwarded, instead"
    )


def _dead_path(options: argparse.Namespace) -> str:
    from tandembus.client import dead_letter_path

    path = path_of(options)
    return path if options.transfer else dead_letter_path(path)


def _list_dead(options: argparse.Namespace) -> int:
    with connect(options) as client:
        found = list(find(client, _dead_path(options), sql=options.filter))
    if options.json or options.body:
        for message in found:
            show(options, message)
        return codes.WELL
    columns = ("sequence_number", "reason", "description", "message_id", "delivery_count", "body")
    rows = [
        (
            str(message.sequence_number),
            message.dead_letter_reason,
            message.dead_letter_description,
            message.message_id,
            message.delivery_count,
            as_json(message).get("body", "")[:80],  # type: ignore[index]
        )
        for message in found
    ]
    print_rows(options, columns, rows)
    return codes.WELL


def _resubmit(options: argparse.Namespace) -> int:
    repair = _repair(options)
    source = _dead_path(options)
    target = options.to or options.entity
    with connect(options) as client:
        wanted = [_place(message) for message in find(client, source, sql=options.filter)]
        if options.count is not None:
            del wanted[options.count :]
        if options.dry_run:
            which = [number for number, _ in wanted]
            return _tell(options, "would be sent again", len(wanted), which)
        if not wanted:
            return _tell(options, f"sent again to {target}", 0)
        confirm(options, f"Send {counted(len(wanted), 'message')} again to {target}?")
        with client.sender(target) as sender:

            def send(messages: Sequence[ReceivedMessage]) -> None:
                sender.send_all([repair(message) for message in messages]).check()

            done = _work_through(client, source, wanted, "resubmitting", send)
    return _tell(options, f"sent again to {target}", done, None, len(wanted))


def _repair(options: argparse.Namespace) -> Callable[[ReceivedMessage], EncodedMessage]:
    """A dead letter as it is sent again."""
    from tandembus.client import EncodedMessage
    from tandembus.core.sql import compile_action

    said: dict[str, Value] = dict(property_of(each) for each in options.set)
    edits = Edits(said, _DEAD.union(options.remove).difference(said))
    action = None if options.action is None else compile_action(options.action)

    def repaired(message: ReceivedMessage) -> EncodedMessage:
        if action is None:
            return EncodedMessage.again(message, edits)
        return EncodedMessage.again(message, action.apply(context_of(message)).then(edits))

    return repaired


Place: TypeAlias = tuple[int, str | None]
"""A sequence number, and the session that the message belongs to."""


def _place(message: ReceivedMessage) -> Place:
    return message.sequence_number, message.session_id


def _receivers(
    client: Client, path: str, places: Sequence[Place]
) -> Iterator[tuple[Receiver, list[int]]]:
    """Those that can have the messages at these places, one after the other: one for all of them,
    or of an entity with sessions one for each session."""
    try:
        receiver = client.receiver(path)
    except NotAllowedError:
        sessions: dict[str | None, list[int]] = {}
        for number, session in places:
            sessions.setdefault(session, []).append(number)
        for session, inside in sessions.items():
            with client.receiver(path, session=session) as receiver:
                yield receiver, inside
        return
    with receiver:
        yield receiver, [number for number, _ in places]


def _work_through(
    client: Client,
    path: str,
    places: Sequence[Place],
    label: str,
    work: Callable[[Sequence[ReceivedMessage]], None],
) -> int:
    """Receive what is at these places, work on it, complete it; the rest goes back as it was."""
    done = 0
    with progress(label, len(places)) as step:
        for receiver, inside in _receivers(client, path, places):
            wanted = set(inside)
            passed: list[ReceivedMessage] = []
            seen: set[int] = set()
            try:
                while wanted:
                    messages = receiver.receive(_AT_ONCE, wait_s=_WAIT_S)
                    ours = [each for each in messages if each.sequence_number in wanted]
                    others = [each for each in messages if each.sequence_number not in wanted]
                    passed += others
                    if ours:
                        work(ours)
                        receiver.complete(ours)
                        wanted.difference_update(each.sequence_number for each in ours)
                        done += len(ours)
                        step(len(ours))
                    elif not messages or all(each.sequence_number in seen for each in others):
                        break  # somebody else has the rest
                    seen.update(each.sequence_number for each in others)
            finally:
                receiver.release(passed)
    return done


def _tell(
    options: argparse.Namespace,
    what: str,
    count: int,
    which: Sequence[int] | None = None,
    wanted: int | None = None,
) -> int:
    if options.json:
        tree: dict[str, object] = {"count": count}
        if which is not None:
            tree["sequence_numbers"] = list(which)
        print_json(tree)
    else:
        say(f"{counted(count, 'message')} {what}")
    if wanted is not None and count < wanted:
        left = wanted - count
        say(f"tandem: {left:,} more {'is' if left == 1 else 'are'} held by another receiver")
        return codes.PROBLEM
    return codes.WELL


def _purge_dead(options: argparse.Namespace) -> int:
    with connect(options) as client:
        return _purge_path(client, options, _dead_path(options), ("active",), options.filter)


# --- deferred -------------------------------------------------------------------------------------

_DEFERRED: Final = (
    "examples:\n"
    "  tandem deferred list orders\n"
    "  tandem deferred return orders 17 18\n"
    "  tandem deferred return orders --all"
)


def _add_deferred(commands: Any) -> None:
    tools = _group(
        commands, "deferred", "list deferred messages, or have them wait again", _DEFERRED
    )
    listing = _tool(tools, "list", "deferred messages", _DEFERRED, _list_deferred)
    listing.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes")
    add_form(listing)
    add_connection(listing)
    back = _tool(
        tools, "return", "have deferred messages wait again, each in its place", _DEFERRED, _return
    )
    back.add_argument("numbers", nargs="*", metavar="N", help="their sequence numbers")
    back.add_argument("--all", action="store_true", help="all that there are")
    back.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes")
    add_json(back)
    add_connection(back)


def _list_deferred(options: argparse.Namespace) -> int:
    with connect(options) as client:
        found = list(find(client, path_of(options), state="deferred", sql=options.filter))
    show_all(options, found)
    return codes.WELL


def _return(options: argparse.Namespace) -> int:
    if not (options.numbers or options.all or options.filter):
        raise ArgumentError("Which ones? Give sequence numbers, --filter or --all.")
    path = path_of(options)
    with connect(options) as client:
        wanted = list(numbers(options.numbers))
        if options.all or options.filter:
            found = find(client, path, state="deferred", sql=options.filter)
            wanted += [message.sequence_number for message in found]
        for some in _portions(wanted):
            try:
                client.reactivate(some, path)
            except Refused as error:
                if not is_unknown(error):
                    raise
                _send_again(client, path, some)
    return _tell(options, "returned to active", len(wanted), wanted)


def _send_again(client: Client, path: str, wanted: Sequence[int]) -> None:
    """Of a broker that cannot do it: a copy at the end, and the deferred one is completed."""
    from tandembus.client import EncodedMessage

    entity = path.partition("/Subscriptions/")[0]
    if entity != path:
        raise ArgumentError("This broker cannot return the deferred messages of a subscription.")
    with client.receiver(path) as receiver, client.sender(entity) as sender:
        messages = receiver.receive_deferred(wanted)
        sender.send_all([EncodedMessage.again(message) for message in messages]).check()
        receiver.complete(messages)


def _portions(wanted: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(wanted), _AT_ONCE):
        yield list(wanted[start : start + _AT_ONCE])


# --- sessions -------------------------------------------------------------------------------------

_SESSION: Final = (
    "examples:\n"
    "  tandem session list orders\n"
    "  tandem session count orders --json\n"
    "  tandem session dead-letter orders customer-7 --reason 'customer is gone'"
)


def _add_session(commands: Any) -> None:
    tools = _group(
        commands, "session", "list and count sessions, or dead-letter a whole one", _SESSION
    )
    for name, text, run in (
        ("list", "sessions that have messages or a state", _list_sessions),
        ("count", "how many sessions there are, and how many wait for a receiver", _count_sessions),
        ("dead-letter", "every message of a session that nobody holds", _dead_letter_session),
    ):
        tool = _tool(tools, name, text, _SESSION, run)
        if name == "dead-letter":
            tool.add_argument("session", metavar="ID")
            tool.add_argument("--reason")
            tool.add_argument("--description")
            add_yes(tool)
        add_json(tool)
        add_connection(tool)


def _list_sessions(options: argparse.Namespace) -> int:
    with connect(options) as client:
        found = client.list_sessions(path_of(options))
    print_rows(options, ("session",), [(each,) for each in found])
    return codes.WELL


def _count_sessions(options: argparse.Namespace) -> int:
    with connect(options) as client:
        found = client.count_sessions(path_of(options))
    names = ("sessions", "available", "locked", "with_state")
    print_pairs(options, {name: getattr(found, name) for name in names})
    return codes.WELL


def _dead_letter_session(options: argparse.Namespace) -> int:
    confirm(options, f"Dead-letter every message of the session {options.session}?")
    with connect(options) as client:
        count = client.dead_letter_session(
            options.session,
            path_of(options),
            reason=options.reason,
            description=options.description,
        )
    return _tell(options, "dead-lettered", count)


# --- purge ----------------------------------------------------------------------------------------

_STATES: Final = ("active", "deferred", "scheduled")


def _add_purge(commands: Any) -> None:
    parser = commands.add_parser(
        "purge",
        help="delete the messages of an entity, and leave the entity",
        description="Deletes messages that nobody has locked. Without --state all of them: waiting,"
        " deferred and scheduled ones, but not the dead letters.",
        epilog="examples:\n"
        "  tandem purge orders --yes\n"
        "  tandem purge orders --state scheduled --yes\n"
        "  tandem purge orders --dead-letters --yes\n"
        "  tandem purge events -s audit --before 2026-01-31T00:00:00Z --yes\n"
        "  tandem purge orders --filter \"tier = 'test'\" --yes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_entity(parser, receives=True)
    add_dead_letters(parser)
    parser.add_argument("--state", choices=_STATES, help="those in this state only")
    parser.add_argument("--before", metavar="WHEN", help="those that were enqueued before")
    parser.add_argument("--filter", metavar="SQL", help="those that this SQL filter takes")
    add_yes(parser)
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=_purge)


def _purge(options: argparse.Namespace) -> int:
    states = _STATES if options.state is None else (options.state,)
    with connect(options) as client:
        return _purge_path(client, options, path_of(options), states, options.filter)


@dataclass(slots=True)
class _Purge:
    client: Client
    path: str
    before_ms: int | None
    sql: str | None
    total: int = 0

    def places(self, state: str) -> list[Place]:
        found = find(self.client, self.path, state=state, sql=self.sql)
        before_ms = NEVER if self.before_ms is None else self.before_ms
        return [_place(each) for each in found if each.enqueued_ms < before_ms]

    def run(self, states: Sequence[str]) -> None:
        with progress(f"purging {self.path}", None) as step:
            for state in states:
                for count in getattr(self, state)():
                    self.total += count
                    step(count)

    def active(self) -> Iterator[int]:
        if self.sql is not None:
            places = self.places("active")
            yield _work_through(self.client, self.path, places, "purging", lambda messages: None)
            return
        # A minute more than now: whatever has come before, by whichever clock.
        before_ms = self.before_ms or time.time_ns() // 1_000_000 + 60_000
        while count := self.client.delete_messages(4_000, self.path, before_ms=before_ms):
            yield count

    def scheduled(self) -> Iterator[int]:
        for some in _portions([number for number, _ in self.places("scheduled")]):
            self.client.cancel_scheduled(some, self.path)
            yield len(some)

    def deferred(self) -> Iterator[int]:
        places = self.places("deferred")
        for receiver, some_here in _receivers(self.client, self.path, places) if places else ():
            for some in _portions(some_here):
                receiver.complete(receiver.receive_deferred(some))
                yield len(some)


def _purge_path(
    client: Client,
    options: argparse.Namespace,
    path: str,
    states: Sequence[str],
    sql: str | None,
) -> int:
    now_ms = time.time_ns() // 1_000_000
    before = getattr(options, "before", None)
    before_ms = None if before is None else moment(before, now_ms, "--before")
    what = "those messages" if sql or before else "all messages"
    confirm(options, f"Delete {what} of {path}? They cannot be brought back.")
    purge = _Purge(client, path, before_ms, sql)
    purge.run(states)
    return _tell(options, "deleted", purge.total)
