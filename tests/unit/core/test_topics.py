"""Topics: who gets a copy, how many, and what is changed on it (T16)."""

from __future__ import annotations

import pytest

from tandembus import limits
from tandembus.changes import Note, Noted
from tandembus.core.commands import (
    AddRule,
    Attach,
    CreateSubscription,
    RemoveRule,
    UpdateRule,
)
from tandembus.core.rules import CorrelationFilter, FalseFilter, Rule, TrueFilter
from tandembus.errors import (
    ArgumentError,
    EntityExistsError,
    EntityNotFoundError,
    FilterError,
    NotAllowedError,
    QuotaExceededError,
)
from tests.unit.core.world import World, message, rule

RED = {"colour": "red"}
BLUE = {"colour": "blue"}


def copies(world: World, path: str) -> list[tuple[str, object]]:
    """(body, RuleName) of each copy."""
    seen = [world.read(each) for each in world.browse(path)]
    return [(each.body, each.properties.get("RuleName")) for each in seen]


@pytest.mark.req("T16")
def test_every_subscription_gets_a_copy(lived: World) -> None:
    """Of its own: settled, deferred or dead-lettered in one, it stays in the others."""
    lived.topic("t")
    one, two, three = [lived.subscription("t", name) for name in ("one", "two", "three")]
    lived.send("t", "a", "b")
    lived.lull()
    assert lived.waiting("t") == []
    lived.complete(one, lived.receive_one(one))
    lived.dead_letter(two, lived.receive_one(two), reason="why")
    lived.lull()
    assert [lived.waiting(path) for path in (one, two, three)] == [["b"], ["b"], ["a", "b"]]
    assert lived.dead_reasons(two) == [("a", "why")]


@pytest.mark.req("T16")
def test_two_thousand_subscriptions(world: World) -> None:
    """Each gets its copy; the 2,001st subscription is refused."""
    world.topic("t")
    for n in range(2_000):
        world.do(CreateSubscription("t", f"s{n}", rule=rule("odd", f"n = {n}") if n % 2 else None))
    with pytest.raises(QuotaExceededError):
        world.do(CreateSubscription("t", "one-too-many"))
    with pytest.raises(QuotaExceededError):
        world.do(CreateSubscription("t", "s2000"))
    world.send("t", "a", properties={"n": 1_999})
    found = [len(queue.browse(0, 9, None)) for queue in world.namespace.subscriptions("t").values()]
    assert found == [1, 0] * 999 + [1, 1]
    world.delete("t/Subscriptions/s7")
    world.do(CreateSubscription("t", "s2000"))
    world.delete("t")
    assert world.freed == set(world.payloads)
    assert len(world.namespace.entities) == 0


@pytest.mark.req("T16")
def test_rules_without_action_give_one_copy(lived: World) -> None:
    """However many of them match."""
    lived.topic("t")
    path = lived.subscription("t", "s", rule("red", "colour = 'red'"))
    lived.add_rule(path, rule("any colour", "colour IS NOT NULL"))
    lived.add_rule(path, rule("all", TrueFilter()))
    lived.lull()
    lived.send("t", "a", properties=RED)
    assert copies(lived, path) == [("a", None)]


@pytest.mark.req("T16")
def test_each_matching_rule_with_action_gives_a_copy(lived: World) -> None:
    """With its action's changes and its name; beside them one copy for all the others."""
    lived.topic("t")
    path = lived.subscription("t", "s")
    lived.add_rule(path, rule("stamp", "colour = 'red'", "SET stamped = 1"))
    lived.add_rule(path, rule("paint", "colour = 'red'", "SET colour = 'green'; REMOVE size"))
    lived.add_rule(path, rule("never", "colour = 'blue'", "SET x = 1"))
    lived.add_rule(path, rule("red", "colour = 'red'"))
    lived.lull()
    lived.send("t", "a", properties={"colour": "red", "size": 3})
    lived.lull()
    seen = [dict(lived.read(each).properties) for each in lived.browse(path)]
    assert seen == [
        {"colour": "red", "size": 3},
        {"colour": "red", "size": 3, "stamped": 1, "RuleName": "stamp"},
        {"colour": "green", "RuleName": "paint"},
    ]


@pytest.mark.req("T16")
def test_an_action_changes_only_its_copy(lived: World) -> None:
    """Other copies of the subscription, other subscriptions and later messages are as they were
    sent. System properties can be changed, too."""
    lived.topic("t")
    acting = lived.subscription(
        "t", "acting", rule("act", TrueFilter(), "SET sys.Label = 'new'; SET n = n + 1")
    )
    plain = lived.subscription("t", "plain")
    sent = message("a", label="old", properties={"n": 1})
    lived.send("t", sent)
    lived.send("t", sent)
    lived.lull()
    for each in lived.browse(acting):
        seen = lived.read(each)
        assert (seen.message.label, seen.properties["n"], seen.body) == ("new", 2, "a")
    for each in lived.browse(plain):
        seen = lived.read(each)
        assert (seen.message.label, dict(seen.properties)) == ("old", {"n": 1})
    assert sent.payload in lived.payloads.values()


@pytest.mark.req("T16")
def test_an_action_that_gives_a_session_id(lived: World) -> None:
    """Takes the copy into that session: what a rule sets is what counts from then on."""
    lived.topic("t")
    path = lived.subscription(
        "t",
        "s",
        rule("by colour", TrueFilter(), "SET sys.SessionId = colour"),
        requires_session=True,
    )
    lived.send("t", "a", properties=RED)
    lived.send("t", "b", properties=BLUE)
    lived.lull()
    accepted = lived.accept_session(path, "blue")
    (delivery,) = lived.take(accepted.link)
    assert lived.read(delivery).message.session_id == "blue"
    assert lived.dead(path) == []


@pytest.mark.req("T16")
def test_no_match_no_copy(lived: World) -> None:
    """A false filter, no matching rule, no rule at all: nothing; the journal notes a message that
    nobody wanted, and its body is freed."""
    lived.topic("t")
    never = lived.subscription("t", "never", rule("never", FalseFilter()))
    red = lived.subscription("t", "red", rule("red", "colour = 'red'"))
    none = lived.subscription("t", "none")
    lived.do(RemoveRule(none, "$Default"))
    lived.lull()
    assert lived.send("t", "a", properties=BLUE) == [1]
    assert [lived.waiting(path) for path in (never, red, none)] == [[], [], []]
    noted = [c for c in lived.changes if isinstance(c, Noted)]
    assert (noted[-1].note, noted[-1].number) == (Note.NO_SUBSCRIPTION, 1)
    assert lived.freed == set(lived.payloads)


@pytest.mark.req("T16")
@pytest.mark.parametrize(
    ("wanted", "is_taken"),
    [
        (CorrelationFilter(correlation_id="c"), True),
        (CorrelationFilter(correlation_id="C"), False),
        (CorrelationFilter(correlation_id="c", label="l"), True),
        (CorrelationFilter(correlation_id="c", label="other"), False),
        (CorrelationFilter(label="l", properties={"colour": "red"}), True),
        (CorrelationFilter(label="l", properties={"colour": "blue"}), False),
        (CorrelationFilter(properties={"size": 3}), True),
        (CorrelationFilter(properties={"size": "3"}), False),
        (CorrelationFilter(to="somewhere"), False),
        (CorrelationFilter(message_id="m", session_id="s", content_type="text"), True),
    ],
)
def test_correlation_filters(world: World, wanted: CorrelationFilter, is_taken: bool) -> None:
    """Every field that is set must be equal, case and type included."""
    world.topic("t")
    path = world.subscription("t", "s", rule("correlated", wanted))
    world.restart()
    world.send(
        "t",
        "a",
        correlation_id="c",
        message_id="m",
        session_id="s",
        label="l",
        content_type="text",
        properties={"colour": "red", "size": 3},
    )
    assert world.waiting(path) == (["a"] if is_taken else [])


@pytest.mark.req("T16")
def test_a_filter_that_fails(lived: World) -> None:
    """Counts as no match; the message goes to the subscription's dead-letter queue, if the
    subscription says so, and to the others as ever."""
    failing = rule("failing", "colour / 0 = 1")
    lived.topic("t")
    strict = lived.subscription("t", "strict", failing)
    lenient = lived.subscription("t", "lenient", failing, dead_letter_on_filter_error=False)
    other = lived.subscription("t", "other")
    lived.send("t", "a", properties={"colour": 1})
    lived.lull()
    assert lived.dead_reasons(strict) == [("a", "FilterEvaluationException")]
    assert lived.dead(lenient) == []
    assert [lived.waiting(path) for path in (strict, lenient, other)] == [[], [], ["a"]]


@pytest.mark.req("T16")
def test_adding_and_removing_rules(lived: World) -> None:
    """They hold for what is sent afterwards."""
    lived.topic("t")
    path = lived.subscription("t", "s")
    assert [each.name for each in lived.namespace.rules(path)] == ["$Default"]
    lived.send("t", "a", properties=BLUE)
    lived.add_rule(path, rule("red", "colour = 'red'"))
    lived.do(RemoveRule(path, "$Default"))
    lived.lull()
    lived.send("t", "b", properties=BLUE)
    lived.send("t", "c", properties=RED)
    assert lived.waiting(path) == ["a", "c"]
    lived.refused(EntityExistsError, AddRule(path, rule("RED", "1=1")))
    lived.refused(EntityNotFoundError, RemoveRule(path, "$Default"))
    lived.refused(FilterError, AddRule(path, rule("bad", "colour = = 'red'")))
    lived.refused(FilterError, AddRule(path, rule("bad", TrueFilter(), "SET")))
    lived.refused(NotAllowedError, AddRule("t", rule("x", "1=1")))
    lived.refused(
        FilterError, CreateSubscription("t", "other", rule=rule("bad", "colour = = 'red'"))
    )
    assert f"{path}/other" not in lived.namespace


@pytest.mark.req("T16")
def test_updating_a_rule(lived: World) -> None:
    """Another filter and action under the same name, in any case, for what is sent afterwards."""
    lived.topic("t")
    path = lived.subscription("t", "s", rule("Colour", "colour = 'blue'"))
    lived.add_rule(path, rule("none", FalseFilter()))
    lived.send("t", "a", properties=RED)
    lived.do(UpdateRule(path, rule("colour", "colour = 'red'", "SET seen = 1")))
    lived.lull()
    assert {each.name for each in lived.namespace.rules(path)} == {"none", "colour"}
    lived.send("t", "b", properties=RED)
    lived.send("t", "c", properties=BLUE)
    assert copies(lived, path) == [("b", "colour")]
    lived.refused(EntityNotFoundError, UpdateRule(path, rule("other", "1=1")))
    lived.refused(FilterError, UpdateRule(path, rule("colour", "colour = = 'red'")))
    lived.refused(NotAllowedError, UpdateRule("t", rule("colour", "1=1")))


@pytest.mark.req("T16")
def test_filters_are_counted(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all subscriptions; true and false are SQL. An update of the same kind always fits."""
    lived.topic("t")
    one, two = lived.subscription("t", "one"), lived.subscription("t", "two")
    lived.add_rule(one, rule("sql", "n = 1"))
    lived.add_rule(two, rule("correlated", CorrelationFilter(label="x")))
    lived.lull()
    assert lived.namespace.filter_counts("T") == (3, 1)
    monkeypatch.setattr(limits, "MAX_SQL_RULES_PER_TOPIC", 1)
    lived.do(UpdateRule(one, rule("sql", "n = 2")))
    lived.refused(QuotaExceededError, UpdateRule(two, rule("correlated", "n = 3")))


@pytest.mark.req("T16")
def test_sql_rules_of_a_topic_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is run for each message, so they have a limit of their own beside that of
    correlation rules, which are only looked up; over all subscriptions together."""
    assert limits.MAX_SQL_RULES_PER_TOPIC == 2_000
    monkeypatch.setattr(limits, "MAX_SQL_RULES_PER_TOPIC", 3)
    world.topic("t")
    one = world.subscription("t", "one", rule("sql", "n = 1"))
    two = world.subscription("t", "two")
    world.add_rule(one, rule("sql 2", "n = 2"))
    world.add_rule(two, rule("sql 3", "n = 3"))
    for n in range(5):
        world.add_rule(two, rule(f"correlated {n}", CorrelationFilter(label=str(n))))
    world.refused(QuotaExceededError, AddRule(one, rule("sql 4", "n = 4")))
    command = CreateSubscription("t", "three", rule=rule("sql 4", "n = 4"))
    world.refused(QuotaExceededError, command)


def test_a_rule_has_a_name() -> None:
    """Of at most 50 characters (PRODUCT.md B.2)."""
    Rule("x" * 50, TrueFilter(), None, 0)
    for bad in ("", "x" * 51, "a/b"):
        with pytest.raises(ArgumentError, match="rule"):
            Rule(bad, TrueFilter(), None, 0)


@pytest.mark.req("T16")
def test_a_shared_body_is_freed_with_its_last_copy(lived: World) -> None:
    """Stored once, however many hold it: completed, purged by deletion, and in a dead-letter
    queue."""
    lived.topic("t")
    one, two, three = [lived.subscription("t", name) for name in ("one", "two", "three")]
    lived.add_rule(two, rule("second copy", TrueFilter(), "SET n = 1"))
    lived.send("t", "a")
    (body,) = lived.payloads
    lived.lull()
    lived.complete(one, lived.receive_one(one))
    lived.dead_letter(three, lived.receive_one(three))
    lived.lull()
    lived.complete(two, lived.receive_one(two))
    lived.delete("t/Subscriptions/three")
    assert lived.freed == set()
    lived.lull()
    lived.complete(two, lived.receive_one(two))
    assert lived.freed == {body}


@pytest.mark.req("T16")
def test_where_a_topic_is_not_a_queue(world: World) -> None:
    """Nobody receives from a topic, nobody sends to a subscription or a dead-letter queue."""
    world.topic("t")
    path = world.subscription("t", "s")
    world.queue("q")
    world.refused(NotAllowedError, Attach(1, "t"))
    world.refused(NotAllowedError, world.sending(path, "a"))
    world.refused(NotAllowedError, world.sending("q/$DeadLetterQueue", "a"))
    world.refused(NotAllowedError, CreateSubscription("q", "s"))
    world.refused(EntityNotFoundError, CreateSubscription("unknown", "s"))
    world.refused(EntityExistsError, CreateSubscription("t", "S"))


def test_a_waiting_receiver_of_a_subscription(world: World) -> None:
    """Has its copy at once, with a number of the subscription."""
    world.topic("t")
    world.send("t", "before")
    path = world.subscription("t", "s")
    link = world.attach(path)
    world.offer(link, 9)
    world.send("t", "a")
    (delivery,) = world.arrived(link)
    assert delivery.sequence_number == 1
