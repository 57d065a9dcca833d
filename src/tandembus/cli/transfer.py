"""`tandem export` and `tandem import`: the entities of a namespace as a file.

The form is the `Config.json` of Microsoft's emulator, with all settings that an entity has: what
is exported from Azure can be served by `tandem serve --config`, and the other way round. Keys are
not in it, and messages are not either.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandembus.cli import codes
from tandembus.cli.connection import add_connection, connect
from tandembus.cli.entities import declared_from, update, wire_settings
from tandembus.cli.output import add_json, add_yes, confirm, counted, print_json, progress, say
from tandembus.config import Change, Declared, DeclaredRule, Kind, changes
from tandembus.config.entities import FIXED, has_default_rule, names_of
from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.client import Client, Rule


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    export = commands.add_parser(
        "export",
        help="write the entities of a namespace as a file",
        description="Writes queues, topics, subscriptions and rules with all their settings, in "
        "the form of the emulator's Config.json. No keys, and no messages.",
        epilog="examples:\n"
        "  tandem export > entities.json\n"
        "  tandem export --output entities.json --name shop\n"
        '  tandem export --connection-string "$AZURE" | tandem import - --folder data',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("--output", "-o", type=Path, metavar="FILE", help="not to the terminal")
    export.add_argument("--name", help="of the namespace in the file (that of the host)")
    add_json(export)
    add_connection(export)
    export.set_defaults(run=_export)

    imports = commands.add_parser(
        "import",
        help="make the entities that a file has",
        description="Makes what is not there. What is there with other settings is changed with "
        "--apply only, and what the file does not have is deleted with --delete only.",
        epilog="examples:\n"
        "  tandem import entities.json --dry-run\n"
        "  tandem import entities.json\n"
        "  tandem import Config.json --apply --delete --yes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    imports.add_argument("file", metavar="FILE", help="JSON or TOML; '-' is the standard input")
    imports.add_argument("--from", dest="source", metavar="NAME", help="which namespace of it")
    imports.add_argument("--apply", action="store_true", help="change settings, too")
    imports.add_argument(
        "--delete", action="store_true", help="with --apply: delete what the file does not have"
    )
    imports.add_argument("--dry-run", action="store_true", help="say what would be done")
    add_yes(imports)
    add_json(imports)
    add_connection(imports)
    imports.set_defaults(run=_import)


# --- out ------------------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> int:
    with connect(options) as client:
        found = entities_of(client)
        name = options.name or client.target.host.partition(".")[0]
    tree = as_tree(name, found)
    if options.output is None:
        print_json(tree)
    else:
        text = json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
        options.output.write_text(text, encoding="utf-8")
        say(f"{counted(len(found), 'entity', 'entities')} written to {options.output}")
    return codes.WELL


def entities_of(client: Client) -> list[Declared]:
    """What a broker has, over the wire."""
    entities = client.entities
    found = [declared_from(Kind.QUEUE, each.name, each.settings) for each in entities.list_queues()]
    topics = entities.list_topics()
    with progress("reading topics", len(topics)) as step:
        for topic in topics:
            found.append(declared_from(Kind.TOPIC, topic.name, topic.settings))
            for each in entities.list_subscriptions(topic.name):
                path = f"{topic.name}/Subscriptions/{each.name}"
                one = declared_from(Kind.SUBSCRIPTION, path, each.settings)
                rules = tuple(map(_declared_rule, client.list_rules(path)))
                found.append(replace(one, rules=rules))
            step(1)
    return found


def _declared_rule(rule: Rule) -> DeclaredRule:
    if isinstance(rule.filter, str):
        return DeclaredRule(rule.name, rule.filter, rule.action)
    named: dict[str, object] = {
        "label" if name == "subject" else name: value
        for name in rule.filter.__dataclass_fields__
        if name != "properties" and (value := getattr(rule.filter, name)) is not None
    }
    if rule.filter.properties:
        named["properties"] = dict(rule.filter.properties)
    return DeclaredRule(rule.name, named, rule.action)


def as_tree(name: str, found: Sequence[Declared]) -> dict[str, Any]:
    """As the emulator's file has it."""
    topics = {
        each.path: {"Name": each.path, "Properties": _properties(each), "Subscriptions": []}
        for each in found
        if each.kind is Kind.TOPIC
    }
    for each in found:
        if each.kind is Kind.SUBSCRIPTION:
            topic, _, own = each.path.rpartition("/Subscriptions/")
            entry: dict[str, Any] = {"Name": own, "Properties": _properties(each)}
            if each.rules is not None:
                entry["Rules"] = [_rule_tree(rule) for rule in each.rules]
            topics[topic]["Subscriptions"].append(entry)  # type: ignore[attr-defined]
    queues = [
        {"Name": each.path, "Properties": _properties(each)}
        for each in found
        if each.kind is Kind.QUEUE
    ]
    namespace = {"Name": name, "Queues": queues, "Topics": list(topics.values())}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}


def _properties(entity: Declared) -> dict[str, object]:
    tree: dict[str, object] = {}
    for name in names_of(entity.kind):
        value = entity.wire(name)
        if value is not None and name in entity.given:
            tree[name] = value
    return tree


def _rule_tree(rule: DeclaredRule) -> dict[str, Any]:
    properties: dict[str, Any]
    if isinstance(rule.filter, str):
        properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": rule.filter}}
    else:
        properties = {
            "FilterType": "Correlation",
            "CorrelationFilter": {_azure(name): value for name, value in rule.filter.items()},
        }
    if rule.action is not None:
        properties["Action"] = {"SqlExpression": rule.action}
    return {"Name": rule.name, "Properties": properties}


def _azure(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


# --- in -------------------------------------------------------------------------------------------


def _import(options: argparse.Namespace) -> int:
    if options.delete and not options.apply:
        raise ArgumentError("--delete is given with --apply only.")
    wanted = _wanted(options)
    with connect(options) as client:
        found = changes(entities_of(client), wanted, deletes=options.delete)
        todo = [each for each in found if each.is_safe or options.apply]
        rest = [each for each in found if each not in todo]
        if not options.json:
            for change in todo:
                print(change)
        if not options.dry_run:
            deleted = [each for each in todo if each.verb == "delete"]
            if deleted:
                what = counted(len(deleted), "entity or rule", "entities and rules")
                confirm(options, f"Delete {what}?")
            with progress("importing", len(todo)) as step:
                carry_out(client, todo, step)
    if options.json:
        print_json({"changed": [str(each) for each in todo], "left": [str(each) for each in rest]})
    elif rest:
        say("--apply would also change:")
        for change in rest:
            say(str(change))
    if not options.json:
        were = "was" if len(todo) == 1 else "were"
        verb = "would be" if options.dry_run else were
        say(f"{counted(len(todo), 'change')} {verb} made")
    return codes.WELL


def _wanted(options: argparse.Namespace) -> Sequence[Declared]:
    """What the file declares for one namespace."""
    from tandembus.config import emulator
    from tandembus.config.entities import read_entities
    from tandembus.config.reading import read_file

    if options.file == "-":
        namespaces: dict[str, Any] = {**emulator.read_namespaces(sys.stdin.read(), "-")}
    else:
        namespaces = dict(read_file(Path(options.file))[1])
    names = list(namespaces)
    name = options.source or (names[0] if len(names) == 1 else None)
    if name not in namespaces:
        raise ArgumentError(f"{options.file}: give --from, one of {', '.join(names) or 'none'}.")
    tree = {key: value for key, value in namespaces[name].items() if key in ("queues", "topics")}
    return read_entities(tree, name)


def carry_out(client: Client, todo: Iterable[Change], step: Any) -> None:
    """Over the wire, one by one; the first that is refused ends it."""
    later: list[Change] = []
    known = {each.path.lower() for each in entities_of(client)}
    for change in todo:
        if change.rule is not None:
            _change_rule(client, change)
        elif change.verb == "delete":
            _delete(client, change)
        elif change.verb == "cannot":
            names = ", ".join(name for name, _, _ in change.details if name in FIXED)
            raise ArgumentError(f"{change.path}: {names} cannot be changed: delete it first.")
        else:
            assert change.entity is not None
            settings = _wire(change.entity)
            if change.verb == "update":
                update(client, change.entity.kind, change.path, settings)
            else:
                if _without_missing(settings, known):
                    later.append(change)
                _create(client, change.entity, settings)
                known.add(change.path.lower())
        step(1)
    for change in later:  # forwarded to what was not there yet
        assert change.entity is not None
        update(client, change.entity.kind, change.path, _wire(change.entity))


def _wire(entity: Declared) -> dict[str, Any]:
    return wire_settings(entity.kind, {name: entity.wire(name) for name in entity.given})


def _without_missing(settings: dict[str, Any], known: set[str]) -> bool:
    is_missing = False
    for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        target = settings.get(name)
        if target is not None and target.lower() not in known:
            del settings[name]
            is_missing = True
    return is_missing


def _create(client: Client, entity: Declared, settings: dict[str, Any]) -> None:
    match entity.kind:
        case Kind.QUEUE:
            client.entities.create_queue(entity.path, **settings)
        case Kind.TOPIC:
            client.entities.create_topic(entity.path, **settings)
        case Kind.SUBSCRIPTION:
            topic, _, name = entity.path.rpartition("/Subscriptions/")
            client.entities.create_subscription(topic, name, **settings)
            if not has_default_rule(entity):
                client.entities.delete_rule(topic, name, "$Default")


def _delete(client: Client, change: Change) -> None:
    match change.what:
        case Kind.QUEUE:
            client.entities.delete_queue(change.path)
        case Kind.TOPIC:
            client.entities.delete_topic(change.path)
        case _:
            topic, _, name = change.path.rpartition("/Subscriptions/")
            client.entities.delete_subscription(topic, name)


def _change_rule(client: Client, change: Change) -> None:
    from tandembus.errors import EntityExistsError

    assert change.entity is not None
    assert change.rule is not None
    topic, _, name = change.entity.path.rpartition("/Subscriptions/")
    match change.verb:
        case "create":
            try:
                client.entities.create_rule(topic, name, client_rule(change.rule))
            except EntityExistsError:  # the default rule, which its subscription came with
                client.entities.update_rule(topic, name, client_rule(change.rule))
        case "update":
            client.entities.update_rule(topic, name, client_rule(change.rule))
        case _:
            client.entities.delete_rule(topic, name, change.rule.name)


def client_rule(declared: DeclaredRule) -> Rule:
    from tandembus.client import Correlation, Rule

    if isinstance(declared.filter, str):
        return Rule(declared.name, declared.filter, declared.action)
    fields: dict[str, Any] = dict(declared.filter)
    if "label" in fields:
        fields["subject"] = fields.pop("label")
    return Rule(declared.name, Correlation(**fields), declared.action)
