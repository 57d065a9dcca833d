"""The commands themselves: their help teaches, their examples parse, the shell completes them."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.cli import GROUPS, codes, main, parser
from tandembus.cli.completion import Node, nodes, script
from tandembus.errors import (
    ArgumentError,
    ConnectionLostError,
    EntityExistsError,
    EntityNotFoundError,
    ServerBusyError,
    UnauthorizedError,
)

ROOT = Path(__file__).resolve().parents[3]
OURS = (
    "serve", "namespace", "queue", "topic", "subscription", "rule", "send", "receive", "peek",
    "dead-letter", "deferred", "session", "purge", "export", "import", "backup", "store", "config",
    "doctor", "bench", "completion",
)  # fmt: skip
WITHOUT_JSON = {("serve",), ("completion",), ("store", "backup")}


def every(
    found: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield path, found
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from every(below, (*path, name))


WHOLE = parser()
COMMANDS = {path: found for path, found in every(WHOLE) if path and path[0] in OURS}
LEAVES = {path: found for path, found in COMMANDS.items() if found.get_default("run") is not None}


def examples() -> Iterator[str]:
    for found in COMMANDS.values():
        for line in (found.epilog or "").splitlines():
            if line.startswith("  "):
                yield line.strip()


@pytest.mark.req("C1")
@pytest.mark.parametrize("line", sorted(set(examples())))
def test_every_example_of_the_help_parses(line: str) -> None:
    line = re.split(r"\s{2,}", line)[0]  # what stands behind is said about it
    found = list(commands_of(line))
    assert found, line
    for words in found:
        WHOLE.parse_args(words)


def commands_of(line: str) -> Iterator[list[str]]:
    """The commands of ours in a line of the shell, in words."""
    inner = re.search(r"\$\((tandem [^)]*)\)", line)
    if inner is not None:
        line = inner[1]
    words = shlex.shlex(line, posix=True, punctuation_chars="|>;&")
    words.whitespace_split = True
    command: list[str] = []
    for word in [*words, "|"]:
        if word in ("|", ">", ";", "&", "&&"):
            if command[:1] == ["tandem"]:
                yield command[1:]
            command = []
        else:
            command.append(word)


@pytest.mark.req("C1")
def test_every_command_explains_itself() -> None:
    assert {path[0] for path in COMMANDS} == set(OURS)
    for path, found in LEAVES.items():
        assert "example" in (found.epilog or "") or path[0] in ("store",), path
        flags = {flag for action in found._actions for flag in action.option_strings}
        assert ("--json" in flags) != (path in WITHOUT_JSON), path
        for action in found._actions:
            if isinstance(action, argparse._StoreAction | argparse._StoreTrueAction):
                told = action.help or action.metavar or action.choices or action.dest in _PLAIN
                assert told, (path, action.dest)


_PLAIN = ("message_id", "correlation_id", "partition_key", "content_type", "to", "reply_to",
          "reason", "description", "entity")  # fmt: skip


def test_each_group_is_found_by_each_of_its_commands() -> None:
    """A command loads its own group and no other; so every name must lead to it."""
    names = [name for node in nodes(WHOLE) if not node.path for name in node.commands]
    for name in names:
        (only,) = (node for node in nodes(parser([name])) if not node.path)
        assert name in only.commands
        assert len(only.commands) < len(names), name
    assert set(GROUPS) <= set(names)


def test_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["qeue", "list"])
    assert end.value.code == codes.USAGE
    assert "queue" in capsys.readouterr().err, "it says which there are"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EntityNotFoundError("q"), codes.NOT_FOUND),
        (UnauthorizedError("no"), codes.UNAUTHORIZED),
        (ConnectionLostError("gone"), codes.UNREACHABLE),
        (ServerBusyError("busy."), codes.UNREACHABLE),
        (ArgumentError("wrong"), codes.USAGE),
        (EntityExistsError("q"), codes.PROBLEM),
        (OSError("disk"), codes.PROBLEM),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert codes.code_of(error) == code


def test_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for code, meaning in codes.MEANINGS.items():
        assert f"| {code} | {meaning} |" in page


# --- completion -----------------------------------------------------------------------------------


def completed(*words: str) -> set[str]:
    """What bash offers behind these words."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    line = " ".join(shlex.quote(word) for word in words)
    program = (
        f"{script('bash', WHOLE)}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n_tandem\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    result = subprocess.run(
        [bash, "--norc", "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert not result.stderr
    return set(result.stdout.split())


@pytest.mark.req("C1")
def test_bash_completes() -> None:
    assert completed("tandem", "que") == {"queue"}
    assert {"create", "list", "show", "update", "delete"} == completed("tandem", "queue", "")
    assert "--lock-duration" in completed("tandem", "queue", "create", "orders", "--lock")
    assert "--dead-letters" in completed("tandem", "peek", "q", "--")
    assert completed("tandem", "completion", "z") == {"zsh"}
    assert completed("tandem", "dead-letter", "res") == {"resubmit"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_other_shells_can_read_theirs(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    checked = subprocess.run(
        [program, "-n"], input=script(shell, WHOLE), capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_completion_has_every_command() -> None:
    found: list[Node] = list(nodes(WHOLE))
    text = script("fish", WHOLE)
    for node in found:
        for name in node.commands:
            assert f"-a '{name}'" in text


# --- what a start costs ---------------------------------------------------------------------------


def test_serve_needs_the_standard_library_alone() -> None:
    """Neither for its flags nor for the server itself."""
    code = (
        "import sys; before = set(sys.modules); import tandembus.cli; "
        "tandembus.cli.parser(['serve']); import tandembus.app; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert set(loaded) - set(sys.stdlib_module_names) <= {"tandembus"}
