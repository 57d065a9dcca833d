"""`tandem completion bash|zsh|fish`: a script for the shell, made from the parser itself.

The script holds every command and flag as a table, so that completing costs no start of Python.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tandembus.cli import codes

SHELLS: Final = ("bash", "zsh", "fish")


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    parser = commands.add_parser(
        "completion",
        help="a script with which the shell completes commands and flags",
        epilog="examples:\n"
        '  eval "$(tandem completion bash)"                 in ~/.bashrc\n'
        '  eval "$(tandem completion zsh)"                  in ~/.zshrc\n'
        "  tandem completion fish > ~/.config/fish/completions/tandem.fish",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tandembus.cli import parser

    print(script(options.shell, parser()))
    return codes.WELL


@dataclass(frozen=True, slots=True)
class Node:
    """A command, and what can follow it."""

    path: tuple[str, ...]
    commands: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    """With the help of each."""


def nodes(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Node]:
    found = Node(path)
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, each in action.choices.items():
                found.commands[name] = told.get(name, "")
                below[name] = each
        elif action.help is not argparse.SUPPRESS:
            for flag in action.option_strings:
                if flag.startswith("--"):
                    found.flags[flag] = action.help or ""
            if action.choices is not None and not action.option_strings:
                found.commands.update(dict.fromkeys(map(str, action.choices), ""))
    yield found
    for name, each in below.items():
        yield from nodes(each, (*path, name))


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    found = list(nodes(parser))
    match shell:
        case "bash":
            return _bash(found)
        case "zsh":
            # zsh reads bash's functions, once it is told to.
            return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(found)
        case _:
            return _fish(found)


def _bash(found: list[Node]) -> str:
    lines = [
        "_tandem() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" path="" word words=""',
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '        case "$word" in -*) ;; *) case " $(_tandem_words "$path") " in',
        '            *" $word "*) path="$path $word" ;; esac ;; esac',
        "    done",
        '    words="$(_tandem_words "$path")"',
        '    case "$current" in -*) words="$(_tandem_flags "$path")" ;; esac',
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        '    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))',
        "}",
    ]
    for name, what in (("_tandem_words", "commands"), ("_tandem_flags", "flags")):
        lines.append(f'{name}() {{ case "$1" in')
        for node in found:
            key = "".join(f" {word}" for word in node.path)
            lines.append(f'    "{key}") echo "{" ".join(getattr(node, what))}" ;;')
        lines.append("esac; }")
    lines.append("complete -F _tandem tandem")
    return "\n".join(lines)


def _fish(found: list[Node]) -> str:
    lines = ["complete -c tandem -f"]
    for node in found:
        if node.path:
            seen = " ".join(f"__fish_seen_subcommand_from {word};" for word in node.path)
            parts = [f"{each.strip()}" for each in seen.split(";") if each.strip()]
            condition = "; and ".join(parts)
            if node.commands:
                condition += f"; and not __fish_seen_subcommand_from {' '.join(node.commands)}"
        else:
            condition = "__fish_use_subcommand"
        for name, text in node.commands.items():
            lines.append(f"complete -c tandem -n '{condition}' -a '{name}' -d '{_safe(text)}'")
        for flag, text in node.flags.items():
            lines.append(f"complete -c tandem -n '{condition}' -l '{flag[2:]}' -d '{_safe(text)}'")
    return "\n".join(lines)


def _safe(text: str) -> str:
    """One short line, without what would end a quoted text."""
    return re.sub(r"[^\w .,:;()/=<>|+-]", "", text.replace("\n", " "))[:70]
