"""The SDK and its tests, fetched from the package index into a cache: nothing of them is ours.

They get a Python environment of their own, because their tests go with one version of the SDK, and
because pytest's plugins would change our own tests too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
_REQUIREMENTS: Final = HERE / "requirements.txt"
_PATIENCE_S: Final = 600


class Unavailable(Exception):
    """The package index could not be reached, or does not have it."""


@dataclass(frozen=True, slots=True)
class Sdk:
    version: str
    python: Path
    tests: Path


def fetch(say: Callable[[str], None] = print) -> Sdk:
    """What is cached, or download it first; several processes may ask at once."""
    requirements = _REQUIREMENTS.read_text(encoding="utf-8")
    version = requirements.partition("azure-servicebus==")[2].split()[0]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
    folder = cache / f"sdk-suite-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    sdk = Sdk(
        version,
        python=folder / "bin" / "python",
        tests=folder / f"azure_servicebus-{version}" / "tests",
    )
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / "ready.txt"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text(encoding="utf-8") != requirements:
            say(f"fetching azure-servicebus {version} and its tests into {folder} …")
            venv.create(folder, with_pip=True, clear=False)
            _pip(sdk, "install", "--upgrade", "-r", str(_REQUIREMENTS))
            _unpack(sdk, folder)
            ready.write_text(requirements, encoding="utf-8")
    return sdk


def _unpack(sdk: Sdk, folder: Path) -> None:
    source = ("--no-deps", "--no-binary", "azure-servicebus", "--dest", str(folder))
    _pip(sdk, "download", *source, f"azure-servicebus=={sdk.version}")
    with tarfile.open(folder / f"azure_servicebus-{sdk.version}.tar.gz") as archive:
        for member in archive:
            path = (folder / member.name).resolve()
            content = archive.extractfile(member)
            if content is not None and path.is_relative_to(sdk.tests.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())


def _pip(sdk: Sdk, *arguments: str) -> None:
    command = [str(sdk.python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE_S)
    except subprocess.CalledProcessError as error:
        raise Unavailable(error.stderr.strip().rpartition("\n")[2]) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no answer within {_PATIENCE_S} s") from error
