"""`tandem queue|topic|subscription|rule`: create, list, show, update, delete.

Every setting is a flag by its name in Azure's descriptions, and Tandem's own beside them; the list
is `config.entities`, so a setting that is added there is here by itself.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tandembus.cli import codes
from tandembus.cli.connection import add_connection, connect
from tandembus.cli.messages import property_of
from tandembus.cli.output import add_json, add_yes, confirm, counted, print_pairs, print_rows, say
from tandembus.config.entities import CORRELATION, SETTINGS, Declared, Kind, declare, names_of
from tandembus.config.values import show_duration
from tandembus.errors import ArgumentError, EntityExistsError
from tandembus.extensions import KEYS

if TYPE_CHECKING:
    from tandembus.client import Client, Entity, Rule

_COUNTS: Final = {
    "active": "ActiveMessageCount",
    "dead_letters": "DeadLetterMessageCount",
    "scheduled": "ScheduledMessageCount",
    "transfer": "TransferMessageCount",
    "transfer_dead_letters": "TransferDeadLetterMessageCount",
}
_HELP: Final = {
    "LockDuration": "how long a received message is locked: 5s to 5m (1m)",
    "MaxSizeInMegabytes": "1024 to 81920 (1024)",
    "RequiresDuplicateDetection": "drop a message whose id came before; cannot be changed later",
    "DuplicateDetectionHistoryTimeWindow": "for so long: 20s to 7d (10m)",
    "RequiresSession": "messages belong to sessions; cannot be changed later",
    "DefaultMessageTimeToLive": "how long a message lives at most (never)",
    "DeadLetteringOnMessageExpiration": "an expired message goes to the dead-letter queue",
    "DeadLetteringOnFilterEvaluationExceptions": "so does one at which a filter fails (true)",
    "MaxDeliveryCount": "deliveries before a message goes to the dead-letter queue (10)",
    "EnablePartitioning": "16 partitions; cannot be changed later",
    "AutoDeleteOnIdle": "delete the entity when nobody has used it for so long (never)",
    "ForwardTo": "where its messages go at once",
    "ForwardDeadLetteredMessagesTo": "where its dead letters go at once",
    "Status": "Active, Disabled, SendDisabled or ReceiveDisabled",
    "MaxMessageSizeInKilobytes": "of one message: 256; premium namespace: 1024 to 102400 (1024)",
    "EnableBatchedOperations": "kept and shown, without effect",
    "UserMetadata": "up to 1,024 characters of your own",
    "EnableExpress": "kept and shown, without effect",
    "SupportOrdering": "kept and shown, without effect",
    **KEYS,
}


def flag_of(name: str) -> str:
    """`LockDuration` → `--lock-duration`."""
    return "--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    for kind in Kind:
        _add_kind(commands, kind)
    _add_rules(commands)


_EXAMPLES: Final = {
    Kind.QUEUE: "examples:\n"
    "  tandem queue create orders --lock-duration 30s --max-delivery-count 5\n"
    "  tandem queue create jobs --priority-levels 3 --priority-aging-seconds 60\n"
    "  tandem queue list\n"
    "  tandem queue update orders --status SendDisabled\n"
    "  tandem queue show orders --json\n"
    "  tandem queue delete orders --yes",
    Kind.TOPIC: "examples:\n"
    "  tandem topic create events --default-message-time-to-live 7d\n"
    "  tandem topic update events --rate-limit 100/s\n"
    "  tandem topic delete events --yes",
    Kind.SUBSCRIPTION: "examples:\n"
    "  tandem subscription create events audit --requires-session\n"
    "  tandem subscription create events big --filter 'amount > 1000'\n"
    "  tandem subscription list events",
}


def _add_kind(commands: Any, kind: Kind) -> None:
    group = commands.add_parser(
        kind.value,
        help=f"create, list, show, update and delete {kind}s",
        epilog=_EXAMPLES[kind],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = group.add_subparsers(required=True, metavar="COMMAND")
    for verb, text in (
        ("create", f"make a {kind}"),
        ("list", f"all {kind}s, with what is in them"),
        ("show", f"one {kind}: its settings and counts"),
        ("update", "change settings; those that are not named stay"),
        ("delete", f"delete a {kind}, with its messages"),
    ):
        tool = tools.add_parser(
            verb,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=_EXAMPLES[kind],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if kind is Kind.SUBSCRIPTION:
            tool.add_argument("topic", metavar="TOPIC")
        if verb != "list":
            tool.add_argument("name", metavar="NAME")
        if verb in ("create", "update"):
            _add_settings(tool, kind, is_new=verb == "create")
        if verb == "create":
            tool.add_argument(
                "--if-missing", action="store_true", help="it is well if there is one already"
            )
            if kind is Kind.SUBSCRIPTION:
                tool.add_argument("--filter", metavar="SQL", help="its only rule takes these")
        if verb == "delete":
            add_yes(tool)
        add_json(tool)
        add_connection(tool)
        tool.set_defaults(run=_RUN[verb], kind=kind)


def _add_settings(parser: argparse.ArgumentParser, kind: Kind, *, is_new: bool) -> None:
    plain = parser.add_argument_group("settings")
    extended = parser.add_argument_group("Tandem's own settings, which Azure does not have")
    for name in names_of(kind):
        setting = SETTINGS[kind].get(name)
        group = plain if setting is not None else extended
        text = _HELP.get(name, "")
        if setting is not None and setting.is_boolean:
            group.add_argument(
                flag_of(name), dest=name, nargs="?", const="true", metavar="true|false", help=text
            )
        else:
            is_duration = setting is not None and setting.is_duration
            metavar = "TIME" if is_duration else "VALUE"
            more = "" if setting is not None or is_new else "; '' takes it away"
            group.add_argument(flag_of(name), dest=name, metavar=metavar, help=text + more)


def said_settings(options: argparse.Namespace, kind: Kind) -> dict[str, object]:
    return {
        name: value
        for name in names_of(kind)
        if (value := getattr(options, name, None)) is not None
    }


def wire_settings(kind: Kind, said: Mapping[str, object]) -> dict[str, Any]:
    """As the administration API takes them. Extensions are checked by the broker, which knows what
    they are changed from."""
    plain = {name: value for name, value in said.items() if name not in KEYS}
    declared = declare(kind, "x", plain)
    found: dict[str, Any] = {name: declared.wire(name) for name in declared.given}
    return {**found, **{name: said[name] or None for name in said if name in KEYS}}


# --- what each does -------------------------------------------------------------------------------


def _create(options: argparse.Namespace) -> int:
    kind: Kind = options.kind
    said = said_settings(options, kind)
    declare(kind, _path(options), said)  # all of it, before anything is asked
    settings = wire_settings(kind, said)
    with connect(options) as client:
        entities = client.entities
        try:
            match kind:
                case Kind.QUEUE:
                    made = entities.create_queue(options.name, **settings)
                case Kind.TOPIC:
                    made = entities.create_topic(options.name, **settings)
                case Kind.SUBSCRIPTION:
                    made = entities.create_subscription(options.topic, options.name, **settings)
                    if options.filter is not None:
                        _only_rule(client, options)
        except EntityExistsError:
            if not options.if_missing:
                raise
            say(f"the {kind} {_path(options)} is there already")
            return codes.WELL
    _show_entity(options, made) if options.json else say(f"created {kind} {_path(options)}")
    return codes.WELL


def _only_rule(client: Client, options: argparse.Namespace) -> None:
    from tandembus.client import Rule, subscription_path

    path = subscription_path(options.topic, options.name)
    client.add_rule(path, Rule("filter", options.filter))
    client.remove_rule(path, "$Default")


def _list(options: argparse.Namespace) -> int:
    kind: Kind = options.kind
    with connect(options) as client:
        entities = client.entities
        match kind:
            case Kind.QUEUE:
                found = entities.list_queues()
            case Kind.TOPIC:
                found = entities.list_topics()
            case Kind.SUBSCRIPTION:
                found = entities.list_subscriptions(options.topic)
    rows: list[tuple[object, ...]]
    if kind is Kind.TOPIC:
        columns: Sequence[str] = ("name", "status", "subscriptions", "scheduled", "size")
        rows = [
            (
                each.name,
                each.settings.get("Status"),
                int(each.settings.get("SubscriptionCount", 0)),
                each.counts.get("ScheduledMessageCount", 0),
                int(each.settings.get("SizeInBytes", 0)),
            )
            for each in found
        ]
    else:
        columns = ("name", "status", *_COUNTS)
        rows = [
            (
                each.name,
                each.settings.get("Status"),
                *(each.counts.get(name, 0) for name in _COUNTS.values()),
            )
            for each in found
        ]
    print_rows(options, columns, rows)
    return codes.WELL


def _show(options: argparse.Namespace) -> int:
    with connect(options) as client:
        found = get(client, options.kind, _path(options))
    _show_entity(options, found)
    return codes.WELL


def get(client: Client, kind: Kind, path: str) -> Entity:
    match kind:
        case Kind.QUEUE:
            return client.entities.get_queue(path)
        case Kind.TOPIC:
            return client.entities.get_topic(path)
        case Kind.SUBSCRIPTION:
            topic, _, name = path.rpartition("/Subscriptions/")
            return client.entities.get_subscription(topic, name)


def update(client: Client, kind: Kind, path: str, settings: Mapping[str, Any]) -> Entity:
    match kind:
        case Kind.QUEUE:
            return client.entities.update_queue(path, **settings)
        case Kind.TOPIC:
            return client.entities.update_topic(path, **settings)
        case Kind.SUBSCRIPTION:
            topic, _, name = path.rpartition("/Subscriptions/")
            return client.entities.update_subscription(topic, name, **settings)


def _show_entity(options: argparse.Namespace, found: Entity) -> None:
    """Durations as people write them; in JSON as Azure does."""
    shown: dict[str, object] = {"Name": found.name}
    kind: Kind = options.kind
    for name, value in found.settings.items():
        setting = SETTINGS[kind].get(name)
        is_duration = setting is not None and setting.is_duration
        if is_duration and setting is not None and not options.json:
            shown[name] = show_duration(setting.read(value, name))
        else:
            shown[name] = value
    print_pairs(options, {**shown, **found.counts})


def _update(options: argparse.Namespace) -> int:
    said = said_settings(options, options.kind)
    if not said:
        raise ArgumentError("Which setting shall be changed? `--help` has them all.")
    settings = wire_settings(options.kind, said)
    with connect(options) as client:
        made = update(client, options.kind, _path(options), settings)
    if options.json:
        _show_entity(options, made)
    else:
        say(f"updated {options.kind} {_path(options)}")
    return codes.WELL


def _delete(options: argparse.Namespace) -> int:
    kind: Kind = options.kind
    with connect(options) as client:
        found = get(client, kind, _path(options))
        count = sum(found.counts.values())
        messages = counted(count, "message")
        confirm(options, f"Delete the {kind} {_path(options)} and its {messages}?")
        entities = client.entities
        match kind:
            case Kind.QUEUE:
                entities.delete_queue(options.name)
            case Kind.TOPIC:
                entities.delete_topic(options.name)
            case Kind.SUBSCRIPTION:
                entities.delete_subscription(options.topic, options.name)
    say(f"deleted {kind} {_path(options)}")
    return codes.WELL


_RUN: Final = {
    "create": _create,
    "list": _list,
    "show": _show,
    "update": _update,
    "delete": _delete,
}


def _path(options: argparse.Namespace) -> str:
    if options.kind is Kind.SUBSCRIPTION:
        return f"{options.topic}/Subscriptions/{options.name}"
    return str(options.name)


def declared_from(kind: Kind, path: str, settings: Mapping[str, str]) -> Declared:
    """What a broker describes, in the form of a file."""
    known = {name: value for name, value in settings.items() if name in names_of(kind)}
    for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        if "://" in known.get(name, ""):
            known[name] = known[name].partition("://")[2].partition("/")[2]
    return declare(kind, path, known)


# --- rules ----------------------------------------------------------------------------------------


def _add_rules(commands: Any) -> None:
    examples = (
        "examples:\n"
        "  tandem rule list events audit\n"
        "  tandem rule create events audit big --filter 'amount > 1000' --action \"SET big = 1\"\n"
        "  tandem rule create events audit red --correlation subject=red -p tier=gold\n"
        "  tandem rule delete events audit '$Default' --yes"
    )
    group = commands.add_parser(
        "rule",
        help="create, list, show, update and delete the rules of a subscription",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = group.add_subparsers(required=True, metavar="COMMAND")
    for verb, text, run in (
        ("create", "make a rule", _put_rule),
        ("list", "the rules of a subscription", _list_rules),
        ("show", "one rule", _list_rules),
        ("update", "give a rule another filter and action", _put_rule),
        ("delete", "delete a rule", _delete_rule),
    ):
        tool = tools.add_parser(
            verb, help=text, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        tool.add_argument("topic", metavar="TOPIC")
        tool.add_argument("subscription", metavar="SUBSCRIPTION")
        if verb != "list":
            tool.add_argument("name", metavar="NAME")
        if verb in ("create", "update"):
            filters = tool.add_mutually_exclusive_group()
            filters.add_argument("--filter", metavar="SQL", help="takes what this says (1=1)")
            filters.add_argument(
                "--correlation",
                action="append",
                metavar="FIELD=TEXT",
                help=f"takes what is equal: {', '.join(CORRELATION)}",
            )
            tool.add_argument(
                "--property",
                "-p",
                action="append",
                default=[],
                metavar="NAME=TEXT",
                help="with --correlation: an application property; NAME:=JSON for a number",
            )
            tool.add_argument("--action", metavar="SQL", help="changes the copy: SET …; REMOVE …")
        if verb == "delete":
            add_yes(tool)
        add_json(tool)
        add_connection(tool)
        tool.set_defaults(run=run, verb=verb)


def _put_rule(options: argparse.Namespace) -> int:
    rule = _rule_of(options)
    with connect(options) as client:
        if options.verb == "create":
            client.entities.create_rule(options.topic, options.subscription, rule)
        else:
            client.entities.update_rule(options.topic, options.subscription, rule)
    say(f"{options.verb}d rule {options.name}")
    return codes.WELL


def _rule_of(options: argparse.Namespace) -> Rule:
    from tandembus.client import Correlation, Rule
    from tandembus.config.entities import correlation

    if options.correlation is None and not options.property:
        return Rule(options.name, options.filter or "1=1", options.action)
    fields: dict[str, Any] = dict(property_of(said) for said in options.correlation or [])
    properties = dict(property_of(said) for said in options.property)
    if properties:
        fields["properties"] = properties
    wanted: dict[str, Any] = correlation(fields, "--correlation")
    if "label" in wanted:
        wanted["subject"] = wanted.pop("label")
    return Rule(options.name, Correlation(**wanted), options.action)


def _list_rules(options: argparse.Namespace) -> int:
    from tandembus.client import subscription_path
    from tandembus.errors import EntityNotFoundError

    path = subscription_path(options.topic, options.subscription)
    with connect(options) as client:
        rules = client.list_rules(path)
    if options.verb == "show":
        rules = [rule for rule in rules if rule.name.lower() == options.name.lower()]
        if not rules:
            raise EntityNotFoundError(f"{path}/Rules/{options.name}")
    print_rows(
        options,
        ("name", "filter", "action"),
        [(rule.name, shown_filter(rule), rule.action) for rule in rules],
    )
    return codes.WELL


def shown_filter(rule: Rule) -> str:
    if isinstance(rule.filter, str):
        return rule.filter
    names = [name for name in rule.filter.__dataclass_fields__ if name != "properties"]
    fields = {name: getattr(rule.filter, name) for name in names}
    pairs = [*fields.items(), *rule.filter.properties.items()]
    return " AND ".join(f"{name} = {value!r}" for name, value in pairs if value is not None)


def _delete_rule(options: argparse.Namespace) -> int:
    confirm(options, f"Delete the rule {options.name} of {options.topic}/{options.subscription}?")
    with connect(options) as client:
        client.entities.delete_rule(options.topic, options.subscription, options.name)
    say(f"deleted rule {options.name}")
    return codes.WELL
