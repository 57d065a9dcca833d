"""What stays on the board, and for how long."""

from __future__ import annotations

import pytest

from tandembus.admin.console import board as boards
from tandembus.admin.console.board import GONE_MS, KEPT_MS, Board
from tandembus.errors import ServerBusyError

pytestmark = pytest.mark.req("C4")


def _names(board: Board, now_ms: int) -> list[str]:
    return [each["name"] for each in board.shown(now_ms)]


def test_what_came_to_its_end_stays_for_a_day() -> None:
    """What says nothing more in the middle is gone in a minute."""
    board = Board()
    for name, state in (("silent", "running"), ("over", "done"), ("broken", "failed")):
        board.post("pipeline", name, {"state": state}, 10, 0)
    assert _names(board, GONE_MS) == ["broken", "over", "silent"]
    assert _names(board, GONE_MS + 1) == ["broken", "over"]
    assert _names(board, KEPT_MS + 1) == []


def test_who_lives_comes_before_who_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full board the oldest end makes room; the living do not."""
    monkeypatch.setattr(boards, "MAX_BOARD_NOTES", 2)
    board = Board()
    board.post("pipeline", "first", {"state": "done"}, 10, 0)
    board.post("pipeline", "second", {"state": "done"}, 10, 1)
    board.post("pair", "a", {}, 10, 2)
    assert _names(board, 2) == ["a", "second"]
    board.post("pair", "b", {}, 10, 3)
    with pytest.raises(ServerBusyError, match="full"):
        board.post("pair", "c", {}, 10, 4)
