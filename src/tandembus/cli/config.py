"""`tandem config show|check|diff`: what a server would be told, and what a file would change."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from tandembus.cli import codes
from tandembus.cli.connection import local, read_running
from tandembus.cli.output import add_json, counted, print_json, print_rows, say
from tandembus.cli.serve import add_options, loaded
from tandembus.config import OPTIONS, Change, NamespaceConfig, ServerConfig, changes
from tandembus.config.server import check_kept_here
from tandembus.config.values import show_url
from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.config import Loaded

_EXAMPLES: Final = (
    "examples:\n"
    "  tandem config show --config tandem.toml      every setting, and where it comes from\n"
    "  tandem config check --config Config.json     is it right?\n"
    "  tandem config diff --config tandem.toml      what would it change?\n"
    "  tandem config diff --config tandem.toml --delete"
)


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    group = commands.add_parser(
        "config",
        help="show and check a configuration, and what it would change",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = group.add_subparsers(required=True, metavar="COMMAND")
    for verb, text, run in (
        ("show", "every setting, and where it comes from", _show),
        ("check", "read the file, and say what is wrong with it", _check),
        ("diff", "what the file declares otherwise than it is; exit code 1 if anything", _diff),
    ):
        tool = tools.add_parser(
            verb, help=text, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_options(tool)
        if verb == "diff":
            tool.add_argument(
                "--delete", action="store_true", help="also what the file does not declare"
            )
        add_json(tool)
        tool.set_defaults(run=run)


def _show(options: argparse.Namespace) -> int:
    found = loaded(options, needs_folder=False)
    rows = [
        (option.key, _shown(found, option.field), found.sources[option.key]) for option in OPTIONS
    ]
    if options.json:
        print_json(
            {
                "file": None if found.file is None else str(found.file),
                "settings": {
                    key: {"value": value, "source": source} for key, value, source in rows
                },
                "namespaces": [_namespace(each) for each in found.config.served],
            }
        )
        return codes.WELL
    print_rows(options, ("setting", "value", "source"), rows)
    for each in found.config.namespaces:
        tree = _namespace(each)
        where = [*each.hosts, *map(str, each.ports)]
        told = f", told by {', '.join(where)}" if where else ""
        print(f"namespace {each.name}: {tree['folder']}, {_entities(len(each.entities))}{told}")
    return codes.WELL


def _shown(found: Loaded, field: str) -> object:
    value = getattr(found.config, field)
    if field == "folder" and found.sources["folder"] == "default":
        return None
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if field == "store" and value is not None:
        return show_url(value)
    return value if value is None or isinstance(value, bool | int) else str(value)


def _entities(count: int) -> str:
    return counted(count, "entity", "entities")


def _namespace(each: NamespaceConfig) -> dict[str, object]:
    return {
        "name": each.name,
        "folder": str(each.folder),
        "hosts": list(each.hosts),
        "ports": list(each.ports),
        "entities": [entity.path for entity in each.entities],
    }


def _check(options: argparse.Namespace) -> int:
    found = loaded(options, needs_folder=False)
    counts = {each.name: len(each.entities) for each in found.config.served}
    if options.json:
        print_json({"file": None if found.file is None else str(found.file), "entities": counts})
    else:
        what = "the configuration" if found.file is None else str(found.file)
        every = ", ".join(f"'{name}' with {_entities(count)}" for name, count in counts.items())
        print(f"{what} is right: {every}")
    return codes.WELL


def _diff(options: argparse.Namespace) -> int:
    return show_differences(loaded(options).config, deletes=options.delete, as_json=options.json)


def show_differences(config: ServerConfig, *, deletes: bool, as_json: bool = False) -> int:
    """What would be changed, and whether there is anything."""
    if config.store is not None and not all(read_running(each.folder) for each in config.served):
        raise ArgumentError(
            "--store: what is in a database is compared through the broker that serves it. None "
            f"serves it from {config.folder} now."
        )
    found = {each.name: differences(each, deletes=deletes) for each in config.served}
    if as_json:
        print_json({name: list(map(_change, each)) for name, each in found.items()})
    else:
        for name, each in found.items():
            if len(found) > 1:
                print(f"namespace {name}:")
            for change in each:
                print(change)
            if not each:
                say("nothing would be changed")
    return codes.PROBLEM if any(found.values()) else codes.WELL


def differences(config: NamespaceConfig, *, deletes: bool) -> list[Change]:
    """Of a broker that runs, as it says itself; else from its log."""
    if read_running(config.folder) is None:
        check_kept_here(config.folder)
        import asyncio

        from tandembus import app

        return asyncio.run(app.differences(config, deletes=deletes))
    from tandembus.cli.transfer import entities_of
    from tandembus.client import Client

    with Client(local(config.folder)) as client:
        return changes(entities_of(client), config.entities, deletes=deletes)


def _change(change: Change) -> dict[str, object]:
    return {
        "verb": change.verb,
        "what": str(change.what),
        "path": change.path,
        "settings": {name: {"is": old or None, "wanted": new} for name, old, new in change.details},
    }
