"""SQL filters and actions, sentence by sentence of WIRE section 11."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from uuid import UUID

import pytest

from tandembus.core.sql import Context, compile_action, compile_filter
from tandembus.errors import ArgumentError, FilterError
from tandembus.limits import MAX_PROPERTY_VALUE
from tandembus.model import Duration, Edits, Symbol, Timestamp, Value
from tests.unit.core.sql_sample import SampleMessage, context_of


def truth(
    text: str, parameters: Mapping[str, Value] | None = None, /, **properties: Value
) -> bool | None:
    """The filter's result for a message with these application properties."""
    context = context_of(SampleMessage(properties))
    return compile_filter(text, parameters).evaluate(context)


def system_truth(text: str, message: SampleMessage, **facts: Value) -> bool | None:
    return compile_filter(text).evaluate(context_of(message, facts=facts))


def applied(text: str, context: Context, parameters: Mapping[str, Value] | None = None) -> Edits:
    return compile_action(text, parameters).apply(context)


class TestGrammar:
    """11.2."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("n = 5", True),
            ("n <> 5", False),
            ("n != 5", False),
            ("n > 4", True),
            ("n >= 6", False),
            ("n < 6", True),
            ("n <= 5", True),
        ],
    )
    def test_comparisons(self, text: str, expected: bool) -> None:
        """The seven comparison operators."""
        assert truth(text, n=5) is expected

    def test_is_null(self) -> None:
        """IS NULL and IS NOT NULL take a property."""
        assert truth("a IS NULL AND b IS NOT NULL", b=1) is True

    @pytest.mark.parametrize("text", ["1 IS NULL", "a + 1 IS NULL", "@x IS NULL", "a IS 5"])
    def test_is_null_of_no_property(self, text: str) -> None:
        """IS NULL of anything else is refused."""
        with pytest.raises(FilterError):
            compile_filter(text, {"x": None})

    def test_in(self) -> None:
        """IN and NOT IN, with any expressions in the list."""
        assert truth("n IN (1, 2 + 3, other)", n=5) is True
        assert truth("n NOT IN (1, 2)", n=5) is True
        assert truth("c IN ('red', 'blue')", c="blue") is True
        assert truth("c IN ('red', 'blue')", c=Symbol("blue")) is True
        assert truth("c IN ('red', 'blue')", c=5) is False
        with pytest.raises(FilterError):
            compile_filter("n IN ()")

    def test_exists(self) -> None:
        """EXISTS tests the presence of a property."""
        assert truth("EXISTS (a) AND NOT EXISTS(b)", a=1) is True

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("[a b] = 1", True),
            ('"a b" = 1', True),
            ("[x]]y] = 2", True),
            ('"q""r" = 3', True),
            ("user.[a b] = 1", True),
            ("Größe_1 = 4", True),
        ],
    )
    def test_names(self, text: str, expected: bool) -> None:
        """Names in brackets or quotes hold any text; letters are Unicode letters."""
        properties: dict[str, Value] = {"a b": 1, "x]y": 2, 'q"r': 3, "Größe_1": 4}
        assert truth(text, **properties) is expected

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("5", 5),
            ("-9223372036854775808", -(2**63)),
            ("9223372036854775807", 2**63 - 1),
            ("2.5", 2.5),
            (".5", 0.5),
            ("101.5E5", 101.5e5),
            ("0.5E-2", 0.005),
            ("1e3", 1000.0),
            ("TRUE", True),
            ("false", False),
            ("NULL", None),
            ("'it''s'", "it's"),
            ("''", ""),
        ],
    )
    def test_constants(self, text: str, value: Value) -> None:
        """Integers are longs, numbers with point or exponent are doubles; '' is a quote."""
        edits = applied(f"SET x = {text}", context_of())
        assert type(edits.properties["x"]) is type(value)
        assert edits.properties["x"] == value

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "   ",
            "a",
            "5 +",
            "a = ",
            "= 1",
            "a = 1 AND",
            "a = 1 = 2",
            "(a = 1",
            "a = 1)",
            "a = 'open",
            "[open = 1",
            "[] = 1",
            '"" = 1',
            "5",
            "'text'",
            "NULL",
            "a + 1",
            "-a",
            "newid()",
            "(a = 1) + 2 = 3",
            "a LIKE (b = 1)",
            "a NOT = 1",
            "a == 1",
            "a = 1; b = 2",
            "other.a = 1",
            "user. = 1",
            "sys.in = 1",
            "9223372036854775808 = a",
            "99999999999999999999 = a",
            "1e999 = a",
            "5x = 1",
            "1.2.3 = a",
            "_a = 1",
            "a # 1",
            "@ = 1",
            "concat(a) = 1",
            "newid(1) = a",
            "property() = a",
            "EXISTS(1)",
            "EXISTS a",
            "EXISTS(p('a'))",
            "and = 1",
            "SET a = 1",
        ],
    )
    def test_what_is_refused(self, text: str) -> None:
        """A text outside the grammar is refused when the rule is made (only `a`, a property, may
        stand alone)."""
        if text == "a":
            assert truth(text, a=True) is True
            return
        with pytest.raises(FilterError):
            compile_filter(text)

    def test_errors_say_where(self) -> None:
        """A person can find the mistake, and the edge answers 400 or argument-error."""
        with pytest.raises(FilterError, match="at position 7") as caught:
            compile_filter("a = 1 b")
        assert isinstance(caught.value, ArgumentError)
        assert caught.value.status == 400
        assert caught.value.condition == "com.microsoft:argument-error"

    def test_case(self) -> None:
        """Keywords, scopes, functions and property names in any case; string values as they are."""
        assert truth("NoT UsEr.COLOR iN ('x') aNd PROPERTY('colOR') = 'Red'", Color="Red") is True
        assert truth("color = 'red'", Color="Red") is False

    def test_names_exact_first(self) -> None:
        """Of two names that differ in case, the one that is written is taken."""
        assert truth("Color = 'b' AND color = 'a'", color="a", Color="b") is True
        assert truth("EXISTS(Color) AND Color IS NULL", color="a", Color=None) is True
        assert truth("COLOR = 'a'", color="a", Color="b") is True

    def test_keywords_are_ascii(self) -> None:
        """A letter that only folds to a keyword's is a letter of a name."""
        with pytest.raises(FilterError):
            compile_filter("a ıN (1)")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2 + 3 * 4 = 14", True),
            ("(2 + 3) * 4 = 20", True),
            ("10 - 2 - 3 = 5", True),
            ("100 / 10 / 5 = 2", True),
            ("-2 * 3 = -6", True),
            ("2 - -2 = 4", True),
            ("7 % 4 * 2 = 6", True),
            ("NOT 1 = 2", True),
            ("NOT TRUE OR TRUE", True),
            ("NOT (TRUE OR TRUE)", False),
            ("TRUE OR TRUE AND FALSE", True),
            ("(TRUE OR TRUE) AND FALSE", False),
            ("NOT NOT TRUE", True),
        ],
    )
    def test_precedence(self, text: str, expected: bool) -> None:
        """Unary, * / %, + -, comparisons, NOT, AND, OR; equal ones from left to right."""
        assert truth(text) is expected

    def test_boolean_as_predicate(self) -> None:
        """A bare boolean property or TRUE may stand as predicate; another value is unknown."""
        assert truth("flag", flag=True) is True
        assert truth("flag AND TRUE", flag=False) is False
        assert truth("NOT flag", flag=False) is True
        assert truth("flag", flag="true") is None
        assert truth("flag OR n = 1", flag=7, n=1) is True

    def test_limits(self) -> None:
        """1,024 characters, 200 words, 32 levels: the bound itself passes, one more does not."""
        room = 1024 - len("a = ''")
        assert truth("a = '" + "x" * room + "'", a="x" * room) is True
        with pytest.raises(FilterError, match="1024 characters"):
            compile_filter("a = '" + "x" * (room + 1) + "'")
        assert truth(f"1 IN ({','.join('1' * 98)})") is True
        with pytest.raises(FilterError, match="200 words"):
            compile_filter(f"1 IN ({','.join('1' * 99)})")
        for head, tail in (("(", ")"), ("NOT ", ""), ("p(", ")"), ("- ", "")):
            end = "" if head.startswith(("(", "N")) else " = 1"
            compile_filter(head * 32 + "a" + tail * 32 + end)
            with pytest.raises(FilterError, match="deeper than 32"):
                compile_filter(head * 33 + "a" + tail * 33 + end)

    def test_the_deepest_filter_runs(self) -> None:
        """32 levels of everything need no deep stack of Python."""
        assert truth("NOT " * 31 + "(a)", a=False) is True


class TestFunctionsAndParameters:
    def test_newid(self) -> None:
        """newid() is a new GUID each time."""
        assert truth("newid() = newid()") is False
        edits = applied("SET a = newid(); SET b = newid()", context_of())
        assert edits.properties == {"a": UUID(int=1), "b": UUID(int=2)}

    def test_property(self) -> None:
        """property() and p() take any expression that gives a name, with or without scope."""
        assert truth(
            "property('co' + 'lor') = 'red' AND p(which) = 'red'", color="red", which="Color"
        )
        assert truth("p('user.color') = 'red'", color="red") is True
        assert truth("p(missing) = 1") is None
        message = SampleMessage({"which": "SYS.subject"}, label="x")
        assert system_truth("p(which) = 'x' AND p('sys.Label') = 'x'", message) is True

    def test_property_with_a_wrong_name(self) -> None:
        """A system property that does not exist, or a name that is no string, is an error: at once
        if it can be known, else with the message."""
        with pytest.raises(FilterError, match="no system property 'Nothing'"):
            compile_filter("p('sys.Nothing') = 1")
        with pytest.raises(FilterError, match="no system property"):
            truth("p(which) = 1", which="sys.Nothing")
        with pytest.raises(FilterError, match="takes a string"):
            truth("p(5) = 1")

    def test_functions_are_no_keywords(self) -> None:
        """Without a parenthesis their names are properties."""
        assert truth("p = 1 AND newid = 2 AND property = 3", p=1, newid=2, property=3) is True

    def test_parameters(self) -> None:
        """@name takes its value from the rule, however the name's @ and case are given."""
        given: dict[str, Value] = {"@level": 3, "Color": "red", "@since": Timestamp(5)}
        assert truth(
            "n > @Level AND c = @color AND t = @since", given, n=4, c="red", t=Timestamp(5)
        )

    def test_parameter_without_value(self) -> None:
        """A parameter that the rule does not give is refused; one that is null is null."""
        with pytest.raises(FilterError, match="@other has no value"):
            compile_filter("a = @other", {"@level": 3})
        assert truth("a = @none", {"none": None}, a=1) is None
        with pytest.raises(FilterError, match="64 bits"):
            compile_filter("a = @n", {"n": 2**64})


class TestSystemProperties:
    def test_all(self) -> None:
        """Each system property is found, from the message or from what the broker knows."""
        message = SampleMessage(
            message_id="m",
            correlation_id="c",
            content_type="t",
            label="l",
            to="to",
            reply_to="r",
            session_id="s",
            reply_to_session_id="rs",
            partition_key="pk",
            via_partition_key="vk",
            ttl_ms=1_500,
            scheduled_ms=7,
        )
        facts: dict[str, Value] = {
            "EnqueuedTimeUtc": Timestamp(9),
            "ExpiresAtUtc": Timestamp(10),
            "SequenceNumber": 42,
            "EnqueuedSequenceNumber": 41,
            "DeliveryCount": 2,
            "DeadLetterSource": "q",
            "LockedUntilUtc": Timestamp(11),
            "LockToken": UUID(int=5),
            "State": 0,
            "Size": 300,
        }
        expected: dict[str, Value] = {
            **facts,
            "MessageId": "m",
            "CorrelationId": "c",
            "ContentType": "t",
            "Label": "l",
            "Subject": "l",
            "To": "to",
            "ReplyTo": "r",
            "SessionId": "s",
            "ReplyToSessionId": "rs",
            "PartitionKey": "pk",
            "ViaPartitionKey": "vk",
            "TimeToLive": Duration(15_000_000),
            "ScheduledEnqueueTimeUtc": Timestamp(7),
        }
        for name, value in expected.items():
            program = compile_filter(f"sys.{name.upper()} = @value", {"value": value})
            assert program.matches(context_of(message, facts=facts)), name

    def test_ids_are_text(self) -> None:
        """A message-id of another AMQP type is compared as the text that an SDK shows."""
        guid = UUID("12345678-1234-5678-1234-567812345678")
        message = SampleMessage(message_id=guid, correlation_id=7)
        assert (
            system_truth(f"sys.MessageId = '{guid}' AND sys.CorrelationId = '7'", message) is True
        )
        assert system_truth("sys.MessageId = '6162'", SampleMessage(message_id=b"ab")) is True

    def test_unknown_and_empty(self) -> None:
        """An unknown one is refused; a known one without value is null."""
        with pytest.raises(FilterError, match="no system property 'Priority'"):
            compile_filter("sys.Priority = 1")
        for name in ("Label", "TimeToLive", "Size"):
            assert system_truth(f"sys.{name} IS NULL", SampleMessage()) is True
            assert system_truth(f"EXISTS(sys.{name})", SampleMessage()) is False
        assert system_truth("EXISTS(sys.Label)", SampleMessage(label="x")) is True

    def test_user_properties_of_the_same_name(self) -> None:
        """Without scope a name is a user property."""
        message = SampleMessage({"Label": "user"}, label="system")
        assert system_truth("Label = 'user' AND sys.Label = 'system'", message) is True


class TestThreeValuedLogic:
    """11.3."""

    @pytest.mark.parametrize(
        "text",
        [
            "missing = 1",
            "missing <> 1",
            "missing < 1",
            "empty = 1",
            "missing + 1 = 2",
            "1 * empty = 1",
            "-missing = 1",
            "missing LIKE 'a'",
            "text LIKE missing",
            "text LIKE 'a' ESCAPE empty",
            "missing IN (1)",
            "missing NOT IN (1)",
            "NOT (missing = 1)",
            "missing = missing",
            "NULL = NULL",
            "missing + 'a' = 'a'",
            "p(empty) = 1",
        ],
    )
    def test_unknown(self, text: str) -> None:
        """A missing or null operand makes comparison, arithmetic, LIKE and IN unknown, and NOT of
        unknown is unknown: the message is not selected."""
        assert truth(text, empty=None, text="a") is None
        assert compile_filter(text).matches(context_of(empty=None, text="a")) is False

    def test_in_with_unknown_items(self) -> None:
        """An item that is unknown leaves IN unknown, unless another one is equal."""
        assert truth("1 IN (missing, 1)") is True
        assert truth("1 IN (missing, 2)") is None
        assert truth("1 NOT IN (missing, 2)") is None

    @pytest.mark.parametrize("left", ["TRUE", "FALSE", "missing = 1"])
    @pytest.mark.parametrize("right", ["TRUE", "FALSE", "missing = 1"])
    def test_tables(self, left: str, right: str) -> None:
        """AND is false if either is false, else unknown if either is; OR is true if either is true,
        else unknown if either is."""
        a, b = truth(left), truth(right)
        both = False if False in (a, b) else (None if None in (a, b) else True)
        either = True if True in (a, b) else (None if None in (a, b) else False)
        assert truth(f"{left} AND {right}") is both
        assert truth(f"{left} OR {right}") is either

    def test_null_and_missing(self) -> None:
        """IS NULL does not tell missing from null; EXISTS does."""
        assert truth("a IS NULL AND b IS NULL", b=None) is True
        assert truth("EXISTS(a)", b=None) is False
        assert truth("EXISTS(b)", b=None) is True

    def test_a_missing_property_never_selects(self) -> None:
        """`x <> 'a'` does not select messages without x, and `NOT (x = 'a')` neither."""
        for text in ("x <> 'a'", "NOT (x = 'a')"):
            assert compile_filter(text).matches(context_of()) is False
            assert compile_filter(text).matches(context_of(x="b")) is True

    def test_what_stands_behind_is_not_evaluated(self) -> None:
        """AND stops at false, OR at true, IN at an equal item: what follows cannot fail."""
        assert truth("FALSE AND 1 / 0 = 1") is False
        assert truth("TRUE OR 1 / 0 = 1") is True
        assert truth("1 IN (1, 1 / 0)") is True
        assert truth("missing IN (1 / 0)") is None
        with pytest.raises(FilterError):
            truth("missing = 1 AND 1 / 0 = 1")


class TestTypes:
    """11.4."""

    @pytest.mark.parametrize(
        ("expression", "value"),
        [
            ("7 / 2", 3),
            ("-7 / 2", -3),
            ("7 / -2", -3),
            ("7 % 4", 3),
            ("-7 % 4", -3),
            ("7 % -4", 3),
            ("7 / 2.0", 3.5),
            ("-7.5 % 2", -1.5),
            ("1 + 0.5", 1.5),
            ("d + 1", Decimal("3.5")),
            ("d * d", Decimal("6.25")),
            ("d / 2", Decimal("1.25")),
            ("-d % 2", Decimal("-0.5")),
            ("d + 0.5", 3.0),
            ("'a' + 'b' + s", "abc"),
            ("t - u", Duration(40_000)),
            ("t + w", Timestamp(11)),
            ("t - w", Timestamp(9)),
            ("w + w", Duration(30_000)),
            ("w - w - w", Duration(-15_000)),
            ("-w", Duration(-15_000)),
            ("+n", 5),
            ("t - u + w", Duration(55_000)),
            ("'a' + missing", None),
            ("'a' + 'b' + missing", None),
            ("'a' + 'b' + missing + 'c' + 'd'", None),
            ("'a' + s + ('b' + 'c')", "acbc"),
        ],
    )
    def test_arithmetic(self, expression: str, value: Value) -> None:
        """C#-like: integers stay integers and truncate, the remainder has the dividend's sign, an
        integer widens to double or decimal; strings join; dates and durations."""
        context = context_of(
            d=Decimal("2.5"),
            s=Symbol("c"),
            t=Timestamp(10),
            u=Timestamp(6),
            w=Duration(15_000),
            n=5,
        )
        got = applied(f"SET x = {expression}", context).properties["x"]
        assert (type(got), got) == (type(value), value)

    @pytest.mark.parametrize(
        "expression",
        ["1 / 0", "1 % 0", "1 / 0.0", "1.5 % 0", "d / 0", "d % 0.0", "d / (d - d)"],
    )
    def test_division_by_zero(self, expression: str) -> None:
        """Division by zero is an error, for every type of number."""
        with pytest.raises(FilterError, match="Division by zero"):
            truth(f"{expression} = 1", d=Decimal(2))

    @pytest.mark.parametrize(
        "expression",
        [
            "n + 1",
            "-(-n - 1)",
            "n * 2",
            "(-n - 1) / -1",
            "big + 0",
            "t + w",
            "w + w",
            "t - u",
        ],
    )
    def test_overflow(self, expression: str) -> None:
        """An integer that leaves 64 bits is an error, and never wraps."""
        top = 2**63 - 1
        with pytest.raises(FilterError, match="64 bits"):
            truth(
                f"{expression} = 1",
                n=top,
                big=2**64 - 1,
                t=Timestamp(top),
                u=Timestamp(-5),
                w=Duration(top),
            )

    @pytest.mark.parametrize(
        "expression",
        [
            "'a' + 1",
            "1 + 'a'",
            "'a' * 2",
            "'a' - 'a'",
            "TRUE + 1",
            "t * 2",
            "w + t",
            "t + t",
            "-'a'",
            "-TRUE",
            "-t",
            "i + i",
            "b + b",
            "w * 2",
        ],
    )
    def test_arithmetic_of_unrelated_types(self, expression: str) -> None:
        """There is no implicit conversion: it is an error."""
        with pytest.raises(FilterError, match="does not apply"):
            truth(f"{expression} = 1", t=Timestamp(1), w=Duration(1), i=UUID(int=1), b=b"x")

    def test_decimals_stay_in_bounds(self) -> None:
        """A decimal that leaves decimal128 is an error, a NaN compares like a double's."""
        with pytest.raises(FilterError, match="Overflow"):
            truth("d * d = 1", d=Decimal("1E+6000"))
        for text in ("NaN", "sNaN"):
            assert truth("d = d", d=Decimal(text)) is False
            assert truth("d <> 1", d=Decimal(text)) is True
            assert truth("d < 1", d=Decimal(text)) is False
            assert truth("d < 1.5", d=Decimal(text)) is False

    def test_numbers_compare_across_types(self) -> None:
        """Any integer, double or decimal of the same value is equal."""
        assert (
            truth("n = 3.0 AND n = d AND d = 3.0 AND n < 3.5 AND d < 4", n=3, d=Decimal(3)) is True
        )
        assert truth("n > 9223372036854775807", n=2**64 - 1) is True
        assert truth("n = 9007199254740992.0", n=2**53 + 1) is True
        assert truth("price = 9.99", price=Decimal("9.99")) is True

    @pytest.mark.parametrize("value", [1, 1.0, True, b"1", UUID(int=1), Timestamp(1), Duration(1)])
    def test_unrelated_types(self, value: Value) -> None:
        """Comparing unrelated types: `=` is false, `<>` is true, an order is unknown."""
        assert truth("x = '1'", x=value) is False
        assert truth("x <> '1'", x=value) is True
        assert truth("x < '1'", x=value) is None
        assert truth("x IN ('1')", x=value) is False

    def test_bool_is_no_number(self) -> None:
        """bool compares with bool, for equality."""
        assert truth("x = 1", x=True) is False
        assert truth("x = TRUE", x=1) is False
        assert truth("x = TRUE", x=True) is True
        assert truth("x <> TRUE", x=False) is True
        assert truth("x > FALSE", x=True) is None

    def test_strings_compare_ordinally(self) -> None:
        """By code point, not by any language; symbols are strings."""
        assert truth("x > 'Z' AND x < 'b'", x="a") is True
        assert truth("x = 'a' AND 'a' = x AND x IN ('a') AND x LIKE 'a'", x=Symbol("a")) is True

    def test_others_compare_for_equality(self) -> None:
        """uuid and binary are equal or not; dates and durations also have an order."""
        assert truth("x = y", x=UUID(int=1), y=UUID(int=1)) is True
        assert truth("x < y", x=UUID(int=1), y=UUID(int=2)) is None
        assert truth("x = y", x=b"a", y=b"a") is True
        assert truth("x < y", x=b"a", y=b"b") is None
        assert truth("x < y", x=Timestamp(1), y=Timestamp(2)) is True
        assert truth("x < y", x=Duration(1), y=Duration(2)) is True
        assert truth("x = y", x=Timestamp(1), y=Duration(1)) is False

    def test_long_strings(self) -> None:
        """A string that outgrows a property's bound is an error."""
        half = MAX_PROPERTY_VALUE // 2
        assert truth("a + a = 'x'", a="y" * half) is False
        with pytest.raises(FilterError, match="characters"):
            truth("a + a = 'x'", a="y" * (half + 1))
        with pytest.raises(FilterError, match="characters"):
            truth("a + a + a = 'x'", a="y" * half)


class TestLike:
    """LIKE in 11.4."""

    @pytest.mark.parametrize(
        ("text", "pattern", "expected"),
        [
            ("abc", "abc", True),
            ("abc", "ABC", False),
            ("abc", "a%", True),
            ("abc", "%c", True),
            ("abc", "%b%", True),
            ("abc", "a_c", True),
            ("abc", "a_", False),
            ("abc", "___", True),
            ("abc", "____", False),
            ("abc", "%", True),
            ("", "%", True),
            ("", "", True),
            ("", "_", False),
            ("abc", "", False),
            ("abab", "%ab", True),
            ("aba", "ab%ba", False),
            ("aba", "%ab%ba%", False),
            ("xab", "%a_b", False),
            ("xaabb", "%a_b%", True),
            ("aXbaYbc", "%a_bc", True),
            ("aXbaYbc", "%a_b%a_b_", True),
            ("abcabd", "%_b_a%", True),
            ("日本語", "_本%", True),
            ("baxb", "%a_b_%", False),
            ("baxbc", "%a_b_%", True),
            ("a\nb", "a_b", True),
            ("a.c", "a.c", True),
            ("abc", "a.c", False),
            ("x" * 300 + "y" * 200, "%" + "x" * 150 + "y%", True),
            ("x" * 149 + "y", "%" + "x" * 150 + "y%", False),
            ("x" * 170, "%" + "x" * 80 + "\0" * 80 + "%", False),
            ("x" * 150 + "\0" * 80, "%" + "x" * 80 + "\0" * 80 + "%", True),
        ],
    )
    def test_patterns(self, text: str, pattern: str, expected: bool) -> None:
        """`%` is any run, `_` one character, all else itself; case matters."""
        assert truth(f"x LIKE '{pattern}'", x=text) is expected
        assert truth(f"x NOT LIKE '{pattern}'", x=text) is (not expected)
        assert truth("x LIKE y", x=text, y=pattern) is expected

    def test_escape(self) -> None:
        """ESCAPE takes a one-character string; what follows it stands for itself."""
        assert truth(r"x LIKE '100\%' ESCAPE '\'", x="100%") is True
        assert truth(r"x LIKE '100\%' ESCAPE '\'", x="1000") is False
        assert truth("x LIKE 'a!_b!!' ESCAPE '!'", x="a_b!") is True
        assert truth("x LIKE 'a%b%%' ESCAPE '%'", x="ab%") is True
        assert truth("x LIKE 'a!%' ESCAPE e", x="a%", e="!") is True

    @pytest.mark.parametrize(
        "text", ["x LIKE 'a' ESCAPE ''", "x LIKE 'a' ESCAPE '!!'", "x LIKE y ESCAPE 5"]
    )
    def test_wrong_escape(self, text: str) -> None:
        """Another escape is refused with the rule, or fails with the message."""
        with pytest.raises(FilterError, match="one character"):
            compile_filter(text)
        with pytest.raises(FilterError, match="one character"):
            truth("x LIKE 'a' ESCAPE e", x="a", e="!!")

    def test_dangling_escape(self) -> None:
        """A pattern that ends with its escape character is wrong."""
        with pytest.raises(FilterError, match="ends with"):
            compile_filter("x LIKE 'a!' ESCAPE '!'")
        with pytest.raises(FilterError, match="ends with"):
            truth("x LIKE y ESCAPE '!'", x="a", y="a!")

    def test_what_is_no_string(self) -> None:
        """The left side must be a string, else it is unknown; so with the pattern."""
        assert truth("x LIKE '5'", x=5) is None
        assert truth("x NOT LIKE '5'", x=5) is None
        assert truth("x LIKE 5", x="5") is None

    def test_long_pattern(self) -> None:
        """A property as pattern is bounded like a text."""
        with pytest.raises(FilterError, match="pattern is longer"):
            truth("x LIKE y", x="a", y="a" * 1025)


class TestEdits:
    def test_filters_see_edits(self) -> None:
        """What already lies over the message is what a filter sees."""
        message = SampleMessage({"a": 1, "b": 2}, label="old")
        edits = Edits({"a": 5, "c": 6}, frozenset({"b"}), {"Label": "new", "To": "there"})
        context = context_of(message, edits=edits)
        text = "a = 5 AND B IS NULL AND C = 6 AND sys.Label = 'new' AND sys.To = 'there'"
        assert compile_filter(text).matches(context) is True
        assert compile_filter("EXISTS(b)").matches(context) is False


class TestActions:
    """11.6."""

    def test_set_creates_and_replaces(self) -> None:
        """SET creates or replaces; a name that differs in case is the same property."""
        edits = applied(
            "SET a = 1; SET [new one] = 'x' SET COLOR = 'blue';", context_of(color="red")
        )
        assert edits == Edits({"a": 1, "new one": "x", "color": "blue"})

    def test_remove(self) -> None:
        """REMOVE takes away; of a missing user property it is no error."""
        assert applied("REMOVE COLOR", context_of(color="red")) == Edits({}, frozenset({"color"}))
        assert applied("REMOVE missing", context_of(color="red")) == Edits()
        assert applied("REMOVE color REMOVE color", context_of(color="red")).removed == {"color"}

    def test_order(self) -> None:
        """Statements run in order and see earlier effects."""
        edits = applied("SET a = n + 1; SET b = a * 10; REMOVE n; SET c = n", context_of(n=1))
        assert edits == Edits({"a": 2, "b": 20, "c": None}, frozenset({"n"}))
        edits = applied("SET sys.Label = 'x'; SET a = sys.Subject + 'y'", context_of())
        assert edits == Edits({"a": "xy"}, system={"Label": "x"})
        assert applied("SET a = 1; REMOVE a", context_of()) == Edits()
        assert applied("SET a = 1; SET A = a + 1; SET b = A", context_of()) == Edits(
            {"a": 2, "b": 2}
        )
        assert applied("REMOVE a; SET A = 2", context_of(a=1)) == Edits({"A": 2}, frozenset({"a"}))
        assert applied("REMOVE a; SET a = 'x'", context_of(a=1)) == Edits({"a": "x"})

    def test_edits_go_over_edits(self) -> None:
        """The result is for laying over what the context already has."""
        before = Edits({"a": 1}, frozenset({"b"}), {"To": "x"})
        context = context_of(SampleMessage({"b": 5}), edits=before)
        after = applied("SET A = a + 1; SET b = b; SET sys.To = sys.To + 'y'", context)
        assert after == Edits({"a": 2, "b": None}, system={"To": "xy"})
        assert before.then(after) == Edits({"a": 2, "b": None}, system={"To": "xy"})
        assert context.edits is before

    def test_conversion(self) -> None:
        """SET converts to the existing type where that is implicit; else the type changes."""
        context = context_of(f=1.5, d=Decimal(1), s=Symbol("x"), t="text", n=1, z=None)
        statements = "SET f = 2; SET d = 3; SET s = 'y'; SET t = 5; SET n = 2.5; SET z = 1"
        edits = applied(statements, context).properties
        assert edits == {"f": 2.0, "d": Decimal(3), "s": Symbol("y"), "t": 5, "n": 2.5, "z": 1}
        kinds = [type(value) for value in edits.values()]
        assert kinds == [float, Decimal, Symbol, int, float, int]

    def test_null_is_stored(self) -> None:
        """A null or unknown value stores null; the property exists."""
        edits = applied("SET a = NULL; SET b = missing + 1", context_of(a=1))
        assert edits == Edits({"a": None, "b": None})

    def test_writable_system_properties(self) -> None:
        """The eleven that can be written, by text or by their type; NULL clears."""
        names = ["MessageId", "CorrelationId", "ContentType", "Label", "To", "ReplyTo", "SessionId"]
        names += ["ReplyToSessionId", "PartitionKey"]
        for name in names:
            assert applied(f"SET sys.{name} = 'x'", context_of()).system == {name: "x"}
            assert applied(f"SET sys.{name} = NULL", context_of()).system == {name: None}
        assert applied("SET sys.subject = 'x'", context_of()).system == {"Label": "x"}
        assert applied("SET sys.MessageId = newid()", context_of()).system == {
            "MessageId": str(UUID(int=1))
        }
        assert applied("SET sys.SessionId = 7", context_of()).system == {"SessionId": "7"}
        given: dict[str, Value] = {"ttl": Duration(5), "at": Timestamp(6)}
        text = "SET sys.TimeToLive = @ttl; SET sys.ScheduledEnqueueTimeUtc = @at"
        assert applied(text, context_of(), given).system == {
            "TimeToLive": Duration(5),
            "ScheduledEnqueueTimeUtc": Timestamp(6),
        }

    @pytest.mark.parametrize(
        "text",
        [
            "SET sys.TimeToLive = 5",
            "SET sys.ScheduledEnqueueTimeUtc = 'now'",
            "SET sys.Label = TRUE",
            "SET sys.Label = 1.5",
            "SET sys.MessageId = long + long",
            "SET a = p('sys.' + 'None')",
            "SET a = 1 / 0",
        ],
    )
    def test_failures(self, text: str) -> None:
        """A wrong type, a long id, an unknown system property, bad arithmetic: the action fails."""
        with pytest.raises(FilterError):
            applied(text, context_of(long="x" * 65))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            ";",
            "SET a = 1;;",
            "SET sys.SequenceNumber = 1",
            "SET sys.EnqueuedTimeUtc = NULL",
            "SET sys.ViaPartitionKey = 'x'",
            "SET sys.Nothing = 1",
            "REMOVE sys.Nothing",
            "REMOVE sys.Label",
            "SET a = (b = 1)",
            "SET a = b = 1",
            "SET a",
            "SET = 1",
            "SET 'a' = 1",
            "REMOVE",
            "UPDATE a = 1",
            "a = 1",
            "SET a = 1, SET b = 2",
        ],
    )
    def test_what_is_refused(self, text: str) -> None:
        """What is no action, or writes what cannot be written, is refused with the rule."""
        with pytest.raises(FilterError):
            compile_action(text)

    def test_statements(self) -> None:
        """32 statements, and no more."""
        assert (
            len(applied(" ".join(f"SET a{n}=1" for n in range(32)), context_of()).properties) == 32
        )
        with pytest.raises(FilterError, match="32 statements"):
            compile_action(" ".join(f"SET a{n}=1" for n in range(33)))

    def test_set_and_remove_are_names_elsewhere(self) -> None:
        """They are no keywords."""
        assert applied("SET set = remove REMOVE remove", context_of(remove=1)) == Edits(
            {"set": 1}, frozenset({"remove"})
        )
