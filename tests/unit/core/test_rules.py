"""Rules of a subscription: copies, actions, correlation filters, and their stored form."""

from __future__ import annotations

import json
from decimal import Decimal
from uuid import UUID

import pytest

from tandembus.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    RuleSet,
    Selection,
    SqlAction,
    SqlFilter,
    TrueFilter,
    default_rule,
)
from tandembus.core.sql import Context
from tandembus.errors import ArgumentError, EntityExistsError, EntityNotFoundError, FilterError
from tandembus.model import NO_EDITS, Duration, Edits, Symbol, Timestamp, Value
from tests.unit.core.sql_sample import SampleMessage, context_of


def rule(name: str, description: RuleFilter, action: str | None = None) -> Rule:
    return Rule(name, description, None if action is None else SqlAction(action), 0)


def selected(context: Context, *rules: Rule) -> Selection:
    return RuleSet(rules).evaluate(context)


class Untouchable:
    """A message that nobody may look at."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"looked at {name}")


class TestCopies:
    """WIRE 11.1."""

    def test_rules_without_action_are_one_or(self) -> None:
        """One plain copy if any matches, however many do."""
        red, blue = SqlFilter("color = 'red'"), SqlFilter("color = 'blue'")
        rules = (rule("r", red), rule("b", blue), rule("all", SqlFilter("1=1")))
        assert selected(context_of(color="red"), *rules) == Selection(True, (), None)
        assert selected(context_of(color="green"), *rules[:2]) == Selection(False, (), None)

    @pytest.mark.req("T16")
    def test_each_matching_rule_with_action_adds_a_copy(self) -> None:
        """Each has its action applied and says RuleName; the plain copy comes once beside them."""
        context = context_of(n=1)
        made = selected(
            context,
            rule("$Default", TrueFilter()),
            rule("Plus", SqlFilter("n = 1"), "SET n = n + 1"),
            rule("Minus", TrueFilter(), "REMOVE n"),
            rule("Other", SqlFilter("n = 2"), "SET n = 5"),
        )
        assert made.plain is True
        assert made.failed is None
        assert made.copies == (
            ("Plus", Edits({"n": 2, "RuleName": "Plus"})),
            ("Minus", Edits({"RuleName": "Minus"}, frozenset({"n"}))),
        )
        assert context.properties == {"n": 1}
        assert context.edits is NO_EDITS

    def test_rule_name_is_the_brokers(self) -> None:
        """An action cannot take the name away."""
        for action in ("REMOVE RuleName", "SET RuleName = 'forged'"):
            made = selected(context_of(RuleName="old"), rule("real", TrueFilter(), action))
            assert made.copies[0][1].properties == {"RuleName": "real"}
            assert made.copies[0][1].removed == frozenset()

    def test_no_rule_no_copy(self) -> None:
        """No rules at all, or none that matches: nothing."""
        assert selected(context_of()) == Selection(False, (), None)
        assert selected(context_of(), rule("f", FalseFilter())) == Selection(False, (), None)
        assert selected(context_of(), rule("f", FalseFilter(), "SET a = 1")).copies == ()

    def test_the_default_rule_looks_at_nothing(self) -> None:
        """With a true filter and no action the message is not even looked at."""
        context = Context(Untouchable(), {}, NO_EDITS, lambda: UUID(int=0))  # type: ignore[arg-type]
        rules = (default_rule(7), rule("sql", SqlFilter("a = 1")))
        assert selected(context, *rules) == Selection(True, (), None)

    def test_a_filter_that_raises_is_no_match(self) -> None:
        """It counts as no match, its first error is told, and the other rules go on."""
        made = selected(
            context_of(n=0),
            rule("bad", SqlFilter("1 / n = 1")),
            rule("worse", SqlFilter("p('sys.' + 'None') = 1")),
            rule("good", SqlFilter("n = 0")),
            rule("acting", SqlFilter("n = 0"), "SET a = 1"),
        )
        assert made.plain is True
        assert [name for name, _ in made.copies] == ["acting"]
        assert made.failed == "Division by zero."

    def test_an_action_that_raises_gives_no_copy(self) -> None:
        """A failed action is treated like a filter error."""
        made = selected(
            context_of(n=0),
            rule("bad", TrueFilter(), "SET a = 1 / n"),
            rule("good", TrueFilter(), "SET a = 1"),
        )
        assert [name for name, _ in made.copies] == ["good"]
        assert made.plain is False
        assert made.failed == "Division by zero."

    def test_only_a_failure(self) -> None:
        """A subscription whose only filter raises gets nothing but the error."""
        made = selected(context_of(n=0), rule("bad", SqlFilter("1 / n = 1")))
        assert made == Selection(False, (), "Division by zero.")


class TestCorrelation:
    """WIRE 11.5."""

    @pytest.mark.parametrize(
        "field",
        [
            "correlation_id",
            "message_id",
            "to",
            "reply_to",
            "label",
            "session_id",
            "reply_to_session_id",
            "content_type",
        ],
    )
    def test_each_field(self, field: str) -> None:
        """A set field must equal the message's, case-sensitively; a missing one does not match."""
        wanted = rule("c", CorrelationFilter(**{field: "Value"}))  # type: ignore[arg-type]
        for given, expected in (("Value", True), ("value", False), (None, False)):
            message = SampleMessage(**{field: given})  # type: ignore[arg-type]
            assert selected(context_of(message), wanted).plain is expected

    def test_all_conditions_are_anded(self) -> None:
        """Every field and every property."""
        wanted = rule("c", CorrelationFilter(label="l", to="t", properties={"a": 1}))
        assert (
            selected(context_of(SampleMessage({"a": 1}, label="l", to="t")), wanted).plain is True
        )
        assert (
            selected(context_of(SampleMessage({"a": 2}, label="l", to="t")), wanted).plain is False
        )
        assert selected(context_of(SampleMessage({"a": 1}, label="l")), wanted).plain is False

    def test_ids_that_are_no_text(self) -> None:
        """A uuid matches the text that equals it."""
        guid = UUID("12345678-1234-5678-1234-567812345678")
        wanted = rule("c", CorrelationFilter(message_id=str(guid)))
        assert selected(context_of(SampleMessage(message_id=guid)), wanted).plain is True

    @pytest.mark.parametrize(
        ("wanted", "given", "expected"),
        [
            (3, 3, True),
            (3, 3.0, True),
            (3.0, 3, True),
            (3, 3.5, False),
            (3, Decimal(3), True),
            (3, "3", False),
            (1, True, False),
            (True, True, True),
            (1.5, 1.5, True),
            ("red", "red", True),
            ("red", "Red", False),
            ("red", Symbol("red"), True),
            (Timestamp(5), Timestamp(5), True),
            (Timestamp(5), 5, False),
            (Duration(5), Duration(5), True),
            (Decimal("1.50"), Decimal("1.5"), True),
            (UUID(int=1), UUID(int=1), True),
            (b"a", b"a", True),
            (None, None, True),
            (None, 1, False),
            (1, None, False),
        ],
    )
    def test_property_values(self, wanted: Value, given: Value, expected: bool) -> None:
        """Equal, and of one kind: 3 is any number 3, as those who wrote it in JavaScript mean."""
        made = selected(context_of(x=given), rule("c", CorrelationFilter(properties={"x": wanted})))
        assert made.plain is expected

    def test_property_names(self) -> None:
        """In any case; a missing property is no match, not even for null."""
        wanted = rule("c", CorrelationFilter(properties={"Color": None}))
        assert selected(context_of(COLOR=None), wanted).plain is True
        assert selected(context_of(), wanted).plain is False

    def test_empty(self) -> None:
        """One with nothing set takes every message."""
        assert selected(context_of(), rule("c", CorrelationFilter())).plain is True

    def test_edits_are_seen(self) -> None:
        """What lies over the message counts, not what is under it."""
        context = context_of(
            SampleMessage(label="old"), edits=Edits({"a": 1}, system={"Label": "l"})
        )
        wanted = rule("c", CorrelationFilter(label="l", properties={"a": 1}))
        assert selected(context, wanted).plain is True


class TestDescriptions:
    def test_names(self) -> None:
        """1 to 50 characters and no slash."""
        rule("x" * 50, TrueFilter())
        for name in ("", "x" * 51, "a/b", "a\\b"):
            with pytest.raises(ArgumentError):
                rule(name, TrueFilter())

    def test_sql_is_parsed_when_the_set_is_made(self) -> None:
        """A filter or an action that cannot be parsed is refused with the rule."""
        with pytest.raises(FilterError):
            RuleSet([rule("r", SqlFilter("a ="))])
        with pytest.raises(FilterError):
            RuleSet([rule("r", TrueFilter(), "SET sys.Size = 1")])
        with pytest.raises(FilterError, match="1024 characters"):
            RuleSet([rule("r", SqlFilter("a = '" + "x" * 1024 + "'"))])
        with pytest.raises(FilterError, match="has no value"):
            RuleSet().adding(rule("r", SqlFilter("a = @b")))

    def test_parameters(self) -> None:
        """Filter and action have their own."""
        made = Rule("r", SqlFilter("a = @p", {"@p": 1}), SqlAction("SET b = @p", {"@p": 2}), 0)
        (copy,) = selected(context_of(a=1), made).copies
        assert copy[1].properties == {"b": 2, "RuleName": "r"}

    def test_changing_a_set(self) -> None:
        """Adding, replacing and removing give another set; names are the same in any case."""
        first = RuleSet([default_rule(1)])
        second = first.adding(rule("Red", SqlFilter("color = 'red'")))
        third = second.removing("$DEFAULT")
        assert [one.name for one in second.rules] == ["$Default", "Red"]
        assert [one.name for one in third.rules] == ["Red"]
        assert len(first) == 1
        assert "red" in third
        assert third.evaluate(context_of(color="blue")).plain is False
        fourth = second.replacing(rule("$Default", FalseFilter()))
        assert [one.name for one in fourth.rules] == ["$Default", "Red"]
        assert fourth.evaluate(context_of(color="blue")).plain is False

    def test_names_that_exist_or_not(self) -> None:
        """A second rule of a name is refused, and so is the removal of none."""
        rules = RuleSet([default_rule(1)])
        for name in ("$Default", "$default"):
            with pytest.raises(EntityExistsError):
                rules.adding(rule(name, TrueFilter()))
        with pytest.raises(EntityExistsError):
            RuleSet([default_rule(1), default_rule(2)])
        with pytest.raises(EntityNotFoundError):
            rules.removing("other")
        with pytest.raises(EntityNotFoundError):
            rules.replacing(rule("other", TrueFilter()))

    def test_json(self) -> None:
        """A rule comes back from its JSON as it was, with the types of all values."""
        values: dict[str, Value] = {
            "int": 2**60,
            "float": 1.0,
            "bool": True,
            "none": None,
            "text": "ü",
            "bytes": b"\x00\xff",
            "uuid": UUID(int=5),
            "decimal": Decimal("1.50"),
            "timestamp": Timestamp(5),
            "duration": Duration(-6),
            "symbol": Symbol("s"),
        }
        rules = [
            default_rule(5),
            rule("false", FalseFilter()),
            Rule("sql", SqlFilter("a = @int", values), SqlAction("SET a = @int", values), 7),
            rule("correlation", CorrelationFilter(label="l", message_id="m", properties=values)),
        ]
        for one in rules:
            again = Rule.from_json(json.loads(json.dumps(one.to_json())))
            assert again == one
            if isinstance(again.filter, SqlFilter | CorrelationFilter):
                kept = getattr(again.filter, "parameters", None) or getattr(
                    again.filter, "properties", {}
                )
                assert {k: type(v) for k, v in kept.items()} == {
                    k: type(v) for k, v in values.items()
                }

    def test_json_of_an_unknown_kind(self) -> None:
        """A stored filter that this version does not know is refused, not guessed."""
        tree = default_rule(1).to_json() | {"filter": {"kind": "later"}}
        with pytest.raises(ArgumentError, match="later"):
            Rule.from_json(tree)
