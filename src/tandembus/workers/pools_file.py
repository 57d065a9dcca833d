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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandembus.errors import ArgumentError
from tandembus.workers.options import DailyWindow, Level, PoolOptions, Scale, Target
from tandembus.workers.tables import (
    Reader,
    boolean,
    integer,
    listed,
    number,
    placed,
    read_fields,
    read_toml,
    table,
    text,
)
from tandembus.workers.windows import zone
from tandembus.workers.worker import Worker

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


def _window(value: Any, where: str) -> DailyWindow:
    return placed(where, lambda: DailyWindow.parse(text(value, where)))


TARGET: Final[dict[str, Reader]] = {
    "within_s": number,
    "percent": number,
    "window_s": number,
    "for_s": number,
    "at_least": integer,
}
_LEVEL: Final[dict[str, Reader]] = {
    "name": text,
    "queue": text,
    "topic": text,
    "subscription": text,
    "sessions": integer,
    "state_in": text,
    "target": table(TARGET, Target),
}
_SCALE: Final[dict[str, Reader]] = {
    "min": integer,
    "max": integer,
    "utilization": number,
    "waiting_per_worker": number,
    "oldest_s": number,
    "follow_target": boolean,
    "every_s": number,
    "up_cooldown_s": number,
    "down_after_s": number,
    "tolerance": number,
    "most_growth": number,
}
_POOL: Final[dict[str, Reader]] = {
    "name": text,
    "worker": text,
    "size": integer,
    "prefetch": integer,
    "look_ms": integer,
    "windows": listed(_window),
    "time_zone": text,
    "suspended": boolean,
    "processes": boolean,
    "stop_s": number,
    "scale": table(_SCALE, Scale),
    "level": listed(table(_LEVEL, Level)),
}


def _pool(value: Any, where: str) -> PoolEntry:
    found = read_fields(value, _POOL, where)
    worker = found.pop("worker", None)
    if worker is None or ":" not in worker:
        raise ArgumentError(f"{where}: worker is 'module:Class'")
    for missing in {"name", "level"} - found.keys():
        raise ArgumentError(f"{where}: {missing} is missing")
    found["levels"] = found.pop("level")
    if "suspended" in found:
        found["is_suspended"] = found.pop("suspended")
    options = placed(where, lambda: PoolOptions(**found))
    placed(where, lambda: zone(options.time_zone))
    return PoolEntry(options, worker)


_FILE: Final[dict[str, Reader]] = {
    "connection_string_env": text,
    "metrics_port": integer,
    "look_every_s": number,
    "pool": listed(_pool),
}


def read_pools(content: str, name: str = "pools.toml") -> PoolsFile:
    """Raises ArgumentError, which says where and what."""
    found = read_toml(content, _FILE, name)
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
