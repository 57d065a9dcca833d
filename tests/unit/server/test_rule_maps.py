"""`server/rule_maps.py`, through $management: rules as maps in, as described lists out."""

from __future__ import annotations

import pytest

from tandembus import limits
from tandembus.amqp.types import Described, Int
from tandembus.core.commands import CreateSubscription, CreateTopic
from tandembus.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from tandembus.model import Symbol, Timestamp
from tests.unit.server.desk import (
    Desk,
    Reply,
    run,
)

NOT_ALLOWED = "amqp:not-allowed"


CORRELATION = {
    "correlation-id": "c",
    "message-id": None,
    "to": "t",
    "reply-to": None,
    "label": "l",
    "session-id": None,
    "reply-to-session-id": None,
    "content-type": Symbol("text/plain"),
    "properties": {"n": Int(5), "s": "x", "b": True, "t": Timestamp(7)},
}


def test_rules_in_and_out() -> None:
    """Maps in, described lists with ulong descriptors out, the action always there."""

    async def scene(desk: Desk) -> None:
        await desk.do(CreateTopic("t"))
        await desk.do(CreateSubscription("t", "s", rule=Rule("no", FalseFilter(), None, 5)))
        path = "t/Subscriptions/s"

        async def add(name: str, description: object) -> Reply:
            body = {"rule-name": name, "rule-description": description}
            return await desk.ask("add-rule", body, path=path)

        sql = {"sql-filter": {"expression": "a > 1"}}
        for name, description in (
            ("sql", {**sql, "sql-rule-action": {"expression": "SET b = 2"}}),
            ("correlation", {"correlation-filter": CORRELATION, "sql-rule-action": None}),
            ("all", {}),
            ("empty", {"sql-rule-action": {"expression": ""}}),
        ):
            assert (await add(name, description)).status == 200
        rules = {rule.name: rule for rule in desk.namespace.rules(path)}
        assert rules["sql"].filter == SqlFilter("a > 1")
        assert rules["sql"].action == SqlAction("SET b = 2")
        assert rules["all"].filter == rules["empty"].filter == TrueFilter()
        assert rules["empty"].action is None
        correlation = rules["correlation"].filter
        assert isinstance(correlation, CorrelationFilter)
        assert (correlation.label, correlation.message_id) == ("l", None)
        assert type(correlation.properties["n"]) is type(CORRELATION["properties"]["n"])  # type: ignore[index]

        body = {"top": Int(100), "skip": Int(0)}
        found = await desk.ask("enumerate-rules", body, path=path)
        listed = [each["rule-description"] for each in found.body["rules"]]
        assert [rule.descriptor for rule in listed] == [0x0000013700000004] * 5
        shown = {rule.value[2]: rule.value for rule in listed}
        assert [type(value[3]) for value in shown.values()] == [Timestamp] * 5
        assert shown["no"][:2] == [Described(83483426824, []), Described(0x0000013700000005, [])]
        assert shown["sql"][:2] == [
            Described(83483426822, ["a > 1"]),
            Described(1335734829062, ["SET b = 2"]),
        ]
        assert shown["all"][0] == Described(83483426823, [])
        assert shown["correlation"][0] == Described(
            83483426825,
            ["c", None, "t", None, "l", None, None, "text/plain", CORRELATION["properties"]],
        )

    run(scene)


def test_rules_by_pages() -> None:
    """@azure/service-bus asks on until a page is empty."""

    async def scene(desk: Desk) -> None:
        await desk.do(CreateTopic("t"))
        await desk.do(CreateSubscription("t", "s"))
        path = "t/Subscriptions/s"
        for n in range(3):
            body = {"rule-name": f"r{n}", "rule-description": {}}
            await desk.ask("add-rule", body, path=path)

        async def page(skip: int, top: int) -> list[str]:
            body = {"skip": Int(skip), "top": Int(top)}
            found = await desk.ask("enumerate-rules", body, path=path)
            if found.status == 204:
                return []
            return [each["rule-description"].value[2] for each in found.body["rules"]]

        assert await page(0, 2) == ["$Default", "r0"]
        assert await page(2, 1_000_000) == ["r1", "r2"]
        assert await page(4, 2) == []
        found = await desk.ask("enumerate-rules", {}, path="t")
        assert found.condition == NOT_ALLOWED
        for name in ("$default", "r0", "r1", "r2"):
            assert (await desk.ask("remove-rule", {"rule-name": name}, path=path)).status == 200
        found = await desk.ask("enumerate-rules", {}, path=path)
        assert (found.status, found.condition) == (204, None)
        found = await desk.ask("remove-rule", {"rule-name": "r0"}, path=path)
        assert (found.status, found.condition) == (404, "amqp:not-found")

    run(scene)


@pytest.mark.parametrize(
    ("name", "description", "status"),
    [
        ("$Default", {}, 409),
        ("x", {"sql-filter": {"expression": "a >"}}, 400),
        ("x", {"sql-filter": {}}, 400),
        ("x", {"sql-filter": "a > 1"}, 400),
        ("x", {"sql-filter": {"expression": "1=1"}, "correlation-filter": {}}, 400),
        ("x", {"correlation-filter": {"label": Int(5)}}, 400),
        ("x", {"correlation-filter": {"properties": {"a": [1]}}}, 400),
        ("x", {"sql-rule-action": {"expression": "DROP"}}, 400),
        ("x" * (limits.MAX_RULE_NAME + 1), {}, 400),
        ("a/b", {}, 400),
        ("x", None, 400),
        (None, {}, 400),
    ],
)
def test_rules_that_are_refused(name: object, description: object, status: int) -> None:
    async def scene(desk: Desk) -> None:
        await desk.do(CreateTopic("t"))
        await desk.do(CreateSubscription("t", "s"))
        body = {"rule-name": name, "rule-description": description}
        found = await desk.ask("add-rule", body, path="t/subscriptions/s")
        assert found.status == status
        assert len(desk.namespace.rules("t/subscriptions/s")) == 1

    run(scene)
