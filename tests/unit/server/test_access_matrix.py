"""The access matrix: every command × every role × every road equals the table in docs/access.md.

The page is the expectation; nothing else is written down. When it differs, the test prints the
cells that do, and the table as it was found.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, get_args

import pytest

from tandembus.core import commands as c
from tandembus.core.access import everything, require, right_for
from tandembus.server.management import OPERATIONS
from tests.unit.server import access_roads as roads
from tests.unit.server.access_roads import COMMANDS, INSIDE, ROWS, Row, engine_row
from tests.unit.server.access_world import ROLES, Role, World, world
from tests.unit.server.visitor import UNAUTHORIZED, Refusal

PAGE = Path(__file__).parents[3] / "docs" / "access.md"
YES, NO = "yes", "·"
Cells: TypeAlias = dict[tuple[str, str], dict[str, str]]
KINDS: Sequence[type[object]] = get_args(c.Command)


def expected() -> Cells:
    """The tables of the page: road and operation → role → cell."""
    cells: Cells = {}
    header: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        words = [word.strip().replace("`", "") for word in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = words
        elif header[:2] == ["road", "what"] and set(line) - set("|-: "):
            cells[words[0], words[1]] = dict(zip(header[2:], words[2:], strict=True))
    return cells


def table(cells: Cells) -> str:
    names = [role.name for role in ROLES]
    lines = [f"| road | what | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for (road, what), row in cells.items():
        lines.append(f"| {road} | {what} | {' | '.join(row[name] for name in names)} |")
    return "\n".join(lines)


async def tried(row: Row, role: Role, where: World) -> str:
    """The cell of a row for a role."""
    where.seen.clear()
    try:
        async with asyncio.timeout(30):
            await row.attempt(where, role)
    except Refusal as refusal:
        return NO if refusal.condition in (UNAUTHORIZED, "401") else f"{refusal}"
    finally:
        await where.see_off()
    missing = [kind.__name__ for kind in row.commands if kind not in where.seen]
    return f"without {', '.join(missing)}" if missing else YES


async def found(rows: Sequence[Row]) -> tuple[Cells, set[type[object]]]:
    """All cells, and the kinds of commands that have come by these roads."""
    cells: Cells = {}
    seen: set[type[object]] = set()
    async with world() as where:
        for row in rows:
            cells[row.road, row.what] = {}
            for role in ROLES:
                cells[row.road, row.what][role.name] = await tried(row, role, where)
                seen |= where.seen
    return cells, seen


def differences(wanted: Mapping[tuple[str, str], Mapping[str, str]], got: Cells) -> list[str]:
    lines = []
    for place in [*wanted, *(place for place in got if place not in wanted)]:
        for role in ROLES:
            want = wanted.get(place, {}).get(role.name, "nothing")
            have = got.get(place, {}).get(role.name, "nothing")
            if want != have:
                lines.append(f"{' / '.join(place)}: {role.name}: {want} on the page, {have} here")
    return lines


@pytest.mark.req("C3")
def test_the_roads() -> None:
    """Over a real listener: links, $cbs, $management, transactions and ATOM. Each cell that says
    yes has reached the engine with the commands that the row names, and those that are refused are
    refused as unauthorized."""
    got, seen = asyncio.run(found(ROWS))
    wanted = {place: row for place, row in expected().items() if place[0] != "engine"}
    assert differences(wanted, got) == [], "\n" + table(got)
    assert set(KINDS) - seen == INSIDE, "a command that no road leads to, or one that does"


@pytest.mark.req("C3")
def test_the_engine() -> None:
    """Every kind of command there is, in the name of every role, given to the engine itself."""
    assert set(KINDS) == set(COMMANDS), "a kind of command without a row"
    got, _ = asyncio.run(found([engine_row(kind) for kind in KINDS]))
    wanted = {place: row for place, row in expected().items() if place[0] == "engine"}
    assert differences(wanted, got) == [], "\n" + table(got)


def test_every_operation_has_a_row() -> None:
    """What `$management` can be asked is in the matrix, to the last operation."""
    rows = {roads.full_name(row.what) for row in ROWS if row.road == "$management"}
    assert rows == set(OPERATIONS)


@pytest.mark.parametrize("by", ["plain", "jwt"])
def test_a_key_is_worth_the_same_however_it_is_shown(by: str) -> None:
    """SASL PLAIN with a policy's name and key, and a JWT that is signed with it, give on links
    exactly what a SAS token gives."""
    table = expected()

    async def run() -> None:
        async with world() as where:
            for what, attempt in {
                "send to a queue": roads.send,
                "receive from a queue, complete": roads.receive,
            }.items():
                for role in ROLES:
                    if role.policy is None or role.is_expired:
                        continue
                    row = Row("link", what, (), lambda w, r, a=attempt: a(w, r, by))  # type: ignore[misc]
                    want = table["link", what][role.name]
                    assert await tried(row, role, where) == want, f"{what}: {role.name}"

    asyncio.run(run())


def test_a_command_without_a_right_does_not_pass() -> None:
    """Not even for somebody who may do everything: there is no default."""

    class Unheard:
        path = "q"

    with pytest.raises(AssertionError):
        require(everything(), Unheard(), 0)  # type: ignore[arg-type]
    for kind in KINDS:
        right_for(COMMANDS[kind]("q"))


def test_the_page_is_read() -> None:
    """The canary: a cell that is turned round is reported."""
    cells = expected()
    assert len(cells) == len(ROWS) + len(KINDS)
    assert not re.search(r"yes|·", "".join("".join(place) for place in cells))
    turned = {place: dict(row) for place, row in cells.items()}
    turned["engine", "Send"]["nobody"] = YES
    assert differences(turned, cells) == ["engine / Send: nobody: yes on the page, · here"]
