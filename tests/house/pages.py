"""The blocks of the documents, and how they are run.

Every block of a page that is a program or a list of commands is run as it stands there, in the
order of the page, in one folder. What a reader does not need to see stands in comments before a
block, which no reader sees:

    <!-- file: tandem.toml -->          the block is that file, for what comes after it
    <!-- setup: tandem queue create q --> run before it
    <!-- by: tests/unit/x.py -->        that test runs it
    <!-- not run: why -->

A page that needs more than a broker has a test of its own (`ELSEWHERE`). The rule: nothing is left
out in silence. `tandem serve` in a block goes to the background, and what comes after it means that
broker; `make` and `pip install` are only looked at (`test_docs`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tandembus.config.emulator import read_json
from tandembus.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SHELL = ("console", "bash", "sh")
RUN = (*SHELL, "python")
SECONDS = 240


def _elsewhere() -> dict[str, str]:
    found = {"spark.md": "tests/spark/test_source.py"}
    for test in sorted((ROOT / "tests").rglob("test_*docs.py")):
        if test.parent.name != "house":
            for name in re.findall(r"[a-z-]+\.md", test.read_text(encoding="utf-8")):
                found[name] = test.relative_to(ROOT).as_posix()
    return found


ELSEWHERE = _elsewhere()
"""Pages that need more than a broker, and the test that runs each: a `test_docs.py` that names
it."""

_BLOCK = re.compile(r"((?:^<!--.*?-->\n)*)^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!--\s*(file|setup|by|not run):\s*(.*?)\s*-->", re.DOTALL)

PREAMBLE = """
set -eo pipefail
tandem() {
    if [ "$1" = serve ] && [[ " $* " != *" --dry-run "* ]]; then
        python "$PAGES_HELPER" serve "$@"
        export TANDEM_CONNECTION_STRING="$(cat .connection-string)"
    else
        command tandem "$@"
    fi
}
make() { :; }
pip() { :; }
python3() { [ "$1 $2" = "-m venv" ] || command python3 "$@"; }
source() { [ "${1##*/}" = activate ] || builtin source "$@"; }
xdg-open() { :; }
pidof() { tail -n 1 .served; }
complete() { :; }
"""


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    text: str
    line: int
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def commands(self) -> str:
        """Without prompts, and without what the commands print."""
        if not re.search(r"^\$ ", self.text, re.MULTILINE):
            return self.text
        lines = self.text.replace("\\\n", "\\\0").splitlines()
        wanted = [line[2:] for line in lines if line.startswith("$ ")]
        return "\n".join(wanted).replace("\0", "\n") + "\n"

    @property
    def is_run_here(self) -> bool:
        return self.kind in RUN and "by" not in self.notes and "not run" not in self.notes


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        notes: dict[str, list[str]] = {}
        for name, value in _NOTE.findall(match[1]):
            notes.setdefault(name, []).append(value)
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[2], match[3], line, notes))
    return found


def tests_named() -> list[str]:
    """The tests that run blocks of pages, beside those of this folder."""
    found = [block.notes.get("by", []) for page in PAGES for block in blocks_of(page)]
    return sorted({*ELSEWHERE.values(), *(test for some in found for test in some)})


class Run:
    """One page, from its first block to its last."""

    def __init__(self, page: Path, folder: Path, broker: LocalBroker) -> None:
        self.page = page
        self.folder = folder
        shims = folder / ".bin"
        shims.mkdir()
        for name, module in (("tandem", " -m tandembus.cli"), ("python", "")):
            shim = shims / name
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
            shim.chmod(0o755)
        (folder / "README").write_text("A file to send.\n")
        self.environment = {
            **{name: it for name, it in os.environ.items() if not name.startswith("TANDEM_")},
            "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "PAGES_HELPER": str(Path(__file__)),
            "TANDEM_CONNECTION_STRING": broker.connection_string,
        }

    def run(self) -> None:
        try:
            for block in blocks_of(self.page):
                for name in block.notes.get("file", []):
                    (self.folder / name).write_text(block.text, encoding="utf-8")
                for command in block.notes.get("setup", []):
                    self._shell(command, block)
                if block.is_run_here:
                    self._block(block)
                elif block.kind == "toml":
                    tomllib.loads(block.text)
                elif block.kind == "json":
                    read_json(block.text, self.page.name)
        finally:
            self._stop()

    def _block(self, block: Block) -> None:
        if block.kind in SHELL:
            self._shell(block.commands, block)
            return
        told = self.folder / ".connection-string"
        string = self.environment["TANDEM_CONNECTION_STRING"]
        if told.exists():
            string = told.read_text().strip()
        if "def test_" in block.text:
            (self.folder / "test_page.py").write_text(block.text)
            plugin = ("-p", "tandembus.testing.plugin")
            self._execute(
                [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                 *(() if _has_plugin() else plugin), "test_page.py"], block,
            )  # fmt: skip
            return
        # The README is pasted as it is; other pages begin where there is a connection string.
        given = "" if self.page.name == "README.md" else f"connection_string = {string!r}\n"
        program = given + block.text
        (self.folder / "program.py").write_text(program, encoding="utf-8")
        self._execute([sys.executable, "-W", "error", "program.py"], block)

    def _shell(self, commands: str, block: Block) -> None:
        told = self.folder / ".connection-string"
        if told.exists():
            self.environment["TANDEM_CONNECTION_STRING"] = told.read_text().strip()
        self._execute(["bash", "-c", PREAMBLE + commands], block)

    def _execute(self, command: list[str], block: Block) -> None:
        result = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert result.returncode == 0, (
            f"{self.page.name}, line {block.line}: exit code {result.returncode}\n{block.text}\n"
            f"{result.stdout}{result.stderr}"
        )

    def _stop(self) -> None:
        for line in (
            (self.folder / ".served").read_text().split()
            if (self.folder / ".served").exists()
            else ()
        ):
            os.kill(int(line), signal.SIGKILL)


def _has_plugin() -> bool:
    from importlib.metadata import entry_points

    return any(each.value == "tandembus.testing.plugin" for each in entry_points(group="pytest11"))


def serve(arguments: list[str]) -> int:
    """Start it, wait until it is ready, and leave it running. It takes free ports: the usual ones
    may be somebody's."""
    free = () if "--port" in arguments else ("--port", "0")
    with open(".serve-output", "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tandembus.cli", *arguments, *free],
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            start_new_session=True,
        )
    with open(".served", "a", encoding="utf-8") as pids:
        pids.write(f"{process.pid}\n")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Connection string"):
            Path(".connection-string").write_text(line.partition(": ")[2])
        if line.startswith("Ctrl-C"):
            return 0
    print(Path(".serve-output").read_text(), file=sys.stderr)
    return 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", *arguments]:
            sys.exit(serve(arguments))
        case ["tests"]:
            print(*tests_named())
