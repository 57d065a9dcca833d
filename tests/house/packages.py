"""The wheel, built from this tree, and environments that have nothing but what is installed into
them.

Building needs `hatchling`, which `.[dev]` brings. Installing needs a package index, or uv and its
cache: the first installation of this repository has filled it with the same packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build_wheel(folder: Path) -> Path:
    """The wheel in that folder."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, *requirements: str) -> Path:
    """An environment with these packages and what they depend on; its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / "bin" / "python")
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [str(uv), "pip", "install", "--quiet", "--python", python]
        attempts = [[*command, *requirements], [*command, "--offline", *requirements]]
    else:
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        attempts = [[*command, *requirements]]
    for attempt in attempts[:-1]:
        if not subprocess.run(attempt, capture_output=True, check=False).returncode:
            break
    else:
        _run(attempts[-1], ROOT)
    return folder / "bin"


def clean_environment(*programs: Path) -> dict[str, str]:
    """The environment of a user: these programs first, nothing of this repository."""
    ours = ("TANDEM_", "PYTHON", "SERVICEBUS_", "VIRTUAL_ENV", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PATH": os.pathsep.join([*map(str, programs), kept["PATH"]])}


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
