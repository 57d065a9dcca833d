"""`tandem send|receive|peek|dead-letter|deferred|session|purge` against a real broker."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.cli.codes import BROKEN_PIPE, INTERRUPTED, NOT_FOUND, NOTHING, PROBLEM, USAGE
from tandembus.client import Client, OutgoingMessage
from tandembus.testing import LocalBroker
from tests.cli.conftest import Shell

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def queue(broker: LocalBroker) -> str:
    broker.create_queue("q")
    return "q"


def bodies(tandem: Shell, *words: str) -> list[str]:
    return tandem("peek", *words, "--all", "--body").out.splitlines()


@pytest.mark.req("C1")
def test_texts_files_lines_and_json(tandem: Shell, queue: str, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG\xff")
    (tmp_path / "some.jsonl").write_text('{"body": "four", "subject": "s"}\n\n{"body": {"n": 5}}\n')
    tandem("send", queue, "one", "-", stdin="two\n")
    tandem("send", queue, "--file", str(tmp_path / "image"))
    tandem("send", queue, "--json-lines", str(tmp_path / "some.jsonl"), "--subject", "other")
    tandem("send", queue, "--lines", stdin="six\nseven\n")
    tandem("send", queue, "x", "--count", "3")
    found = tandem("peek", queue, "--all", "--json").json_lines
    assert [each.get("body") for each in found] == [
        "one", "two\n", None, "four", '{"n": 5}', "six", "seven", "x", "x", "x",
    ]  # fmt: skip
    assert base64.b64decode(found[2]["body_base64"]) == b"\x89PNG\xff"
    assert [each.get("subject") for each in found[3:5]] == ["s", "other"]


def test_every_field(tandem: Shell, broker: LocalBroker) -> None:
    broker.create_queue("s", RequiresSession=True)
    tandem(
        "send", "s", "x", "--message-id", "m", "--session", "a", "--correlation-id", "c", "--to",
        "t", "--reply-to", "r", "--reply-to-session", "b", "--subject", "l", "--content-type",
        "text/plain", "--time-to-live", "90s", "--priority", "7", "-p", "text=1", "-p", "n:=1",
        "-p", "yes:=true", "-p", "f:=1.5", "-p", "empty=",
    )  # fmt: skip
    (found,) = tandem("peek", "s", "--json").json_lines
    for name in ("sequence_number", "enqueued_time"):
        del found[name]
    assert found == {
        "state": "active", "delivery_count": 0, "body": "x", "message_id": "m",
        "correlation_id": "c", "session_id": "a", "subject": "l",
        "content_type": "text/plain", "to": "t", "reply_to": "r", "reply_to_session_id": "b",
        "properties": {"text": "1", "n": 1, "yes": True, "f": 1.5, "empty": ""},
        "time_to_live_s": 90.0, "priority": 7,
    }  # fmt: skip


@pytest.mark.req("C1")
def test_what_was_received_can_be_sent(tandem: Shell, broker: LocalBroker) -> None:
    """`receive a --json | send b --json-lines -` moves messages, properties and all."""
    broker.create_queue("a")
    broker.create_queue("b")
    tandem("send", "a", "x", "y", "-p", "n:=1", "--message-id", "m", "--time-to-live", "1h")
    moved = tandem("receive", "a", "--json", "--count", "10", "--wait", "0.2").out
    tandem("send", "b", "--json-lines", "-", stdin=moved)
    before = [json.loads(line) for line in moved.splitlines()]
    after = tandem("peek", "b", "--json").json_lines
    for each in (*before, *after):
        for name in ("sequence_number", "enqueued_time", "locked_until"):
            each.pop(name, None)
    assert before == after
    assert bodies(tandem, "a") == []


def test_a_rate(tandem: Shell, queue: str) -> None:
    """So many a second at most: the last of eleven at 50 a second is sent after 0.2 s."""
    began = time.monotonic()
    tandem("send", queue, "x", "--count", "11", "--rate", "50")
    assert time.monotonic() - began >= 0.19
    assert len(bodies(tandem, queue)) == 11


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "What shall be sent?"),
        (("x", "--property", "tier"), "NAME=TEXT"),
        (("x", "-p", "n:=one"), "not JSON"),
        (("x", "--schedule", "some day"), "--schedule"),
        (("x", "--time-to-live", "long"), "--time-to-live"),
        (("x", "--rate", "0"), "--rate"),
        (("--file", "no-such-file"), "no-such-file"),
        (("--json-lines", "no-such-file"), "no-such-file"),
        (("--lines", "--count", "2"), "--count"),
    ],
)
def test_what_cannot_be_sent(tandem: Shell, queue: str, words: tuple[str, ...], said: str) -> None:
    assert said in tandem("send", queue, *words, code=USAGE).err
    assert bodies(tandem, queue) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "an object"),
        ("{", "not JSON"),
        ('{"bdoy": "x"}', "did you mean 'body'?"),
        ('{"body": "x", "body_base64": "eA=="}', "one body"),
        ('{"body_base64": "%"}', "base64"),
        ('{"properties": 1}', "properties"),
    ],
)
def test_json_that_is_no_message(tandem: Shell, queue: str, line: str, said: str) -> None:
    """It is told with its line; what came before is sent."""
    ran = tandem("send", queue, "--json-lines", "-", "--batch", "1", code=USAGE,
                 stdin='{"body": "first"}\n' + line)  # fmt: skip
    assert said in ran.err
    assert "line 2" in ran.err
    assert bodies(tandem, queue) == ["first"]


def test_what_the_broker_refuses(tandem: Shell, queue: str, tmp_path: Path) -> None:
    """The others are sent, the refused one is told, and the exit code says it."""
    (tmp_path / "large").write_bytes(b"x" * 300_000)
    ran = tandem("send", queue, "a", "b", "--file", str(tmp_path / "large"), "--json", code=PROBLEM)
    assert ran.json["sent"] == 2
    assert ran.json["failed"] == 1
    assert "message 3" in ran.err
    tandem("send", "nowhere", "x", code=NOT_FOUND)


# --- receive --------------------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_what_becomes_of_a_message(tandem: Shell, queue: str) -> None:
    def body(*words: str) -> str:
        return tandem("receive", queue, "--body", "--wait", "1", *words).out.strip()

    tandem("send", queue, "a", "b", "c", "d", "e")
    assert body() == "a"
    assert body("--abandon") == "b"
    assert tandem("peek", queue, "--json").json_lines[0]["delivery_count"] == 1
    assert body("--release") == "b"
    assert tandem("peek", queue, "--json").json_lines[0]["delivery_count"] == 1
    assert body("--delete") == "b"
    assert body("--defer") == "c"
    assert body("--dead-letter", "--reason", "bad", "--description", "very") == "d"
    assert body("--abandon", "--delay", "1h") == "e"
    tandem("receive", queue, "--wait", "0.1", code=NOTHING)
    (dead,) = tandem("peek", queue, "--dead-letters", "--json").json_lines
    assert (dead["dead_letter_reason"], dead["dead_letter_description"]) == ("bad", "very")
    assert body("--dead-letters") == "d"
    (deferred,) = tandem("peek", queue, "--state", "deferred").lines
    assert body("--sequence-number", deferred[0]) == "c"
    tandem("receive", queue, "--sequence-number", deferred[0], code=NOT_FOUND)


def test_receive_refuses_what_makes_no_sense(tandem: Shell, queue: str) -> None:
    for words in (
        ("--delay", "1s"),
        ("--reason", "x"),
        ("--count", "0"),
        ("--delete", "--sequence-number", "1"),
        ("--sequence-number", "one"),
    ):
        tandem("receive", queue, *words, code=USAGE)


def test_sessions(tandem: Shell, broker: LocalBroker) -> None:
    broker.create_queue("s", RequiresSession=True)
    for session in ("A", "B"):
        tandem("send", "s", f"1{session}", f"2{session}", "--session", session)
    got = tandem("receive", "s", "--session", "B", "--count", "2", "--body", "--wait", "1")
    assert got.out.split() == ["1B", "2B"]
    assert tandem("receive", "s", "--next-session", "--body").out.strip() == "1A"
    assert tandem("session", "list", "s").out.split() == ["A"]
    assert tandem("session", "count", "s", "--json").json["available"] == 1
    assert "1 message dead" in tandem("session", "dead-letter", "s", "A", "--yes").err
    assert bodies(tandem, "s", "--dead-letters") == ["2A"]


def test_following(tandem: Shell, broker: LocalBroker, queue: str) -> None:
    """It goes on until Ctrl-C, and what it has printed is completed."""
    command = [sys.executable, "-m", "tandembus.cli", "receive", queue, "--follow", "--body"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment(broker))
    assert process.stdout is not None
    try:
        for text in ("one", "two"):
            tandem("send", queue, text)
            assert process.stdout.readline() == f"{text}\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == INTERRUPTED
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert bodies(tandem, queue) == []


def _environment(broker: LocalBroker) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TANDEM_CONNECTION_STRING": broker.connection_string,
    }


def test_a_reader_that_has_enough(tandem: Shell, broker: LocalBroker, queue: str) -> None:
    """`tandem peek … | head -1` ends, quietly."""
    tandem("send", queue, "x" * 1_000, "--count", "300")
    command = [sys.executable, "-m", "tandembus.cli", "peek", queue, "--all", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(broker)
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == BROKEN_PIPE
    assert process.stderr.read() == b""
    process.stderr.close()


# --- peek -----------------------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_peek_by_state_filter_and_number(tandem: Shell, queue: str) -> None:
    for number in range(5):
        tandem("send", queue, f"m{number}", "-p", f"n:={number}")
    tandem("send", queue, "later", "--schedule", "1h")
    tandem("receive", queue, "--defer")
    assert bodies(tandem, queue, "--state", "scheduled") == ["later"]
    assert bodies(tandem, queue, "--state", "deferred") == ["m0"]
    assert bodies(tandem, queue, "--filter", "n > 2") == ["m3", "m4"]
    assert bodies(tandem, queue, "--filter", "n < 2", "--state", "active") == ["m1"]
    assert bodies(tandem, queue, "--from", "4") == ["m3", "m4", "later"]
    assert len(tandem("peek", queue, "--count", "2").lines) == 2
    assert tandem("peek", queue, "--filter", "n >", code=USAGE).err.startswith("tandem: ")
    tandem("peek", "nowhere", code=NOT_FOUND)


def test_peek_where_the_broker_cannot_search(
    tandem: Shell, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure has no such operation: then everything is fetched and looked through here."""
    from tandembus.errors import RemoteError

    def unknown(*_: object, **__: object) -> Iterator[object]:
        """It is asked for at the first message, as the real one is."""
        return map(fail, (501,))

    def fail(status: int) -> object:
        raise RemoteError(f"status {status}", "There is no 'tandem:browse' here.")

    tandem("send", queue, "a", "b", "-p", "n:=1")
    tandem("send", queue, "c", "-p", "n:=2")
    tandem("receive", queue, "--defer")
    monkeypatch.setattr(Client, "search", unknown)
    assert bodies(tandem, queue, "--filter", "n = 1") == ["a", "b"]
    assert bodies(tandem, queue, "--filter", "n = 1", "--state", "deferred") == ["a"]
    assert bodies(tandem, queue, "--filter", "sys.SequenceNumber = 3") == ["c"]


# --- dead letters ---------------------------------------------------------------------------------


def dead(tandem: Shell, queue: str, count: int) -> None:
    for number in range(count):
        tandem("send", queue, f"m{number}", "-p", f"n:={number}", "--message-id", f"id{number}")
    words = ("--dead-letter", "--reason", "bad")
    tandem("receive", queue, "--count", str(count), *words)


@pytest.mark.req("C1")
def test_repair_and_resubmit(tandem: Shell, queue: str) -> None:
    """By a filter; changed as was asked; with its id, and without the marks of a dead letter."""
    dead(tandem, queue, 4)
    assert [row[1:4:2] for row in tandem("dead-letter", "list", queue).lines] == [
        ["bad", f"id{number}"] for number in range(4)
    ]
    dry = tandem("dead-letter", "resubmit", queue, "--filter", "n > 1", "--dry-run", "--json")
    assert dry.json == {"count": 2, "sequence_numbers": [3, 4]}
    tandem("dead-letter", "resubmit", queue, code=USAGE)
    tandem(
        "dead-letter", "resubmit", queue, "--filter", "n > 1", "--set", "fixed:=true", "--action",
        "SET sys.Label = 'again'; SET n = n + 10; REMOVE gone", "--yes",
    )  # fmt: skip
    found = tandem("peek", queue, "--json").json_lines
    assert [each["message_id"] for each in found] == ["id2", "id3"]
    assert found[0]["properties"] == {"n": 12, "fixed": True}
    assert found[0]["subject"] == "again"
    assert bodies(tandem, queue, "--dead-letters") == ["m0", "m1"]
    counts = [each["delivery_count"] for each in
              tandem("peek", queue, "-d", "--json").json_lines]  # fmt: skip
    assert counts == [0, 0], "those that were passed over are as they were"


def test_what_resubmit_says(tandem: Shell, queue: str) -> None:
    """Only a dry run says "would"; also where there is nothing to send."""
    resubmit = ("dead-letter", "resubmit", queue)
    assert tandem(*resubmit, "--yes").err == f"0 messages sent again to {queue}\n"
    assert tandem(*resubmit, "--yes", "--json").json == {"count": 0}
    assert tandem(*resubmit, "--dry-run").err == "0 messages would be sent again\n"
    dead(tandem, queue, 2)
    assert tandem(*resubmit, "--dry-run").err == "2 messages would be sent again\n"
    assert "Send 2 messages again" in tandem(*resubmit, code=USAGE).err
    assert tandem(*resubmit, "--count", "1", "--yes").err == f"1 message sent again to {queue}\n"
    assert "Send 1 message again" in tandem(*resubmit, code=USAGE).err


def test_resubmit_elsewhere_whatever_the_body(tandem: Shell, broker: LocalBroker) -> None:
    """A body that is an AMQP value stays one."""
    broker.create_queue("q")
    broker.create_queue("other")
    from tandembus.amqp.message import VALUE
    from tandembus.amqp.types import encode, encode_described
    from tandembus.client import EncodedMessage

    value = {"a": [1, "two"]}
    with Client(broker.connection_string) as client, client.sender("q") as sender:
        head = OutgoingMessage(None, message_id="m").encoded()
        sender.send(EncodedMessage(head + encode_described(VALUE, encode(value))))
    tandem("receive", "q", "--dead-letter")
    tandem("dead-letter", "resubmit", "q", "--to", "other", "--yes")
    (found,) = tandem("peek", "other", "--json").json_lines
    assert (found["body_value"], found["message_id"]) == (value, "m")


def test_dead_letters_that_another_holds(tandem: Shell, broker: LocalBroker, queue: str) -> None:
    """They are told, and the exit code says that it was not all."""
    dead(tandem, queue, 3)
    with (
        Client(broker.connection_string) as client,
        client.receiver("q/$DeadLetterQueue") as receiver,
    ):
        assert len(receiver.receive(1)) == 1
        ran = tandem("dead-letter", "resubmit", queue, "--yes", code=PROBLEM)
        assert "1 more" in ran.err
    assert len(bodies(tandem, queue)) == 2


def test_dead_letter_purge(tandem: Shell, queue: str) -> None:
    dead(tandem, queue, 4)
    tandem("dead-letter", "purge", queue, "--filter", "n = 2", "--yes")
    assert bodies(tandem, queue, "-d") == ["m0", "m1", "m3"]
    assert tandem("dead-letter", "purge", queue, "--yes", "--json").json == {"count": 3}


# --- deferred -------------------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_deferred_messages_return(tandem: Shell, queue: str) -> None:
    tandem("send", queue, "a", "b", "c")
    tandem("receive", queue, "--count", "3", "--defer")
    assert [row[-1] for row in tandem("deferred", "list", queue).lines] == ["a", "b", "c"]
    tandem("deferred", "return", queue, code=USAGE)
    tandem("deferred", "return", queue, "2")
    tandem("deferred", "return", queue, "--filter", "sys.SequenceNumber = 3")
    assert bodies(tandem, queue, "--state", "active") == ["b", "c"]
    tandem("deferred", "return", queue, "99", code=NOT_FOUND)
    assert tandem("deferred", "return", queue, "--all").err == "1 message returned to active\n"
    assert tandem("deferred", "return", queue, "--all").err == "0 messages returned to active\n"
    got = tandem("receive", queue, "--count", "3", "--body").out.split()
    assert got == ["a", "b", "c"], "each in its place"


# --- purge ----------------------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_purge(tandem: Shell, queue: str) -> None:
    """All that nobody holds, or a state of it, or what a filter takes; the dead letters stay."""

    def fill() -> None:
        tandem("send", queue, "a", "b", "c", "-p", "n:=1")
        tandem("receive", queue, "--defer")
        tandem("receive", queue, "--dead-letter")
        tandem("send", queue, "later", "--schedule", "1h")

    fill()
    tandem("purge", queue, code=USAGE)
    assert tandem("purge", queue, "--yes", "--json").json == {"count": 3}
    assert bodies(tandem, queue) == []
    assert bodies(tandem, queue, "-d") == ["b"]
    assert tandem("purge", queue, "--dead-letters", "--yes", "--json").json == {"count": 1}

    fill()
    assert tandem("purge", queue, "--state", "deferred", "--yes", "--json").json == {"count": 1}
    assert tandem("purge", queue, "--filter", "n = 1", "--yes", "--json").json == {"count": 1}
    assert tandem("purge", queue, "--before", "2020-01-01", "--yes", "--json").json == {"count": 0}
    assert tandem("purge", queue, "--state", "scheduled", "--yes", "--json").json == {"count": 1}


def test_purge_of_sessions(tandem: Shell, broker: LocalBroker) -> None:
    broker.create_queue("s", RequiresSession=True)
    for session in ("A", "B"):
        tandem("send", "s", "x", "y", "--session", session)
    tandem("receive", "s", "--session", "A", "--defer")
    assert tandem("purge", "s", "--yes", "--json").json == {"count": 4}


def test_ctrl_c_is_a_code(tandem: Shell, queue: str) -> None:
    """Also while it waits for a message, in this very process."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    tandem("receive", queue, "--wait", "30", code=INTERRUPTED)
    timer.join()
