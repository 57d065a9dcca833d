"""A PostgreSQL of the tests' own: made at the first use, gone with the process.

It listens on a socket in its folder only, syncs as a real one does, and runs as somebody else where
the tests run as root, because it refuses root.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

USER = "tandem"
_BINARIES = "/usr/lib/postgresql"
_PATIENCE_S = 30
_numbers = count(1)


def program(name: str) -> str | None:
    """One of PostgreSQL's; the newest, if there are several."""
    found = sorted(Path(_BINARIES).glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else shutil.which(name)


needs_postgresql = pytest.mark.skipif(
    program("postgres") is None or (os.getuid() == 0 and shutil.which("setpriv") is None),
    reason="PostgreSQL is not installed (on Debian: apt install postgresql)",
)


class Cluster:
    """A server. `stop` and `start` it as an outage would."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tandem-pg-", dir="/tmp"))
        self._as_user: list[str] = []
        if os.getuid() == 0:
            name = _unprivileged()
            shutil.chown(self.folder, name)
            # It ends with this process, also when that is killed.
            self._as_user = ["setpriv", "--reuid", name, "--regid", name, "--clear-groups"]
            self._as_user += ["--pdeathsig", "QUIT"]
        initdb = program("initdb")
        assert initdb is not None
        subprocess.run(
            [*self._as_user, initdb, "-D", str(self._data), "-U", USER, "-A", "trust",
             "--no-sync", "-E", "UTF8", "--locale=C"],
            cwd=self.folder, check=True, capture_output=True,
        )  # fmt: skip
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@/{database}?host={quote(str(self.folder), safe='')}"

    def start(self) -> None:
        postgres = program("postgres")
        assert postgres is not None
        self._output = open(self.folder / "output", "ab")  # noqa: SIM115 - of the process
        self.process = subprocess.Popen(
            [*self._as_user, postgres, "-D", str(self._data), "-k", str(self.folder),
             "-c", "listen_addresses=", "-c", "fsync=on"],
            cwd=self.folder, stdout=self._output, stderr=self._output,
        )  # fmt: skip
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "output").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """As a crash of it would: the next start recovers."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(_PATIENCE_S)
        self._output.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _unprivileged() -> str:
    """Debian's user for it, or nobody."""
    import pwd

    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@cache
def cluster() -> Cluster:
    """The one of this process."""
    made = Cluster()
    atexit.register(made.close)
    return made


@cache
def database() -> str:
    """The URL of one for all who need a namespace only: `new_namespace`."""
    return new_database()


def new_namespace() -> str:
    return f"namespace-{next(_numbers)}"


def new_database(made: Cluster | None = None) -> str:
    """The URL of an empty one."""
    made = made or cluster()
    name = f"test{next(_numbers)}"
    with psycopg.connect(made.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return made.url(name)
