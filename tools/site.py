"""The documentation as a site: `make docs`. Gathers the pages, writes the reference from the code,
builds, and fails on any link that leads nowhere.

The diagrams are drawn in the browser by mermaid, which comes from npm where that can be reached;
without it they are shown as text. The site itself asks nothing of another host.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tandembus.cli import parser
from tandembus.config.entities import Kind, declare, names_of
from tandembus.config.server import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "docs"
MERMAID = "mermaid@11"
OUTSIDE = re.compile(r"\[([^]]*)\]\(\.\./(?!adr/)[^)]+\)")
"""Links out of docs/, to files of the repository that are no pages: their text stays."""
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages beside the README."""
NO_PAGE = re.compile(rf"\[([^]]*)\]\((?!https?:|[a-z-]+\.md|adr/|#|assets/|{'|'.join(TOP)})[^)]+\)")
"""The same in those."""


def commands(tree: argparse.ArgumentParser, depth: int = 2) -> Iterator[str]:
    """Every command with its help, as argparse has it."""
    for action in tree._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield f"{'#' * min(depth, 5)} {below.prog}\n"
                yield f"```text\n{below.format_help().strip()}\n```\n"
                yield from commands(below, depth + 1)


def settings() -> Iterator[str]:
    yield "# Settings\n\nWritten from the code.\n\n## Of the server\n"
    yield "| setting | what |\n|---|---|\n" + "".join(
        f"| `{each.key}` | {_cell(each.help)} |\n" for each in OPTIONS
    )
    for kind in Kind:
        plain = declare(kind, "x/Subscriptions/y" if kind is Kind.SUBSCRIPTION else "x", {})
        yield f"## Of a {kind.value}\n"
        yield "| setting | default |\n|---|---|\n" + "".join(
            f"| `{name}` | {_cell(plain.shown(name))} |\n" for name in names_of(kind)
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def gather() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    (PAGES / "assets").mkdir(exist_ok=True)
    icon = ROOT / "src" / "tandembus" / "admin" / "console" / "assets" / "icon.svg"
    shutil.copy(icon, PAGES / "assets")
    for name in ("README.md", *TOP):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        target = "index.md" if name == "README.md" else name
        (PAGES / target).write_text(NO_PAGE.sub(r"\1", text), encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(OUTSIDE.sub(r"\1", text), encoding="utf-8")
    (PAGES / "reference").mkdir()
    text = "# Commands\n\nWritten from the code: what `--help` says.\n\n" + "\n".join(
        commands(parser())
    )
    (PAGES / "reference" / "commands.md").write_text(text, encoding="utf-8")
    (PAGES / "reference" / "settings.md").write_text("\n".join(settings()), encoding="utf-8")


def mermaid() -> None:
    """From npm, kept in build/."""
    kept = BUILD / "mermaid.min.js"
    if not kept.exists():
        BUILD.mkdir(exist_ok=True)
        try:
            made = subprocess.run(
                ["npm", "pack", MERMAID, "--silent"],
                cwd=BUILD, capture_output=True, text=True, timeout=120, check=True,
            )  # fmt: skip
            with tarfile.open(BUILD / made.stdout.strip().splitlines()[-1]) as package:
                found = package.extractfile("package/dist/mermaid.min.js")
                assert found is not None
                kept.write_bytes(found.read())
        except (OSError, subprocess.SubprocessError, KeyError, IndexError) as error:
            print(f"without mermaid, diagrams stay text: {error}", file=sys.stderr)
            kept.write_text("", encoding="utf-8")
    shutil.copy(kept, PAGES / "assets")


def main() -> int:
    gather()
    mermaid()
    build = [sys.executable, "-m", "mkdocs", "build", "-q"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(build, cwd=ROOT, env=quiet, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
