"""Short slices of `make ladder`: the small sizes over plain TCP, with every client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.ladder.clients import CLIENTS
from tests.interop.ladder.memory import measure
from tests.interop.ladder.run import (
    EXACT,
    WAYS,
    Combination,
    Ladder,
    climb,
    combinations,
    main,
    sizes,
)

LARGEST_MB = 5


def _climb(only: list[str]) -> None:
    report = climb(LARGEST_MB, only, has_memory=False)
    if not report.results:
        pytest.skip("; ".join(report.not_run))
    failed = [f"{each.combination.name}: {each.error}" for each in report.failures]
    assert not failed, "\n".join(failed)


@pytest.mark.req("T19")
@pytest.mark.parametrize("client", CLIENTS)
def test_fw1_every_client_sends_and_receives_up_to_5_mb(client: str) -> None:
    """Sizes around the limits that there were, and exactly the largest that fits; one byte more is
    refused because of its size."""
    _climb([f"{client}/plain/{size}/complete" for size in ("256KB", "1.1MB", "5MB", EXACT)])


@pytest.mark.req("T19")
def test_fw1_5_mb_come_in_every_way() -> None:
    """Receive-and-delete, deferred, peeked: two of them come over `$management`."""
    _climb([f"lean/plain/5MB/{way}" for way in WAYS])


def test_the_sizes_end_at_the_limit() -> None:
    """The last body but one is just below it."""
    names = ["256KB", "1MB", "1.1MB", "4MB", "5MB", EXACT]
    assert list(sizes(5)) == names
    assert list(sizes(2)) == ["256KB", "1MB", "1.1MB", "2MB", EXACT]
    assert sizes(5)["5MB"] < sizes(5)[EXACT] == 5 * 1_048_576


def test_a_broker_that_ends_is_a_failure(tmp_path: Path) -> None:
    """Whatever the client says about it."""
    with Ladder(1, 1, tmp_path) as ladder:
        ladder.broker.kill()
        result = ladder.run(Combination("lean", "plain", "1MB", "peek"))
        assert result.error == "the broker ended with the exit code -9"


def test_the_memory_is_measured() -> None:
    """Of senders and receivers at the same time, and nothing of it is refused."""
    lines, wrong = measure(b"x" * 900_000, 1, 3)
    assert not wrong
    assert [line.partition(" MB")[0] for line in lines] == [
        "memory: one message of 0.9",
        "memory: 3 senders of 0.9",
        "memory: 3 receivers of 0.9",
    ]


def test_only_names_a_part() -> None:
    """Parts at the end may be left out, and `*` is any."""
    one = Combination("lean", "tls", "1MB", "peek")
    assert one.is_in([])
    assert one.is_in(["lean"])
    assert one.is_in(["python", "*/tls/1MB"])
    assert not one.is_in(["lean/tls/1.1MB"])
    assert len(list(combinations(5, ["cli/plain"]))) == 6 * len(WAYS)


def test_what_names_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Else a misspelt name would pass."""
    for wrong in (["--only", "pyhton"], ["--largest", "0"]):
        with pytest.raises(SystemExit):
            main(wrong)
    assert "names nothing" in capsys.readouterr().err
