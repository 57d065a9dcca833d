"""What is shown while a pipeline runs (D8)."""

from __future__ import annotations

import io
import threading

import pytest

from tandembus.spark.pipelines.progress import Lines, Standing, Steps, progress, watched


@pytest.mark.req("D8")
def test_in_a_pipe_there_are_lines() -> None:
    """A line for what is new, and not too many."""
    out = io.StringIO()
    lines = Lines("capture", out, every_s=0)
    lines.show(Standing(0, None, "Spark is starting"))
    lines.show(Standing(1, 4, "1 of 4"))
    lines.show(Standing(1, 4, "1 of 4"))
    assert out.getvalue().splitlines() == [
        "capture: Spark is starting",
        "capture: 25 %, 1 of 4",
    ]
    seldom = Lines("capture", out, every_s=float("inf"))
    seldom.show(Standing(0, None, "first"))
    seldom.show(Standing(0, None, "second"))
    assert "second" not in out.getvalue()


@pytest.mark.req("D8")
def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where it began: nothing is left on the screen but what was told."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("rates") as shown:
        shown.show(Standing(1, 2, "events to cube"))
        shown.rich.refresh()  # type: ignore[attr-defined]
    assert "events to cube" in screen.getvalue()
    assert "rates" in screen.getvalue()


def test_steps_are_parts_of_a_whole() -> None:
    steps = Steps(2)
    assert steps.standing(0.5).done == 0
    steps.begin("one")
    assert steps.standing(0.5) == (0.5, 2, "one")
    steps.begin("two")
    steps.begin("more than was thought")
    assert steps.standing(0.5) == (2.5, 2.5, "more than was thought")


def test_a_look_that_fails_ends_nothing() -> None:
    looked = threading.Event()

    def look() -> Standing | None:
        looked.set()
        raise RuntimeError("Spark is gone")

    with watched(Lines("x", io.StringIO()), look):
        assert looked.wait(10)
