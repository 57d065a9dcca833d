"""The documents tell the truth: their commands exist, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tandembus.cli import parser

CLI = parser()
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)(.*)$", re.MULTILINE)


def _targets() -> dict[str, str]:
    return dict(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def commands_of(text: str) -> list[list[str]]:
    """The commands of the shell blocks of a page, in words; output and comments left out."""
    commands = []
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ ").strip(), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words and words[0] in ("make", "tandem"):
                commands.append(words)
    return commands


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_exist(page: Path) -> None:
    """Each `make x` names a target, and each `tandem x y` a command of the CLI."""
    for words in commands_of(page.read_text(encoding="utf-8")):
        if words[0] == "make":
            wanted = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            assert set(wanted) <= set(_targets()), words
        else:
            assert _cli_knows(words[1:]), words


def _cli_knows(words: list[str]) -> bool:
    names = []
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        names.append(word)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        try:
            CLI.parse_args([*names, "--help"])
        except SystemExit as end:
            return not end.code
    return False


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of the repository has its file."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            assert (page.parent / link).exists(), link


def test_commands_are_found() -> None:
    """Prompts, variables, comments, continued lines; no output, no other languages."""
    text = (
        "```console\n$ make demo   # a tour\nmade it\nFAST=1 make model RUNS=2 \\\n  STEPS=3\n```\n"
        "```python\nmake nothing\n```\n```bash\ntandem store check data\n```\n"
    )
    assert commands_of(text) == [
        ["make", "demo"],
        ["make", "model", "RUNS=2", "STEPS=3"],
        ["tandem", "store", "check", "data"],
    ]


def test_every_target_is_explained() -> None:
    """`make` lists each target with a line about it."""
    for target, rest in _targets().items():
        assert "## " in rest, target
