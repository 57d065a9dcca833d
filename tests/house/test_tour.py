"""`make tour` is run as a reader would run it."""

from __future__ import annotations

import subprocess
import sys


def test_the_tour_ends_well() -> None:
    """It shows what it says, checks it, and ends with exit code 0."""
    command = [sys.executable, "-m", "tandembus.tour"]
    tour = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert tour.returncode == 0, tour.stdout + tour.stderr
    assert "killed after" in tour.stdout
    assert "All as promised" in tour.stdout
