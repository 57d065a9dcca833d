"""The configuration file of `tandem workers run`: TOML in, options out. Pure but for `load_worker`.

    metrics_port = 9464                      # GET /metrics for Prometheus; none: not served

    [[pool]]
    name = "orders"
    worker = "orders:OrderWorker"            # module and class; also of a module beside the file
    size = 4

    [[pool.level]]                           # the highest first
    name = "high"
    queue = "orders-high"
    target = { within_s = 10, percent = 99 }

    [[pool.level]]
    name = "low"
    topic = "orders"
    subscription = "low"

All other keys are the fields of `options`. A key that is not known is refused by its name: a typing
mistake would be a pool that does something else. Keys have no place in the file: the connection
string comes from the environment.
"""

from __future__ import annotations

import pkgutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tandem.errors import ArgumentError
from tandem.workers.options import DailyWindow, Level, PoolOptions, Scale, Target
from tandem.workers.windows import zone
from tandem.workers.worker import Worker

CONNECTION_STRING: Final = "TANDEM_CONNECTION_STRING"


@dataclass(frozen=True, slots=True)
class PoolEntry:
    options: PoolOptions
    worker: str
    """`module:Class`."""


@dataclass(frozen=True, slots=True)
class PoolsFile:
    pools: tuple[PoolEntry, ...]
    connection_string_env: str = CONNECTION_STRING
    """The environment variable that has the connection string."""
    metrics_port: int | None = None
    look_every_s: float | None = None

    def only(self, name: str) -> PoolEntry:
        for entry in self.pools:
            if entry.options.name == name:
                return entry
        raise ArgumentError(f"there is no pool '{name}'")


_Reader = Callable[[Any, str], Any]


def _of(kind: type, words: str) -> _Reader:
    def read(value: Any, where: str) -> Any:
        # In Python, but not in TOML, true is a number.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ArgumentError(f"{where} is {words}, not {value!r}")
        return value

    return read


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"{where} is a number, not {value!r}")
    return value


_text: Final = _of(str, "a text")
_integer: Final = _of(int, "a whole number")
_boolean: Final = _of(bool, "true or false")


def _table(keys: Mapping[str, _Reader], make: Callable[..., Any]) -> _Reader:
    def read(value: Any, where: str) -> Any:
        return make(**_fields(value, keys, where))

    return read


def _fields(value: Any, keys: Mapping[str, _Reader], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentError(f"{where} is a table, not {value!r}")
    found = {}
    for key, each in value.items():
        if key not in keys:
            near = get_close_matches(key, keys, 1)
            meant = f" (did you mean '{near[0]}'?)" if near else ""
            raise ArgumentError(f"{where}: unknown key '{key}'{meant}")
        found[key] = keys[key](each, f"{where}: {key}")
    return found


def _list(each: _Reader, name: str = "name") -> _Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ArgumentError(f"{where} is a list, not {value!r}")
        found = []
        for number, one in enumerate(value, 1):
            label = one.get(name, number) if isinstance(one, dict) else number
            found.append(each(one, f"{where} {label!r}"))
        return tuple(found)

    return read


def _window(value: Any, where: str) -> DailyWindow:
    return DailyWindow.parse(_text(value, where))


_TARGET: Final[dict[str, _Reader]] = {
    "within_s": _number,
    "percent": _number,
    "window_s": _number,
    "for_s": _number,
    "at_least": _integer,
}
_LEVEL: Final[dict[str, _Reader]] = {
    "name": _text,
    "queue": _text,
    "topic": _text,
    "subscription": _text,
    "sessions": _integer,
    "state_in": _text,
    "target": _table(_TARGET, Target),
}
_SCALE: Final[dict[str, _Reader]] = {
    "min": _integer,
    "max": _integer,
    "utilization": _number,
    "waiting_per_worker": _number,
    "oldest_s": _number,
    "follow_target": _boolean,
    "every_s": _number,
    "up_cooldown_s": _number,
    "down_after_s": _number,
    "tolerance": _number,
    "most_growth": _number,
}
_POOL: Final[dict[str, _Reader]] = {
    "name": _text,
    "worker": _text,
    "size": _integer,
    "prefetch": _integer,
    "look_ms": _integer,
    "windows": _list(_window),
    "time_zone": _text,
    "suspended": _boolean,
    "processes": _boolean,
    "stop_s": _number,
    "scale": _table(_SCALE, Scale),
    "level": _list(_table(_LEVEL, Level)),
}


def _pool(value: Any, where: str) -> PoolEntry:
    found = _fields(value, _POOL, where)
    worker = found.pop("worker", None)
    if worker is None or ":" not in worker:
        raise ArgumentError(f"{where}: worker is 'module:Class'")
    for missing in {"name", "level"} - found.keys():
        raise ArgumentError(f"{where}: {missing} is missing")
    found["levels"] = found.pop("level")
    if "suspended" in found:
        found["is_suspended"] = found.pop("suspended")
    options = PoolOptions(**found)
    zone(options.time_zone)
    return PoolEntry(options, worker)


_FILE: Final[dict[str, _Reader]] = {
    "connection_string_env": _text,
    "metrics_port": _integer,
    "look_every_s": _number,
    "pool": _list(_pool),
}


def read_pools(text: str, name: str = "pools.toml") -> PoolsFile:
    """Raises ArgumentError, which says where and what."""
    try:
        found = _fields(tomllib.loads(text), _FILE, name)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{name}: {error}") from error
    except TypeError as error:
        # A field without a default: "missing … argument: 'within_s'".
        raise ArgumentError(f"{name}: {str(error).partition('missing ')[2] or error}") from error
    pools = found.pop("pool", ())
    if not pools:
        raise ArgumentError(f"{name}: there is no [[pool]]")
    names = [entry.options.name for entry in pools]
    if len(set(names)) != len(names):
        raise ArgumentError(f"{name}: two pools of one name")
    return PoolsFile(pools, **found)


def load_worker(reference: str, folder: Path) -> Worker:
    """The class that `module:Class` names, made. The operator's own file names the operator's own
    code, as a command line would; nothing that comes over a network leads here."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = pkgutil.resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"there is no worker '{reference}': {error}") from error
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise ArgumentError(f"'{reference}' is not a class of Worker")
    return found()
