"""`tandem namespace`: which there are, what is in one, and its connection string."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from tandembus.cli import codes
from tandembus.cli.connection import (
    add_connection,
    connect,
    find_namespace,
    local,
    read_policies,
    read_running,
)
from tandembus.cli.output import add_json, print_json, print_pairs, print_rows
from tandembus.config import load
from tandembus.config.server import POLICIES

_EXAMPLES: Final = (
    "examples:\n"
    "  tandem namespace list data\n"
    "  tandem namespace show --folder data\n"
    "  tandem namespace policies data\n"
    '  export TANDEM_CONNECTION_STRING="$(tandem namespace connection-string data)"'
)


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    group = commands.add_parser(
        "namespace",
        help="namespaces: which there are, what is in one, its connection string",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = group.add_subparsers(required=True, metavar="COMMAND")
    show = _tool(tools, "show", "what is in a namespace: entities and messages", _show)
    add_connection(show)
    for verb, text, run in (
        ("list", "the namespaces of a data folder, and which of them are served", _list),
        ("policies", "the keys' names and rights; not the keys", _policies),
        (
            "connection-string",
            "print the connection string, with its key, of a namespace that is served here",
            _connection_string,
        ),
    ):
        tool = _tool(tools, verb, text, run)
        tool.add_argument("folder", type=Path, nargs="?", help="the data folder (TANDEM_FOLDER)")
        tool.add_argument("--config", type=Path, metavar="FILE", help="or the file that names it")
        if verb != "list":
            tool.add_argument("--namespace", metavar="NAME", help="which one, if there are several")
        if verb == "connection-string":
            tool.add_argument("--policy", metavar="NAME", help="with this key (the root key)")
            tool.add_argument("--entity", metavar="PATH", help="for this entity: EntityPath=PATH")
            tool.add_argument(
                "--tls", action="store_true", help="over TLS, so without UseDevelopmentEmulator"
            )


def _tool(tools: Any, verb: str, text: str, run: Any) -> argparse.ArgumentParser:
    tool: argparse.ArgumentParser = tools.add_parser(
        verb, help=text, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_json(tool)
    tool.set_defaults(run=run)
    return tool


def _folder(options: argparse.Namespace) -> Path:
    flags = {} if options.folder is None else {"folder": options.folder}
    return load(flags, os.environ, options.config).config.folder


def _list(options: argparse.Namespace) -> int:
    flags = {} if options.folder is None else {"folder": options.folder}
    config = load(flags, os.environ, options.config).config
    folders = {each.folder: each.name for each in config.served}
    for file in sorted(config.folder.glob(f"*/{POLICIES}")):
        folders.setdefault(file.parent, file.parent.name)
    rows: list[tuple[object, ...]] = []
    for folder, name in folders.items():
        running = read_running(folder)
        if not folder.is_dir() or not (folder / POLICIES).exists():
            state = "not made yet"
        else:
            state = "stopped" if running is None else "served"
        where = None if running is None else f"{running['host']}:{running['port']}"
        if config.namespaces or (folder / POLICIES).exists():
            rows.append((name, state, where, str(folder)))
    print_rows(options, ("name", "state", "address", "folder"), rows)
    return codes.WELL


def _show(options: argparse.Namespace) -> int:
    with connect(options) as client:
        entities = client.entities
        queues, topics = entities.list_queues(), entities.list_topics()
        below = [each for topic in topics for each in entities.list_subscriptions(topic.name)]
        host, port = client.target.host, client.target.amqp_port
    with_messages = [*queues, *below]

    def total(name: str) -> int:
        return sum(each.counts.get(name, 0) for each in with_messages)

    print_pairs(
        options,
        {
            "address": f"{host}:{port}",
            "queues": len(queues),
            "topics": len(topics),
            "subscriptions": len(below),
            "active_messages": total("ActiveMessageCount"),
            "dead_letters": total("DeadLetterMessageCount"),
            "transfer_dead_letters": sum(
                each.counts.get("TransferDeadLetterMessageCount", 0)
                for each in [*with_messages, *topics]
            ),
            "scheduled_messages": total("ScheduledMessageCount"),
            "bytes": sum(int(each.settings.get("SizeInBytes", 0)) for each in [*queues, *topics]),
        },
    )
    return codes.WELL


def _policies(options: argparse.Namespace) -> int:
    found = read_policies(find_namespace(_folder(options), options.namespace))
    rows = [(each["name"], ", ".join(each["rights"])) for each in found]
    print_rows(options, ("name", "rights"), rows)
    return codes.WELL


def _connection_string(options: argparse.Namespace) -> int:
    folder = find_namespace(_folder(options), options.namespace)
    text = local(folder, options.policy)
    if options.tls:
        text = text.replace("UseDevelopmentEmulator=true;", "")
    if options.entity:
        text += f"EntityPath={options.entity};"
    print_json({"connection_string": text}) if options.json else print(text)
    return codes.WELL
