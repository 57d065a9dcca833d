"""The file of Microsoft's emulator, `Config.json`: read as it is, comments and all.

It becomes the tree that `entities` reads from every file. What is beyond the emulator is taken too:
several namespaces of any name, all settings that an entity has, and for a namespace `Hosts`,
`Ports` and `Folder`. `tandem export` writes this form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from tandembus.config.values import find_name, table, text, wrong
from tandembus.errors import ArgumentError

_TOKENS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|(//[^\n]*|/\*.*?\*/)', re.DOTALL)
_TRAILING: Final = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])', re.DOTALL)
_FILTERS: Final = ("Correlation", "Sql", "True", "False")


def looks_like_json(written: str) -> bool:
    return without_comments(written).lstrip("\ufeff \t\r\n").startswith("{")


def without_comments(written: str) -> str:
    """JSON as its readers want it: no comments, no comma before a closing bracket."""
    written = _TOKENS.sub(lambda found: found[1] or " ", written)
    return _TRAILING.sub(lambda found: found[1] or found[2], written)


def read_json(written: str, where: str) -> Mapping[str, object]:
    plain = without_comments(written).lstrip("\ufeff")
    try:
        tree = json.loads(plain)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{where}, line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ArgumentError(f"{where} is nested too deep") from None
    return table(tree, where)


def read_namespaces(written: str, where: str) -> dict[str, dict[str, object]]:
    """Namespaces by name, each with `queues` and `topics` as `entities` reads them."""
    tree = _known(read_json(written, where), ("UserConfig",), where)
    config = _known(
        table(tree.get("UserConfig", {}), f"{where}: UserConfig"),
        ("Namespaces", "Logging"),  # where the emulator logs to is its own affair
        f"{where}: UserConfig",
    )
    found: dict[str, dict[str, object]] = {}
    for place, said in _every(config.get("Namespaces", []), f"{where}: Namespaces"):
        namespace = _known(said, ("Name", "Queues", "Topics", "Hosts", "Ports", "Folder"), place)
        name = _name(namespace, place)
        if name in found:
            raise ArgumentError(f"{place}: there are two namespaces '{name}'")
        found[name] = {
            **{
                key.lower(): namespace[key]
                for key in ("Hosts", "Ports", "Folder")
                if key in namespace
            },
            "queues": _queues(namespace.get("Queues", []), f"{place}.Queues"),
            "topics": _topics(namespace.get("Topics", []), f"{place}.Topics"),
        }
    if not found:
        raise ArgumentError(f"{where}: UserConfig.Namespaces names no namespace")
    return found


def _queues(listed: object, where: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for place, said in _every(listed, where):
        queue = _known(said, ("Name", "Properties"), place)
        _put(found, _name(queue, place), _properties(queue, place), place)
    return found


def _topics(listed: object, where: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for place, said in _every(listed, where):
        topic = _known(said, ("Name", "Properties", "Subscriptions"), place)
        below: dict[str, object] = {}
        for inner, each in _every(topic.get("Subscriptions", []), f"{place}.Subscriptions"):
            subscription = _known(each, ("Name", "Properties", "Rules"), inner)
            settings = _properties(subscription, inner)
            rules = subscription.get("Rules")
            if rules:  # an empty list is what the emulator has for none: the default rule
                settings["rules"] = _rules(rules, f"{inner}.Rules")
            _put(below, _name(subscription, inner), settings, inner)
        settings = {**_properties(topic, place), "subscriptions": below}
        _put(found, _name(topic, place), settings, place)
    return found


def _rules(listed: object, where: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for place, said in _every(listed, where):
        rule = _known(said, ("Name", "Properties"), place)
        properties = _known(
            table(rule.get("Properties", {}), place),
            ("FilterType", "SqlFilter", "CorrelationFilter", "Action"),
            f"{place}.Properties",
        )
        _put(found, _name(rule, place), _rule(properties, f"{place}.Properties"), place)
    return found


def _rule(properties: Mapping[str, object], where: str) -> dict[str, object]:
    kind = properties.get("FilterType")
    if kind is None:
        kind = "Correlation" if properties.get("CorrelationFilter") else "Sql"
    kind = find_name(text(kind, f"{where}.FilterType"), _FILTERS, where, "filter")
    found: dict[str, object] = {"filter": "1=0" if kind == "False" else "1=1"}
    if kind == "Correlation":
        found["filter"] = table(properties.get("CorrelationFilter", {}), where)
    elif kind == "Sql":
        found["filter"] = _sql(properties.get("SqlFilter", {}), f"{where}.SqlFilter") or "1=1"
    if properties.get("Action"):
        found["action"] = _sql(properties["Action"], f"{where}.Action")
    return found


def _sql(said: object, where: str) -> str | None:
    known = _known(table(said, where), ("SqlExpression",), where)
    expression = known.get("SqlExpression")
    return None if expression is None else text(expression, where)


# --- the shape ------------------------------------------------------------------------------------


def _every(listed: object, where: str) -> list[tuple[str, Mapping[str, object]]]:
    """The tables of a list, each with its place."""
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise wrong(where, listed, "a list")
    return [(f"{where}[{n}]", table(each, f"{where}[{n}]")) for n, each in enumerate(listed)]


def _known(said: Mapping[str, object], names: tuple[str, ...], where: str) -> dict[str, object]:
    return {find_name(name, names, where, "key"): value for name, value in said.items()}


def _name(said: Mapping[str, object], where: str) -> str:
    if "Name" not in said:
        raise ArgumentError(f"{where} has no Name")
    return text(said["Name"], f"{where}.Name")


def _properties(said: Mapping[str, object], where: str) -> dict[str, object]:
    return dict(table(said.get("Properties") or {}, f"{where}.Properties"))


def _put(found: dict[str, object], name: str, value: object, where: str) -> None:
    if name in found:
        raise ArgumentError(f"{where}: '{name}' is there twice")
    found[name] = value
