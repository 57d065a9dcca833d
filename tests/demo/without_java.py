"""A machine without Java, made from one that may have it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

JAVA = ("JAVA_HOME", "JDK_HOME", "JRE_HOME", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS")


def environment_without_java(folder: Path) -> dict[str, str]:
    """The environment with a PATH that has every program but Java, and a home of its own.

    Programs are linked into `folder`: Java is often in /usr/bin, with all that Spark's scripts
    need.
    """
    programs = folder / "programs"
    programs.mkdir(parents=True)
    for place in os.environ["PATH"].split(os.pathsep):
        if not os.path.isdir(place):
            continue
        for name in os.listdir(place):
            link = programs / name
            if not name.startswith("java") and not os.path.lexists(link):
                link.symlink_to(Path(place, name))
    home = folder / "a home"
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in JAVA and not name.startswith(("TANDEM_", "XDG_"))
    }
    # First the environment that the tests run in, as if it were activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{programs}"
    return {**kept, "PATH": path, "HOME": str(home)}
