"""Where settings come from: flags win over the environment, the environment over the file, the file
over the defaults.

A file is TOML, or the `Config.json` of Microsoft's emulator:

    folder = "data"                       # relative to the file
    ports = [5672]

    [namespaces.shop]
    hosts = ["shop.example.net"]

    [namespaces.shop.queues.orders]
    lock_duration = "30s"
    requires_session = true

    [namespaces.shop.topics.events.subscriptions.audit.rules.big]
    filter = "amount > 1000"

A namespace that a file names lives in its own folder, FOLDER/NAME, unless it says another one.
Without a file there is one, and it lives in FOLDER itself.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tandembus.config import emulator, values
from tandembus.config.entities import read_entities
from tandembus.config.server import (
    BY_KEY,
    EMULATOR_PORT,
    OPTIONS,
    PORT,
    NamespaceConfig,
    ServerConfig,
)
from tandembus.config.values import find_name, table
from tandembus.errors import ArgumentError

FILE_VARIABLE: Final = "TANDEM_CONFIG"
DEFAULT_FILE: Final = Path("tandem.toml")
PREFIX: Final = "TANDEM_"
_PATHS: Final = tuple(option.key for option in OPTIONS if option.read is values.path)
_NAMESPACE_KEYS: Final = ("hosts", "ports", "folder", "jwt_keys", "queues", "topics")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each came from."""

    config: ServerConfig
    sources: Mapping[str, str] = field(default_factory=dict)
    """By key: `default`, the file's name, a variable, or a flag."""
    file: Path | None = None


def load(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None = None,
    *,
    needs_folder: bool = True,
) -> Loaded:
    """`flags`: by key, those that were given. `file` None: what TANDEM_CONFIG names, or
    `tandem.toml` if it is there. Raises ArgumentError."""
    file = find_file(file, environment)
    found: dict[str, Any] = {}
    sources: dict[str, str] = {option.key: "default" for option in OPTIONS}
    namespaces: Mapping[str, object] = {}
    if file is not None:
        said, namespaces = read_file(file)
        for key, value in said.items():
            read = BY_KEY[key].read(value, f"{file.name}: {key}")
            found[key] = file.parent / read if key in _PATHS else read
            sources[key] = file.name
    for key, variable in _variables(environment).items():
        found[key] = BY_KEY[key].read(environment[variable], variable)
        sources[key] = variable
    for key, value in flags.items():
        option = BY_KEY[key]
        found[key] = option.read(value, option.flag_name)
        sources[key] = option.flag_name
    folder = found.get("folder")
    if folder is None:
        if needs_folder:
            raise ArgumentError(
                "Where shall the data be kept? Say `tandem serve FOLDER`, set TANDEM_FOLDER, or "
                "give `folder` in the file of --config."
            )
        folder = Path()
    served = tuple(
        _namespace(name, table(said, f"namespaces.{name}"), folder, file)
        for name, said in namespaces.items()
    )
    plain = {BY_KEY[key].field: value for key, value in found.items() if key != "folder"}
    if "ports" not in found:
        plain["ports"] = _ports(found, served)
    return Loaded(ServerConfig(folder, **plain, namespaces=served).validate(), sources, file)


def _ports(found: Mapping[str, Any], served: tuple[NamespaceConfig, ...]) -> tuple[int, ...]:
    """The common ports, if none is named."""
    if found.get("standard_ports") or (served and all(each.ports for each in served)):
        return ()
    return (PORT, EMULATOR_PORT) if found.get("emulator") else (PORT,)


def find_file(file: Path | None, environment: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def read_file(file: Path) -> tuple[dict[str, object], dict[str, object]]:
    """What it says about the server, by key, and its namespaces, by name."""
    try:
        written = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ArgumentError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{file} is not a text in UTF-8") from None
    if emulator.looks_like_json(written):
        return {}, {**emulator.read_namespaces(written, file.name)}
    try:
        tree = tomllib.loads(written)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{file.name}: {error}") from None
    namespaces: dict[str, object] = {}
    said: dict[str, object] = {}
    for name, value in tree.items():
        key = find_name(name, (*BY_KEY, "namespaces"), file.name)
        if key == "namespaces":
            namespaces = {**table(value, f"{file.name}: namespaces")}
        else:
            said[key] = value
    return said, namespaces


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Key → variable, of those that are set. One that is nearly one is a mistake; other software
    may have others."""
    known = {option.variable: option.key for option in OPTIONS}
    found: dict[str, str] = {}
    for name in environment:
        if name in known:
            found[known[name]] = name
        elif name.startswith(PREFIX) and name not in _OTHERS:
            near = get_close_matches(name, known, 1, 0.85)
            if near:
                raise ArgumentError(
                    f"there is no variable {name}; did you mean {near[0]}? Unset it."
                )
    return found


_OTHERS: Final = (FILE_VARIABLE, "TANDEM_CONNECTION_STRING", "TANDEM_PRIMARY", "TANDEM_SECONDARY")


def _namespace(
    name: str, said: Mapping[str, object], folder: Path, file: Path | None
) -> NamespaceConfig:
    where = f"namespaces.{name}"
    known = {find_name(key, _NAMESPACE_KEYS, where): value for key, value in said.items()}
    beside = Path() if file is None else file.parent
    own = known.get("folder")
    keys = known.get("jwt_keys")
    hosts = values.texts(known.get("hosts", ()), f"{where}.hosts")
    return NamespaceConfig(
        name,
        folder / name if own is None else folder / values.path(own, f"{where}.folder"),
        tuple(host.lower() for host in hosts),
        values.integers(known.get("ports", ()), f"{where}.ports"),
        None if keys is None else beside / values.path(keys, f"{where}.jwt_keys"),
        read_entities(known, where),
    )
