"""The table of prices of the ledger, as values. `prices.toml` beside this file is the default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from tandembus.errors import ArgumentError
from tandembus.journal.schema import KIND_NAMES

DEFAULT: Final = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True, slots=True)
class Tier:
    up_to: float
    """Operations of a month; infinite in the last tier."""
    per_million: float


@dataclass(frozen=True, slots=True)
class Prices:
    currency: str
    base_per_hour: float
    unit_bytes: int
    tiers: tuple[Tier, ...]
    operations: Mapping[str, str]
    """Kind of the journal's event → kind of operation; what is not here is free."""

    def of(self, operations: float) -> float:
        """What so many operations of a namespace cost in a month, without the base price."""
        cost, below = 0.0, 0.0
        for tier in self.tiers:
            cost += max(0.0, min(operations, tier.up_to) - below) * tier.per_million / 1e6
            below = tier.up_to
        return cost


def read_prices(path: Path | None = None) -> Prices:
    """From a file; the default table without one. Raises ArgumentError, which says why."""
    where = path or DEFAULT
    try:
        found = tomllib.loads(where.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"the table of prices cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{where}: {error}") from error
    for key in found.keys() - {"currency", "base_per_hour", "unit_bytes", "tier", "operations"}:
        raise ArgumentError(f"{where}: unknown key '{key}'")
    operations = found.get("operations", {})
    for kind in operations.keys() - set(KIND_NAMES):
        raise ArgumentError(f"{where}: operations: the journal has no kind '{kind}'")
    if not operations:
        raise ArgumentError(f"{where}: [operations] is missing: nothing would cost anything")
    return Prices(
        str(found.get("currency", "")),
        _number(found, "base_per_hour", 0.0, where),
        max(1, int(_number(found, "unit_bytes", 65536, where))),
        _tiers(found.get("tier", []), where),
        {kind: str(operation) for kind, operation in operations.items()},
    )


def _tiers(found: list[dict[str, Any]], where: Path) -> tuple[Tier, ...]:
    tiers = [
        Tier(_number(each, "up_to", inf, where), _number(each, "per_million", None, where))
        for each in found
    ]
    ends = [tier.up_to for tier in tiers]
    if not tiers or ends[-1] != inf or ends != sorted(set(ends)):
        raise ArgumentError(f"{where}: [[tier]]: each goes further than the one before, and only "
                            "the last has no up_to")  # fmt: skip
    return tuple(tiers)


def _number(found: Mapping[str, Any], key: str, default: float | None, where: Path) -> float:
    value = found.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ArgumentError(f"{where}: {key} is a number that is not negative, not {value!r}")
    return value
