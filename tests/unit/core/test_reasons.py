"""Why the broker dead-letters: one enumeration, documented, and every reason occurs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandembus import errors
from tandembus.core.commands import Disposition
from tandembus.core.reasons import DeadLetterReason, reason_of
from tandembus.errors import ArgumentError
from tandembus.model import Edits
from tests.unit.core.world import World, settling

ROOT = Path(__file__).parents[3]


@pytest.mark.req("T20")
def test_fk9_no_reason_is_written_anywhere_else() -> None:
    """Not as a literal of core, and not as the name of a class."""
    for path in sorted((ROOT / "src/tandembus/core").rglob("*.py")):
        if path.name == "reasons.py":
            continue
        text = path.read_text("utf-8")
        for reason in DeadLetterReason:
            assert f'"{reason}"' not in text, path.name
        assert "__name__" not in text or "removesuffix" not in text, path.name


@pytest.mark.req("T20")
def test_fk9_every_reason_is_documented() -> None:
    """docs/dead-letters.md has a row for each, and no other."""
    text = (ROOT / "docs/dead-letters.md").read_text("utf-8")
    table = text.partition("## Reasons of the broker")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == [
        str(it) for it in DeadLetterReason
    ]


@pytest.mark.req("T20")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.SessionIdMissingError(), "Session ID is null."),
        (errors.EntityNotFoundError("q"), "MessagingEntityNotFound"),
        (errors.EntityDisabledError("q"), "MessagingEntityDisabled"),
        (errors.MessageSizeExceededError("x"), "MessageSizeExceeded"),
        (errors.QuotaExceededError("x"), "QuotaExceeded"),
        (errors.NotAllowedError("x"), "TransferRefused"),
        (errors.ArgumentError("x"), "TransferRefused"),
    ],
)
def test_fk9_what_a_target_refuses_has_a_reason(error: errors.Refused, reason: str) -> None:
    assert reason_of(error) == reason


HALF = Edits({"a": "x" * 40_000})
OTHER_HALF = Edits({"b": "x" * 40_000})


@pytest.mark.req("T20", "T9")
@pytest.mark.parametrize("how", [Disposition.ABANDON, Disposition.DEFER, Disposition.DEAD_LETTER])
def test_fk9_header_size_exceeded_occurs(lived: World, how: Disposition) -> None:
    """Properties to modify may add up to 64 KiB. What would exceed it is dead-lettered without the
    new ones: otherwise each abandon could add some, for ever."""
    lived.queue("q")
    lived.send("q", "a")
    lived.abandon("q", lived.receive_one("q"), edits=HALF)
    lived.do(settling("q", how, lived.receive_one("q"), edits=OTHER_HALF))
    lived.lull()
    assert lived.dead_reasons("q") == [("a", "HeaderSizeExceeded")]
    assert lived.waiting("q") == []
    seen = lived.read(lived.receive_one("q/$DeadLetterQueue"))
    assert "a" in seen.properties
    assert "b" not in seen.properties


@pytest.mark.req("T20")
@pytest.mark.parametrize("how", [Disposition.ABANDON, Disposition.DEFER])
def test_fk9_in_a_dead_letter_queue_too_many_properties_are_refused(
    world: World, how: Disposition
) -> None:
    """A dead letter cannot be dead-lettered; it keeps its lock."""
    world.queue("q")
    world.send("q", "a")
    world.dead_letter("q", world.receive_one("q"), edits=HALF)
    dead = world.receive_one("q/$DeadLetterQueue")
    world.refused(ArgumentError, settling("q/$DeadLetterQueue", how, dead, edits=OTHER_HALF))
    world.complete("q/$DeadLetterQueue", dead)
