"""The fast tests on every Python that is installed here: `make test-pythons`.

Looks for each version that pyproject.toml names, as `python3.N` in PATH and among pyenv's. Each
gets an environment of its own in build/pythons/, made again when pyproject.toml has changed. At the
end it says which versions were tested and which are not installed.

    python tools/pythons.py [--only 3.12 3.13] [--workers 2] [arguments of pytest]

Exit status: 0; 1 when a test failed, an environment could not be made, a version that was asked for
is not there, or none is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/unit", "tests/property", "tests/client", "tests/cli")
"""No JVM, no browser, no long runs: what differs between versions of Python shows up here."""
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def versions(pyproject: str) -> list[str]:
    """The versions of Python that the package says it supports."""
    named = tomllib.loads(pyproject)["project"]["classifiers"]
    return [match[1] for each in named if (match := _CLASSIFIER.fullmatch(each))]


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    for folder in os.get_exec_path():
        yield Path(folder, name)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for installed in sorted(pyenv.glob(f"{version}.*"), reverse=True):
        yield installed / "bin" / name


def find(version: str) -> Path | None:
    """The first that runs, has that version, and can make environments; a shim may do neither."""
    code = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in _candidates(version):
        if not os.access(candidate, os.X_OK):
            continue
        told = subprocess.run(
            [str(candidate), "-c", code], capture_output=True, text=True, check=False
        )
        if told.returncode == 0 and told.stdout.strip() == version:
            return candidate
    return None


def prepare(python: Path, folder: Path) -> bool:
    """An environment with this repository and all that its tests need."""
    ready = folder / ".ready"
    if ready.exists() and ready.stat().st_mtime >= (ROOT / "pyproject.toml").stat().st_mtime:
        return True
    print(f"preparing {folder.relative_to(ROOT)} …", flush=True)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        making = [str(python), "-m", "venv", "--clear", "--without-pip", str(folder)]
        installing = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    else:
        making = [str(python), "-m", "venv", "--clear", str(folder)]
        installing = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    for command in (making, [*installing, "-e", ".[dev]"]):
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return False
    ready.touch()
    return True


def run(version: str, python: Path, workers: int, arguments: Sequence[str]) -> str:
    """What became of it, in a few words."""
    folder = ROOT / "build" / "pythons" / version
    if not prepare(python, folder):
        return "FAILED: its environment could not be made"
    print(f"Python {version} ({python}):", flush=True)
    began = time.monotonic()
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-n", str(workers), "-q"]
    done = subprocess.run(
        [*command, "-m", "not long", "--hypothesis-seed=0", *(arguments or TESTS)],
        cwd=ROOT,
        # Caches of one version are of no use to another, and two runs would write the same files.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    seconds = f"{time.monotonic() - began:.0f} s"
    return f"FAILED ({seconds})" if done.returncode else f"passed ({seconds})"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The fast tests on every Python installed here.")
    parser.add_argument("--only", nargs="+", metavar="3.N", help="these versions alone")
    parser.add_argument("--workers", type=int, default=2, help="of pytest (2)")
    options, arguments = parser.parse_known_args(given)
    named = versions((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if unknown := [each for each in options.only or () if each not in named]:
        parser.error(f"{', '.join(unknown)} is not supported; these are: {', '.join(named)}")
    found = {each: find(each) for each in options.only or named}
    results = {
        version: run(version, python, options.workers, arguments)
        for version, python in found.items()
        if python is not None
    }
    missing = [version for version in found if version not in results]
    print()
    for version, result in results.items():
        print(f"Python {version:<6}{result}")
    is_failed = any("FAILED" in result for result in results.values())
    tested = ", ".join(results) or "none"
    print(f"tested on {tested}; not here, or without venv: {', '.join(missing) or 'none'}")
    return int(is_failed or not results or bool(options.only and missing))


if __name__ == "__main__":
    sys.exit(main())
