"""Plans from a TOML file and from the command line.

    workers = 4
    aging_s = 30

    [[level]]                       # the highest first
    name = "high"
    rate = 20                       # messages a second
    service = "exp:0.05"            # seconds: 0.05, "exp:0.05" (the mean), [0.04, 0.07] (measured),
                                    # or "file:times.txt", one a line, beside this file
    target = { within_s = 1, percent = 99 }

    [[level]]
    name = "low"
    rate = 30
    service = 0.08

On the command line a level is `high,rate=20,service=exp:0.05,within_s=1,percent=99`; the values
are the same, and are read by the same code. All other keys are the fields of `planning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tandembus.errors import ArgumentError
from tandembus.workers.options import Target
from tandembus.workers.planning import Plan, PlannedLevel, Service
from tandembus.workers.pools_file import TARGET
from tandembus.workers.tables import Reader, integer, listed, number, placed, read_toml, table, text

EXPONENTIAL: Final = "exp:"
FROM_FILE: Final = "file:"
_TARGET_KEYS: Final = ("within_s", "percent")


def read_service(value: Any, where: str, folder: Path) -> Service:
    """A number, a list of numbers, or a text."""
    if isinstance(value, str):
        return _service_of_text(value, where, folder)
    times = value if isinstance(value, list) else [value]
    found = tuple(float(number(each, where)) for each in times)
    return placed(where, lambda: Service(found))


def _service_of_text(value: str, where: str, folder: Path) -> Service:
    if value.startswith(FROM_FILE):
        path = folder / value.removeprefix(FROM_FILE)
        try:
            lines = path.read_text(encoding="utf-8").split()
            measured = tuple(float(each) for each in lines)
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{where}: {path}: {error}") from error
        return placed(where, lambda: Service(measured))
    is_exponential = value.startswith(EXPONENTIAL)
    try:
        mean_s = float(value.removeprefix(EXPONENTIAL))
    except ValueError as error:
        raise ArgumentError(
            f"{where} is seconds (0.05), 'exp:0.05', 'file:times.txt' or a list, not '{value}'"
        ) from error
    return placed(where, lambda: Service((mean_s,), is_exponential))


def _keys(folder: Path) -> dict[str, Reader]:
    level: dict[str, Reader] = {
        "name": text,
        "rate": number,
        "service": lambda value, where: read_service(value, where, folder),
        "weight": integer,
        "workers": integer,
        "target": table(TARGET, Target),
    }
    return {
        "workers": integer,
        "aging_s": number,
        "prefetch": integer,
        "look_ms": integer,
        "trip_ms": number,
        "seconds": number,
        "warm_s": number,
        "seed": integer,
        "forms": listed(text),
        "level": listed(table(level, PlannedLevel)),
    }


def read_plan(path: Path | None, levels: Sequence[str], given: Mapping[str, Any]) -> Plan:
    """What the file says, and what is given beside it, which goes before."""
    found: dict[str, Any] = {}
    if path is not None:
        content = path.read_text(encoding="utf-8")
        found = read_toml(content, _keys(path.resolve().parent), path.name)
    if levels:
        reader = _keys(Path())["level"]
        found["level"] = reader([_level(each) for each in levels], "--level")
    found.update(given)
    if "level" not in found:
        raise ArgumentError("there is no level: give a file, or --level for each")
    found["levels"] = found.pop("level")
    return placed(path.name if path is not None else "the plan", lambda: Plan(**found))


def _level(words: str) -> dict[str, Any]:
    """`high,rate=20,…` as a table of the file."""
    name, *parts = words.split(",")
    if "=" in name:
        raise ArgumentError(f"--level {words}: the name comes first, as in high,rate=20,service=1")
    found: dict[str, Any] = {"name": name}
    target: dict[str, Any] = {}
    for part in parts:
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            raise ArgumentError(f"--level {name}: '{part}' is no key=value")
        into = target if key in _TARGET_KEYS else found
        into[key] = value if key == "service" else _number(value, f"--level {name}: {key}")
    return {**found, "target": target} if target else found


def _number(value: str, where: str) -> int | float:
    try:
        return int(value) if value.isdigit() else float(value)
    except ValueError as error:
        raise ArgumentError(f"{where} is a number, not '{value}'") from error
