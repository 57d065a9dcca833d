"""The SQL filter language against a slow reference: random filters and actions, the same results.

`python -m tests.property.test_sql_agrees --cases 100000` is the long run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from tandembus.core.sql import Action, Context, Filter, compile_action, compile_filter
from tandembus.core.sql_like import Meter, compile_pattern
from tandembus.errors import FilterError
from tandembus.limits import MAX_SQL_STEPS
from tandembus.model import Duration, Timestamp, Value
from tests.property.sql_cases import Case, Generator
from tests.property.sql_reference import (
    Failure,
    Refusal,
    World,
    action_result,
    filter_result,
    like,
    pattern_signs,
)
from tests.repeat import repeat
from tests.unit.core.sql_sample import CountingIds

SEED = 20_260_901


def exact(values: Mapping[str, Value]) -> dict[str, str]:
    """Values with their types, so that 1, 1.0 and True differ and NaN equals itself."""
    return {name: f"{type(value).__name__} {value!r}" for name, value in values.items()}


def world_of(case: Case) -> World:
    """The message under its edits, worked out without the code under test."""
    properties = dict(case.message.properties)
    for name in case.edits.removed:
        properties.pop(name, None)
    properties.update(case.edits.properties)
    message = case.message
    system: dict[str, Any] = dict(case.facts)
    for name, identifier in (
        ("MessageId", message.message_id),
        ("CorrelationId", message.correlation_id),
    ):
        if isinstance(identifier, bytes):
            system[name] = identifier.hex()
        elif identifier is not None:
            system[name] = str(identifier)
    system["ContentType"] = message.content_type
    system["Label"] = message.label
    system["To"] = message.to
    system["ReplyTo"] = message.reply_to
    system["SessionId"] = message.session_id
    system["ReplyToSessionId"] = message.reply_to_session_id
    system["PartitionKey"] = message.partition_key
    system["ViaPartitionKey"] = message.via_partition_key
    if message.ttl_ms is not None:
        system["TimeToLive"] = Duration(message.ttl_ms * 10_000)
    if message.scheduled_ms is not None:
        system["ScheduledEnqueueTimeUtc"] = Timestamp(message.scheduled_ms)
    system.update(case.edits.system)
    return World(properties, system, CountingIds())


def expected(case: Case) -> object:
    world = world_of(case)
    try:
        if not case.is_action:
            return filter_result(case.text, dict(case.parameters), world)
        action_result(case.text, dict(case.parameters), world)
        return exact(world.properties), exact(world.system)
    except Refusal:
        return "refused"
    except Failure:
        return "failed"


def actual(case: Case) -> object:
    context = Context(case.message, case.facts, case.edits, CountingIds())
    program: Filter | Action
    try:
        if case.is_action:
            program = compile_action(case.text, case.parameters)
        else:
            program = compile_filter(case.text, case.parameters)
    except FilterError:
        return "refused"
    try:
        if isinstance(program, Filter):
            result = program.evaluate(context)
            assert program.steps <= MAX_SQL_STEPS
            again = Context(case.message, case.facts, case.edits, CountingIds())
            assert program.matches(again) is (result is True)
            return result
        edits = program.apply(context)
    except FilterError:
        return "failed"
    both = case.edits.then(edits)
    properties = {k: v for k, v in case.message.properties.items() if k not in both.removed}
    properties.update(both.properties)
    system = {**world_of(case).system, **both.system}
    return exact(properties), exact(system)


def disagreement(seed: int, outcomes: Counter[str]) -> str | None:
    """What is wrong with the case of this seed, or None."""
    case = Generator(seed).case()
    want, have = expected(case), actual(case)
    outcomes[want if isinstance(want, str) else "edited" if case.is_action else str(want)] += 1
    if want == have:
        return None
    return (
        f"seed {seed}: {case.text}\n  reference: {want}\n  tandem:    {have}\n"
        f"  message:   {case.message}\n  edits:     {case.edits}\n  parameters: {case.parameters}"
    )


@pytest.mark.req("T16")
def test_sql_agrees_with_a_slow_reference() -> None:
    """2,000 generated filters and actions end alike: refused, failed, true, false, unknown,
    edited."""
    outcomes: Counter[str] = Counter()
    seeds = range(SEED, SEED + 2_000)
    wrong = [found for seed in seeds if (found := disagreement(seed, outcomes))]
    assert not wrong, wrong[0]
    for outcome in ("True", "False", "None", "edited", "failed", "refused"):
        assert outcomes[outcome] >= 50, outcomes


def test_like_agrees_with_a_table() -> None:
    """Patterns and texts of few letters, where every mistake of the search shows; and pieces of
    over 100 characters, which are searched for in another way."""
    random = Random(SEED)
    matched = 0
    for number in range(6_000):
        length = 1 if number % 100 else random.randrange(95, 130)
        pattern = "".join(
            random.choice("aab%%__") * (length if random.random() < 0.3 else 1)
            for _ in range(random.randrange(9))
        )
        text = "".join(
            random.choice("ab") * (length if random.random() < 0.3 else 1)
            for _ in range(random.randrange(14))
        )
        result = compile_pattern(pattern, None).matches(text, Meter())
        assert result is like(text, pattern_signs(pattern, None)), (pattern, text)
        matched += result
    assert 1_000 < matched < 5_000, matched


def test_the_reference_can_disagree() -> None:
    """The comparison is not blind: a case whose message is changed on one side only is noticed."""
    noticed = 0
    for number in range(300):
        case = Generator(SEED + number).case()
        want = expected(case)
        case.message.properties = {"color": "changed"}
        noticed += want != actual(case)
    assert noticed > 50


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the SQL language with its reference.")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=SEED, help="the first seed")
    options = parser.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    wrong: list[int] = []
    for number in range(options.cases):
        found = disagreement(options.seed + number, outcomes)
        if found is not None:
            wrong.append(options.seed + number)
            print(found, file=sys.stderr)
        if (number + 1) % 10_000 == 0:
            print(f"{number + 1} of {options.cases} …", file=sys.stderr, flush=True)
    print(", ".join(f"{name.lower()} {count}" for name, count in outcomes.most_common()))
    print(f"{options.cases} cases, {len(wrong)} disagreements")
    return repeat("sql", "--seed", wrong[0], CASES=1) if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
