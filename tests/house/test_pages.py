"""Every command and program of the README and of docs/ is run as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandembus.testing import LocalBroker
from tests.house.pages import ELSEWHERE, PAGES, ROOT, RUN, Block, Run, blocks_of


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


SHORT = ("README.md", "client.md", "testing.md", "from-the-emulator.md")
"""The others are run by `make test-docs`: each of their many commands is a process."""
WITH_BLOCKS = [
    pytest.param(page, marks=() if page.name in SHORT else pytest.mark.long, id=_name(page))
    for page in PAGES
    if page.name not in ELSEWHERE and any(block.is_run_here for block in blocks_of(page))
]


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_page(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("azure.servicebus")
    with LocalBroker.start() as broker:
        Run(page, tmp_path, broker).run()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_nothing_is_left_out_in_silence(page: Path) -> None:
    """A block that is not run here names the test that runs it, which names the page; or says why
    it is not run."""
    if page.name in ELSEWHERE:
        assert page.name in (ROOT / ELSEWHERE[page.name]).read_text(encoding="utf-8")
    for block in blocks_of(page):
        if block.kind not in RUN:
            continue
        for test in block.notes.get("by", []):
            assert page.name in (ROOT / test).read_text(encoding="utf-8"), (test, block.line)
        for why in block.notes.get("not run", []):
            assert len(why) > 5, block.line


def test_blocks_are_found(tmp_path: Path) -> None:
    """With their notes, their kind and their line; prompts and output are told apart."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n<!-- setup: tandem queue create q -->\n<!-- file: a.toml -->\n```toml\na = 1\n"
        "```\n\n<!-- not run: it needs Azure -->\n```console\n$ tandem a \\\n  b\nprinted\n$ c\n"
        "```\n\n```python\nx = 1\n```\n"
    )
    toml, console, python = blocks_of(page)
    assert toml == Block(
        "toml", "a = 1\n", 5, {"setup": ["tandem queue create q"], "file": ["a.toml"]}
    )
    assert console.commands == "tandem a \\\n  b\nc\n"
    assert not console.is_run_here
    assert python.is_run_here


def test_a_page_that_lies_is_found(tmp_path: Path) -> None:
    """The canary: a command that fails, a program that fails."""
    for number, block in enumerate(
        ("```bash\nfalse\n```\n", "```python\nraise SystemExit(3)\n```\n")
    ):
        page = tmp_path / f"page{number}.md"
        page.write_text(block)
        folder = tmp_path / str(number)
        folder.mkdir()
        with LocalBroker.start() as broker, pytest.raises(AssertionError, match="exit code"):
            Run(page, folder, broker).run()
