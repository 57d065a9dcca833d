"""`tandem queue|topic|subscription|rule|namespace|export|import` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandembus.cli.codes import NOT_FOUND, PROBLEM, UNAUTHORIZED, UNREACHABLE, USAGE
from tandembus.core.access import everything
from tandembus.core.commands import CreateQueue
from tandembus.model import Secret
from tandembus.settings import AccessRight, AuthorizationRule, QueueSettings
from tandembus.testing import LocalBroker
from tests.cli.conftest import Shell


@pytest.mark.req("C1")
def test_a_queue_from_birth_to_death(tandem: Shell) -> None:
    tandem("queue", "create", "orders", "--lock-duration", "30s", "--requires-session")
    shown = tandem("queue", "show", "orders", "--json").json
    assert (shown["LockDuration"], shown["RequiresSession"]) == ("PT30S", "true")
    tandem("queue", "update", "orders", "--max-delivery-count", "3", "--lock-duration", "1m30s")
    shown = tandem("queue", "show", "orders", "--json").json
    assert (shown["LockDuration"], shown["MaxDeliveryCount"]) == ("PT1M30S", "3")
    assert shown["RequiresSession"] == "true", "what is not named stays"
    tandem("send", "orders", "a", "b", "--session", "s")
    assert tandem("queue", "list").lines == [["orders", "Active", "2", "0", "0", "0", "0"]]
    assert "and its 2 messages" in tandem("queue", "delete", "orders", code=USAGE).err
    tandem("queue", "delete", "orders", "--yes")
    assert tandem("queue", "list", "--json").json == []
    tandem("queue", "show", "orders", code=NOT_FOUND)


@pytest.mark.req("C1")
def test_settings_beyond_azure(tandem: Shell) -> None:
    """Levels and rates are settings like all others, and can be taken away again."""
    tandem(
        "queue", "create", "jobs", "--priority-levels", "3", "--priority-aging-seconds", "60",
        "--rate-limit", "100/s",
    )  # fmt: skip
    shown = tandem("queue", "show", "jobs", "--json").json
    assert (shown["PriorityLevels"], shown["RateLimit"]) == ("3", "100/s")
    tandem("queue", "update", "jobs", "--rate-limit", "", "--lock-duration", "10s")
    shown = tandem("queue", "show", "jobs", "--json").json
    assert "RateLimit" not in shown
    assert (shown["PriorityLevels"], shown["LockDuration"]) == ("3", "PT10S")


@pytest.mark.req("T20")
def test_fw7_what_cannot_be_forwarded_is_counted_listed_and_sent_again(tandem: Shell) -> None:
    """By the same commands as dead letters, with `--transfer`."""
    tandem("queue", "create", "target")
    tandem("queue", "create", "source", "--forward-to", "target")
    tandem("queue", "update", "target", "--status", "SendDisabled")
    tandem("send", "source", "x", "y")
    columns = ("active", "dead_letters", "transfer", "transfer_dead_letters")
    (row,) = [each for each in tandem("queue", "list", "--json").json if each["name"] == "source"]
    assert [row[name] for name in columns] == [0, 0, 0, 2]
    assert tandem("dead-letter", "list", "source", "--json").out == ""
    assert len(tandem("peek", "source", "--transfer").lines) == 2
    first = tandem("dead-letter", "list", "source", "--transfer").lines[0]
    assert "MessagingEntityDisabled" in first
    tandem("queue", "update", "target", "--status", "Active")
    tandem("dead-letter", "resubmit", "source", "--transfer", "--count", "1", "--yes")
    tandem("dead-letter", "purge", "source", "--transfer", "--yes")
    assert tandem("dead-letter", "list", "source", "--transfer", "--json").out == ""
    assert tandem("queue", "list").lines[1][0::2] == ["target", "1", "0", "0"]


def test_forwarding(tandem: Shell) -> None:
    """The target is proven to be ours, as the administration client of the SDK does."""
    tandem("queue", "create", "target")
    tandem("queue", "create", "source", "--forward-to", "target")
    tandem("send", "source", "x")
    assert tandem("queue", "list").lines[1][0::2] == ["target", "1", "0", "0"]


@pytest.mark.req("C1")
def test_subscriptions_and_rules(tandem: Shell) -> None:
    tandem("topic", "create", "events", "--default-message-time-to-live", "7d")
    tandem("subscription", "create", "events", "big", "--filter", "amount > 10")
    tandem("subscription", "create", "events", "all")
    tandem("rule", "create", "events", "big", "red", "--correlation", "subject=red", "-p", "n:=1")
    tandem("rule", "update", "events", "big", "filter", "--filter", "amount > 5", "--action",
           "SET big = 1")  # fmt: skip
    rules = {row["name"]: row for row in tandem("rule", "list", "events", "big", "--json").json}
    assert rules["filter"] == {"name": "filter", "filter": "amount > 5", "action": "SET big = 1"}
    assert rules["red"]["filter"] == "subject = 'red' AND n = 1"
    tandem("send", "events", "x", "--property", "amount:=6")
    tandem("send", "events", "y", "--subject", "red", "--property", "n:=1")
    tandem("send", "events", "z")
    assert tandem("subscription", "list", "events").lines == [
        ["all", "Active", "3", "0", "0", "0", "0"],
        ["big", "Active", "2", "0", "0", "0", "0"],
    ]
    tandem("rule", "delete", "events", "big", "red", "--yes")
    tandem("rule", "show", "events", "big", "red", code=NOT_FOUND)
    assert tandem("topic", "list").lines[0][:3] == ["events", "Active", "2"]
    tandem("subscription", "delete", "events", "all", "--yes")
    tandem("topic", "delete", "events", "--yes")
    assert tandem("namespace", "show", "--json").json["topics"] == 0


def test_create_if_missing(tandem: Shell) -> None:
    tandem("queue", "create", "q")
    assert "already exists" in tandem("queue", "create", "q", code=PROBLEM).err
    tandem("queue", "create", "q", "--if-missing")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lock-duration", "soon"), "LockDuration is a time such as 30s"),
        (("--lock-duration", "10m"), "maximum of '5' minutes"),
        (("--max-delivery-count", "many"), "MaxDeliveryCount is a whole number"),
        (("--status", "Asleep"), "one of Active"),
        (("--requires-session", "perhaps"), "true or false"),
        (("--priority-levels", "99"), "PriorityLevels"),
    ],
)
def test_a_value_that_cannot_be(tandem: Shell, words: tuple[str, ...], said: str) -> None:
    """It is told by its name before the broker is asked."""
    assert said in tandem("queue", "create", "q", *words, code=USAGE).err


@pytest.mark.req("C1")
def test_export_and_import(tandem: Shell, tmp_path: Path) -> None:
    """What is exported makes the same entities elsewhere, rules and all; and only what is asked for
    is changed or deleted."""
    tandem("queue", "create", "b", "--priority-levels", "2")
    tandem("queue", "create", "a", "--forward-to", "b", "--user-metadata", "it's ours")
    tandem("topic", "create", "t", "--rate-limit", "5/min")
    tandem("subscription", "create", "t", "s", "--filter", "x = 'y'", "--lock-duration", "5s")
    tandem("rule", "create", "t", "s", "c", "--correlation", "subject=red", "-p", "n:=1")
    tandem("subscription", "create", "t", "plain")
    file = tmp_path / "entities.json"
    tandem("export", "--output", str(file), "--name", "shop")
    assert "Key" not in file.read_text()
    with LocalBroker.start() as other:
        there = ("--connection-string", other.connection_string)
        dry = tandem("import", str(file), "--dry-run", *there)
        assert "create queue a" in dry.out
        assert tandem("queue", "list", *there).out == ""
        tandem("import", str(file), *there)
        same = tandem("export", "--name", "shop", *there).json
        assert same == json.loads(file.read_text())
        assert "0 changes" in tandem("import", str(file), *there).err

        tandem("queue", "update", "a", "--user-metadata", "theirs", *there)
        tandem("queue", "create", "more", *there)
        left = tandem("import", str(file), *there)
        assert "UserMetadata: theirs → it's ours" in left.err
        tandem("import", str(file), "--apply", "--delete", *there, code=USAGE)
        tandem("import", str(file), "--apply", "--delete", "--yes", *there)
        assert tandem("export", "--name", "shop", *there).json == same


def test_whom_it_cannot_reach(shell: Shell) -> None:
    nobody = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;" \
        "UseDevelopmentEmulator=true"  # fmt: skip
    assert (
        "localhost:1" in shell("queue", "list", "--connection-string", nobody, code=UNREACHABLE).err
    )
    assert "--connection-string" in shell("queue", "list", code=USAGE).err
    wrong = "Endpoint=sb://localhost;Key=secret"
    said = shell("queue", "list", "--connection-string", wrong, code=USAGE).err
    assert "secret" not in said


def test_a_key_that_is_not_one(tandem: Shell, broker: LocalBroker) -> None:
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "x" * 20)
    tandem("queue", "list", "--connection-string", wrong, code=UNAUTHORIZED)
    tandem("peek", "q", "--connection-string", wrong, code=UNAUTHORIZED)


def test_an_update_keeps_the_entitys_own_keys(tandem: Shell, broker: LocalBroker) -> None:
    """A description replaces the one before, and it has the entity's authorization rules."""
    rule = AuthorizationRule("sender", (AccessRight.SEND,), Secret("k" * 44), Secret("l" * 44))
    assert broker.server is not None
    settings = QueueSettings(authorization_rules=(rule,))
    broker.run(broker.server.broker.execute(CreateQueue("q", settings), everything()))
    tandem("queue", "update", "q", "--lock-duration", "7s")
    kept = broker.server.broker.namespace.find("q").settings
    assert isinstance(kept, QueueSettings)
    assert kept.lock_duration_ms == 7_000
    assert [(each.name, each.primary_key) for each in kept.authorization_rules] == [
        ("sender", "k" * 44)
    ]
