"""Random cases for the SQL filter language: messages, filters, actions, and broken ones of each.

Here lives the generator only; `test_sql_agrees.py` runs what it makes. The rule: a case is a
function of its seed and number, so a disagreement can be named and repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from uuid import UUID

from tandembus.model import Duration, Edits, MessageId, Symbol, Timestamp, Value
from tests.unit.core.sql_sample import SampleMessage

NAMES = ["color", "Size", "price", "flag", "sent", "wait", "id", "bin", "Größe", "in", "a]b"]
TEXTS = ["", "a", "red", "Red", "aab", "abab", "a%b", "a_b", "x'y", "日本", "aaaaaaaab", "100%"]
INTEGERS = [0, 1, -1, 2, 3, 7, -7, 10, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 0.5, 1.0, 2.0, -7.0, 1e300, 2.0**53, math.inf, math.nan]
DECIMALS = [Decimal("0"), Decimal("0.5"), Decimal("3"), Decimal("-7.25"), Decimal("1E+30")]
IDS = [UUID(int=1), UUID(int=2), UUID("12345678-1234-5678-1234-567812345678")]
TIMES: list[Value] = [Timestamp(0), Timestamp(1_600_000_000_000), Duration(15_000_000)]
OTHERS: list[Value] = [*IDS, b"", b"ab", Symbol("red"), Duration(-7)]
SYSTEM = [
    *("MessageId CorrelationId ContentType Label Subject To ReplyTo SessionId".split()),
    *("ReplyToSessionId PartitionKey ViaPartitionKey TimeToLive EnqueuedTimeUtc".split()),
    *("ScheduledEnqueueTimeUtc ExpiresAtUtc SequenceNumber DeliveryCount State Size".split()),
]
JUNK: list[str] = [*"'()].@!5é_-", ""]
COMPARISONS = ["=", "<>", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Case:
    text: str
    is_action: bool
    parameters: Mapping[str, Value]
    message: SampleMessage
    facts: Mapping[str, Value]
    edits: Edits


class Generator:
    """What one seed gives."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # values

    def value(self) -> Value:
        choose = self.random.choice
        match self.random.randrange(12):
            case 0 | 1 | 2:
                return choose(TEXTS)
            case 3 | 4 | 5:
                return choose(INTEGERS)
            case 6:
                return choose(DOUBLES)
            case 7:
                return choose(DECIMALS)
            case 8:
                return choose([True, False])
            case 9:
                return choose(TIMES)
            case 10:
                return choose(OTHERS)
            case _:
                return None

    def properties(self) -> dict[str, Value]:
        names = self.random.sample(NAMES, self.random.randrange(len(NAMES) + 1))
        found = {self.cased(name): self.value() for name in names}
        typical: dict[str, Value] = {
            "color": self.random.choice(TEXTS),
            "Size": self.random.choice(INTEGERS),
            "price": self.random.choice(DOUBLES),
            "flag": self.chance(0.5),
            "sent": self.random.choice([Timestamp(-5), Timestamp(1_600_000_000_000)]),
            "wait": self.random.choice([Duration(15_000), Duration(-7), Duration(2**62)]),
        }
        for name, value in typical.items():
            if self.chance(0.6):
                found[name] = value
        return found

    def message(self) -> SampleMessage:
        def text() -> str | None:
            return self.random.choice([None, *TEXTS])

        def identifier() -> MessageId | None:
            return self.random.choice([None, "a", "red", 7, b"ab", IDS[2]])

        return SampleMessage(
            properties=self.properties(),
            message_id=identifier(),
            correlation_id=identifier(),
            content_type=text(),
            label=text(),
            to=text(),
            reply_to=text(),
            session_id=text(),
            reply_to_session_id=text(),
            partition_key=text(),
            via_partition_key=text(),
            ttl_ms=self.random.choice([None, 0, 1500]),
            scheduled_ms=self.random.choice([None, 1_600_000_000_000]),
        )

    def edits(self) -> Edits:
        if self.chance(0.7):
            return Edits()
        set_ = {self.random.choice(NAMES): self.value() for _ in range(2)}
        removed = frozenset(self.random.sample(NAMES, 2)) - set_.keys()
        return Edits(set_, removed, {"Label": self.random.choice([None, "red"])})

    # text

    def cased(self, word: str) -> str:
        return self.random.choice([word, word, word.upper(), word.lower()])

    def property(self) -> str:
        if self.chance(0.15):
            return f"{self.cased('sys')}.{self.cased(self.random.choice(SYSTEM))}"
        name = self.random.choice(NAMES)
        if name in ("in", "a]b") or self.chance(0.1):
            quoted = self.random.choice([f"[{name.replace(']', ']]')}]", f'"{name}"'])
        else:
            quoted = self.cased(name)
        return quoted if self.chance(0.85) else f"user.{quoted}"

    def text(self, content: str) -> str:
        return "'" + content.replace("'", "''") + "'"

    def constant(self) -> str:
        choose = self.random.choice
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return self.text(choose(TEXTS))
            case 3 | 4:
                return str(choose(INTEGERS))
            case 5:
                return choose(["0.5", "2.0", ".5", "1e2", "1.5E-3", "7.", "9007199254740992.0"])
            case 6:
                return self.cased(choose(["TRUE", "FALSE", "NULL"]))
            case _:
                return choose(["@one", "@Two", "@three", "@four"])

    def expression(self, depth: int) -> str:
        if depth <= 0 or self.chance(0.35):
            return self.property() if self.chance(0.6) else self.constant()
        match self.random.randrange(12):
            case 0:
                return f"({self.expression(depth - 1)})"
            case 1:
                return f"{self.random.choice('+-')} {self.expression(depth - 1)}"
            case 2:
                argument = self.random.choice(
                    ["'color'", "'sys.Label'", "'SYS.size'", "'sys.nothing'", "'user.Size'"]
                )
                if self.chance(0.4):
                    argument = self.expression(depth - 1)
                return f"{self.random.choice(['p', 'property'])}({argument})"
            case 3:
                return "newid()"
            case 4 | 5:
                a, b = self.random.choice(TEXTS), self.property()
                return f"{self.text(a)} + {b}" if self.chance(0.5) else f"{b} + {self.text(a)}"
            case 6:
                terms = ["'a'", "color", "sys.Label", "@three", "''", "Größe"]
                return " + ".join(self.random.choice(terms) for _ in range(4))
            case 7 | 8:
                terms = ["sent", "wait", "sys.TimeToLive", "sys.EnqueuedTimeUtc"]
                first, second, third = (self.random.choice(terms) for _ in range(3))
                return (
                    f"{first} - {second} + {third}" if self.chance(0.3) else f"{first} - {second}"
                )
            case 9 | 10:
                sign = self.random.choice("+-*/%")
                return f"{self.number(depth - 1)} {sign} {self.number(depth - 1)}"
            case _:
                sign = self.random.choice("+-*/%")
                return f"{self.expression(depth - 1)} {sign} {self.expression(depth - 1)}"

    def number(self, depth: int) -> str:
        if depth > 0 and self.chance(0.4):
            return f"({self.number(depth - 1)} {self.random.choice('+-*/%')} {self.number(0)})"
        return self.random.choice(["Size", "price", "1", "2", "7", "-7", "-3", "0.5", "@one", "0"])

    def pattern(self) -> str:
        length = self.random.randrange(7)
        return "".join(self.random.choice("%%__aabr!") for _ in range(length))

    def condition(self, depth: int) -> str:
        if depth > 0 and self.chance(0.55):
            match self.random.randrange(4):
                case 0:
                    return f"{self.cased('NOT')} {self.condition(depth - 1)}"
                case 1:
                    return f"({self.condition(depth - 1)})"
                case _:
                    word = self.cased(self.random.choice(["AND", "OR"]))
                    return f"{self.condition(depth - 1)} {word} {self.condition(depth - 1)}"
        return self.predicate(depth)

    def predicate(self, depth: int) -> str:
        negated = "NOT " if self.chance(0.3) else ""
        match self.random.randrange(12):
            case 0:
                return f"{self.property()} IS {negated}NULL"
            case 1:
                return f"EXISTS ({self.property()})"
            case 2:
                items = [self.expression(0) for _ in range(self.random.randrange(1, 5))]
                return f"{self.expression(depth)} {negated}IN ({', '.join(items)})"
            case 3 | 4:
                pattern = self.text(self.pattern()) if self.chance(0.85) else self.expression(1)
                escape = f" ESCAPE {self.random.choice(['@esc', self.text('!')])}"
                if self.chance(0.6):
                    escape = ""
                elif self.chance(0.1):
                    escape = f" ESCAPE {self.expression(0)}"
                left = self.property() if self.chance(0.3) else "color"
                return f"{left} {negated}LIKE {pattern}{escape}"
            case 5:
                return self.random.choice(["flag", "TRUE", "FALSE", "@four", self.property()])
            case 6 | 7:
                compared = self.random.choice(COMPARISONS)
                return f"{self.number(depth)} {compared} {self.number(depth)}"
            case 8:
                return f"color {self.random.choice(COMPARISONS)} {self.text('red')}"
            case _:
                compared = self.random.choice(COMPARISONS)
                return f"{self.expression(depth)}{compared}{self.expression(depth)}"

    def statement(self) -> str:
        if self.chance(0.25):
            return f"{self.cased('REMOVE')} {self.property()}"
        target = self.property()
        if self.chance(0.25):
            target = f"sys.{self.random.choice(SYSTEM)}"
        value = self.number(2) if self.chance(0.3) else self.expression(2)
        return f"{self.cased('SET')} {target} = {value}"

    def action(self) -> str:
        statements = [self.statement() for _ in range(self.random.choice([1, 1, 2, 3, 5]))]
        return self.random.choice(["; ", " ", ";"]).join(statements)

    def nested(self) -> str:
        """Around the bound on depth."""
        depth = self.random.randrange(28, 36)
        head = self.random.choice(["(", "NOT ", "- ", "(-", "p("])
        return head * depth + "flag" + ")" * (depth * head.count("(")) + " = 1" * self.chance(0.5)

    def broken(self, text: str) -> str:
        """A text with one thing changed: often wrong, sometimes right in another way."""
        places = text.split(" ")
        at = self.random.randrange(len(places))
        match self.random.randrange(4):
            case 0:
                del places[at]
            case 1:
                places.insert(at, self.random.choice(["AND", "NOT", "(", ")", "=", ",", "'", "IN"]))
            case 2:
                other = self.random.randrange(len(places))
                places[at], places[other] = places[other], places[at]
            case _:
                joined = " ".join(places)
                at = self.random.randrange(len(joined) + 1)
                junk = self.random.choice(JUNK)
                return joined[:at] + junk + joined[at + 1 :]
        return " ".join(places)

    def case(self) -> Case:
        is_action = self.chance(0.25)
        if is_action:
            text = self.action()
        elif self.chance(0.02):
            text = self.nested()
        else:
            text = self.condition(self.random.choice([0, 1, 1, 2, 3, 4]))
        if self.chance(0.15):
            text = self.broken(text)
        parameters: dict[str, Value] = {
            "@one": self.random.choice(INTEGERS),
            "two": self.value(),
            "@Three": self.random.choice(TEXTS),
            "@four": self.random.choice([True, False, None, Timestamp(5)]),
            "@esc": "!",
        }
        facts: dict[str, Value] = {
            "EnqueuedTimeUtc": Timestamp(1_600_000_000_000),
            "SequenceNumber": 7,
            "DeliveryCount": 0,
            "Size": 100,
        }
        return Case(text, is_action, parameters, self.message(), facts, self.edits())
