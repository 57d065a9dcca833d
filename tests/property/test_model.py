"""Core against the model: the same random commands to both, and all that can be seen compared.

Here live the runs, short (pytest) and long (`python -m tests.property.test_model --runs 2000
--steps 100`), and the canaries: cores broken on purpose, which prove that the judge would notice.
What is right is said in `model.py`, what is compared in `judge.py`, what is tried in `machine.py`.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tandembus.changes import Deferred, Enqueued, Return
from tandembus.core import commands as c
from tandembus.core import lifecycle
from tandembus.core.duplicates import Duplicates
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.core.ready import Next, Ready
from tandembus.core.state import State
from tandembus.errors import MessageLockLostError
from tandembus.settings import EntityStatus, QueueSettings
from tests.property.judge import MEANINGS, Judge, Letter, reduced
from tests.property.machine import COVERAGE, LAST, Machine
from tests.property.model import Item, Model
from tests.repeat import repeat

COMMANDS: Final = (
    *("CreateQueue", "CreateTopic", "CreateSubscription", "UpdateEntity", "DeleteEntity"),
    *("AddRule", "RemoveRule", "Send", "CancelScheduled", "Attach", "Flow", "Detach"),
    *("ReceiveDeferred", "Browse", "Settle", "Renew", "DeleteMessages", "ChangePriority"),
    *("RenewSession", "SetSessionState", "GetSessionState", "ListSessions", "CountSessions"),
    *("DeadLetterSession", "Reactivate", "Discard"),
    *("Declare", "Discharge", "Remark"),
)
NEVER_REFUSED: Final = ("CreateTopic", "CreateSubscription", "Detach", "Declare")
"""Among what the machine tries."""
MUST_HAPPEN: Final = (
    *("restart", "restart with a dump", "delivered", "granted"),
    *("closed: SessionLockLostError", "closed: OperationTimeoutError"),
    *("closed: EntityDisabledError", "closed: EntityNotFoundError"),
    *("dead: MaxDeliveryCountExceeded", "dead: TTLExpiredException", "dead: because"),
    *("dead: MaxTransferHopCountExceeded", "dead: Session ID is null."),
    *("dead: MessagingEntityDisabled", "dead: MessagingEntityNotFound"),
)


def run_machine(runs: int, steps: int, number: int) -> None:
    """`Divergence` if core and model differ, with the few steps that lead there."""
    once = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(seed(number)(Machine), settings=once)
    except Exception as failure:  # noqa: BLE001 - whatever core raises, with the way to it
        raise reduced(LAST, Machine.factory) or failure from None


def missing(coverage: Counter[str]) -> list[str]:
    """What a long run must have met and has not: each command done, and each refused."""
    wanted = [*(f"{name}: done" for name in COMMANDS), *MUST_HAPPEN]
    lacking = [what for what in wanted if not coverage[what]]
    for name in COMMANDS:
        outcomes = {what for what in coverage if what.startswith(f"{name}: ")}
        if not outcomes - {f"{name}: done"} and name not in NEVER_REFUSED:
            lacking.append(f"{name}: refused")
    return lacking


# --- the long run ---------------------------------------------------------------------------------

FEWEST_STEPS: Final = 10
"""The first ones only create entities."""
SLICE: Final = 50
"""Runs of one seed, and between two lines of progress. The next slice has a seed higher by this."""


def run_slice(job: tuple[int, int, str | None]) -> tuple[Counter[str], str | None]:
    number, steps, canary = job
    COVERAGE.clear()
    failure = None
    with pytest.MonkeyPatch.context() as patch:
        if canary is not None:
            CANARIES[canary](patch)
        try:
            run_machine(SLICE, steps, number)
        except Exception:  # noqa: BLE001 - whatever core raises is reported, with its seed
            failure = traceback.format_exc()
    return Counter(COVERAGE), failure


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--canary", choices=CANARIES, help="break core in this way")
    arguments = parser.parse_args(given)
    if arguments.runs < 1 or arguments.steps < FEWEST_STEPS:
        parser.error(f"--runs must be 1 or more, --steps {FEWEST_STEPS} or more")
    canary = ["--canary", arguments.canary] if arguments.canary else []
    wanted = arguments.runs * arguments.steps
    started = time.monotonic()
    coverage: Counter[str] = Counter()
    # Hypothesis ends some runs early: there are more of them until there were as many steps.
    jobs = (
        (number, arguments.steps, arguments.canary)
        for number in itertools.count(arguments.seed, SLICE)
    )
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        running = collections.deque(
            (job, pool.apply_async(run_slice, (job,)))
            for job in itertools.islice(jobs, arguments.processes)
        )
        while coverage["steps"] < wanted:
            job, result = running.popleft()
            running.append((following := next(jobs), pool.apply_async(run_slice, (following,))))
            found, failure = result.get()
            if failure is not None:
                print(failure, f"\nDIVERGENCE, seed {job[0]}", file=sys.stderr)
                # One run is asked for, and a slice is the least that is made.
                return repeat("model", "--seed", job[0], *canary, RUNS=1, STEPS=arguments.steps)
            coverage.update(found)
            seconds = time.monotonic() - started
            print(f"{coverage['steps']:,} of {wanted:,} steps, {seconds:.0f} s", flush=True)
        pool.terminate()
    for what, times in sorted(coverage.items()):
        print(f"{times:>9,}  {what}")
    if arguments.runs >= 10 * SLICE and (lacking := missing(coverage)):
        print(f"never happened: {', '.join(lacking)}", file=sys.stderr)
        counts = {"RUNS": arguments.runs, "STEPS": arguments.steps}
        return repeat("model", "--seed", arguments.seed, *canary, **counts)
    print(f"{coverage['runs']:,} runs, {coverage['steps']:,} steps")
    print(f"{arguments.runs} runs × {arguments.steps} steps: no divergence")
    return 0


# --- the short run --------------------------------------------------------------------------------


@pytest.mark.req("S1", "S5", "S6", "S7", "S8")
@pytest.mark.req("T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13", "T14", "T15")
def test_core_does_what_the_model_does() -> None:
    """Replies, refusals, deliveries and every queue's content agree after every step, also when
    core is made again from its own changes."""
    run_machine(60, 50, 1)


# --- what long runs have found --------------------------------------------------------------------


def test_fk11_a_dead_letter_goes_on_though_somebody_waits_for_it() -> None:
    """Late, a message is found to have expired, and its dead letter can be forwarded. The receiver
    at the dead-letter queue gets nothing."""
    judge = Judge()
    common = QueueSettings(lock_duration_ms=5_000, dead_letter_on_expiration=True)
    judge.do(c.CreateQueue("q", common))
    judge.do(c.CreateQueue("f", replace(common, forward_dead_letters_to="q")))
    judge.do(c.Send("f", [Letter(b"31", ttl_ms=4_000), Letter(b"32", ttl_ms=3_000)]))
    judge.do(c.Attach(24, "f/$deadletterqueue"))
    judge.do(c.Flow(24, 3, 29_000))
    judge.now += 20_000
    judge.tick()
    arrived = {item.message.payload for item in judge.model.entities["q"].items}
    assert arrived == {b"31", b"32"}


@pytest.mark.req("T20")
def test_fw7_a_message_that_comes_due_and_cannot_go_on_is_not_a_dead_letter() -> None:
    """Seed 300 of STEPS=100: a message that comes due cannot be forwarded. It stays in the transfer
    dead-letter queue, though dead letters are forwarded. Who waits for these gets nothing."""
    judge = Judge()
    common = QueueSettings(lock_duration_ms=5_000)
    judge.do(c.CreateQueue("q", common))
    judge.do(c.CreateQueue("s", replace(common, requires_session=True)))
    forwards = replace(common, forward_to="s", forward_dead_letters_to="q")
    judge.do(c.CreateQueue("f", forwards))
    letters = [
        Letter(b"31", ttl_ms=4_000, session_id="y"),
        Letter(b"32", scheduled_ms=judge.now + 3_000, session_id=""),
        Letter(b"33", scheduled_ms=judge.now - 500, session_id=""),
    ]
    judge.do(c.Send("f", letters))
    disabled = replace(common, requires_session=True, status=EntityStatus.SEND_DISABLED)
    judge.do(c.UpdateEntity("s", disabled))
    judge.do(c.Attach(24, "f/$deadletterqueue"))
    judge.do(c.Flow(24, 3, 29_000))
    judge.now += 20_000
    judge.tick()
    entities = judge.model.entities
    (left,) = entities["f/$transfer/$deadletterqueue"].items
    assert left.message.payload == b"32"
    assert entities["q"].items == entities["f/$deadletterqueue"].items == []


def test_dead_letters_that_expired_meanwhile_come_after_a_lock_that_is_over() -> None:
    """Seed 1000807 of STEPS=100: late, a receiver asks for messages that have expired. They do not
    overtake an older dead letter whose lock is over, too."""
    judge = Judge()
    settings = QueueSettings(lock_duration_ms=8_000, dead_letter_on_expiration=True)
    judge.do(c.CreateQueue("q", settings))
    judge.do(c.Attach(3, "q"))
    judge.do(c.Attach(6, "q/$deadletterqueue"))
    judge.do(c.Flow(6, 4, 11_000))
    lives = (4_000, 9_000, 9_000)
    judge.do(c.Send("q", [Letter(b"%d" % each, ttl_ms=ttl) for each, ttl in enumerate(lives)]))
    judge.now += 4_000
    judge.tick()
    judge.now += 10_000
    judge.do(c.Flow(3, 3, 14_000))


# --- canaries: does the judge have teeth? ---------------------------------------------------------

Break: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def abandoned_goes_to_the_end(patch: pytest.MonkeyPatch) -> None:
    first, put_back = Ready.first, Ready.put_back
    aside: list[tuple[Ready, int, int]] = []

    def first_of_the_others(ready: Ready, now: int) -> Next | None:
        if (found := first(ready, now)) is None:
            for each in [each for each in aside if each[0] is ready]:
                aside.remove(each)
                put_back(*each)
            found = first(ready, now)
        return found

    patch.setattr(Ready, "first", first_of_the_others)
    patch.setattr(Ready, "put_back", lambda *each: aside.append(each))


def lock_expiry_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Return, "is_counted", property(lambda reason: reason is Return.ABANDONED))


def a_restart_forgets_what_was_deferred(patch: pytest.MonkeyPatch) -> None:
    replay = Namespace.replay
    patch.setattr(
        Namespace, "replay", lambda core, x: None if isinstance(x, Deferred) else replay(core, x)
    )


def a_delay_lasts_a_millisecond_longer(patch: pytest.MonkeyPatch) -> None:
    delay = Queue.delay
    patch.setattr(Queue, "delay", lambda queue, n, why, due, x: delay(queue, n, why, due + 1, x))


def aging_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ready, "effective", lambda ready, level, enqueued, now: level)


def a_lock_lasts_a_millisecond_longer_for_its_holder(patch: pytest.MonkeyPatch) -> None:
    holder = lifecycle.holder
    patch.setattr(lifecycle, "holder", lambda queue, token, now: holder(queue, token, now - 1))


def an_id_is_remembered_when_its_message_is_held(patch: pytest.MonkeyPatch) -> None:
    add = Queue.add

    def add_and_remember(queue: Queue, change: Enqueued) -> None:
        add(queue, change)
        if change.duplicate_key is not None:
            queue.duplicates.remember(change.duplicate_key, change.time, queue.window_ms)

    patch.setattr(Queue, "add", add_and_remember)


def a_commit_takes_what_has_become_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    commit_held = lifecycle.commit_held

    def forgetful(queue: Queue, numbers: Sequence[int], now: int) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Duplicates, "has_seen", lambda *_: False)
            commit_held(queue, numbers, now)

    patch.setattr(lifecycle, "commit_held", forgetful)


CANARIES: Final[dict[str, Break]] = {
    break_it.__name__: break_it
    for break_it in (
        abandoned_goes_to_the_end,
        lock_expiry_is_not_counted,
        a_restart_forgets_what_was_deferred,
        a_delay_lasts_a_millisecond_longer,
        aging_is_forgotten,
        a_lock_lasts_a_millisecond_longer_for_its_holder,
        an_id_is_remembered_when_its_message_is_held,
        a_commit_takes_what_has_become_a_duplicate,
    )
}
RARE: Final = (
    "a_delay_lasts_a_millisecond_longer",
    "a_commit_takes_what_has_become_a_duplicate",
)


@pytest.mark.parametrize(
    "canary",
    [pytest.param(name, marks=[pytest.mark.long] * (name in RARE)) for name in CANARIES],
)
def test_the_judge_notices(canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that is broken on purpose does not pass: core and model differ, or core's own
    assertions fail."""
    CANARIES[canary](monkeypatch)
    with pytest.raises(AssertionError):
        run_machine(1_500, 50, 2)  # it ends with the first that is noticed


# --- the model itself, by hand --------------------------------------------------------------------


def a_model(**more: Any) -> Model:
    model = Model(MEANINGS)
    model.apply(c.CreateQueue("q", QueueSettings(lock_duration_ms=5_000, **more)), 0)
    model.apply(c.Attach(1, "q"), 0)
    return model


def received(model: Model, count: int, now: int) -> list[Item]:
    return model.apply(c.Flow(1, count, 0, drain=True), now).delivered.get(1, [])


def in_queue(model: Model, path: str) -> list[tuple[int, State, int]]:
    items = sorted(model.entities[path].items, key=lambda item: item.number)
    return [(item.number, item.state, item.count) for item in items]


def test_the_model_puts_an_abandoned_message_back_and_buries_it_in_the_end() -> None:
    """T7, T8 as the model has them."""
    model = a_model(max_delivery_count=2)
    model.apply(c.Send("q", [Letter(b"1"), Letter(b"2")]), 0)
    for expected in (0, 1):
        (item,) = received(model, 1, 0)
        assert (item.number, item.count) == (1, expected)
        assert item.token is not None
        model.apply(c.Settle("q", [item.token], c.Disposition.ABANDON), 0)
    assert in_queue(model, "q") == [(2, State.WAITING, 0)]
    assert in_queue(model, "q/$deadletterqueue") == [(1, State.WAITING, 2)]


def test_the_model_ends_a_lock_at_its_time_and_not_before() -> None:
    """T11 and T13: the lock is lost at its end, and what expired meanwhile is gone then."""
    model = a_model()
    model.apply(c.Send("q", [Letter(b"1", ttl_ms=3_000), Letter(b"2")]), 0)
    tokens = [item.token for item in received(model, 2, 0) if item.token is not None]
    model.tick(4_999)
    assert in_queue(model, "q") == [(1, State.LOCKED, 0), (2, State.LOCKED, 0)]
    with pytest.raises(MessageLockLostError):
        model.apply(c.Settle("q", tokens, c.Disposition.COMPLETE), 5_000)
    model.tick(5_000)
    assert in_queue(model, "q") == [(2, State.WAITING, 1)]


def test_the_model_gives_a_scheduled_message_a_new_number() -> None:
    """S8: a late tick too gives it the time at which it was due."""
    model = a_model()
    letters = [Letter(b"1", scheduled_ms=3_000), Letter(b"2"), Letter(b"3", scheduled_ms=-1)]
    assert model.apply(c.Send("q", letters), 0).reply == [1, 2, 3]
    model.tick(3_500)
    assert [item.number for item in model.entities["q"].items] == [2, 3, 4]
    assert model.entities["q"].items[-1].enqueued == 3_000


def test_the_model_does_a_transaction_as_a_whole() -> None:
    """Nothing happens before the discharge; a duplicate is dropped."""
    model = a_model(requires_duplicate_detection=True)
    twice = Letter(b"1", message_id="m")
    assert model.apply(c.Send("q", [twice, twice]), 0).reply == [1, 0]
    (item,) = received(model, 1, 0)
    assert item.token is not None
    number = model.apply(c.Declare(), 0).reply
    assert isinstance(number, int)
    model.apply(c.Send("q", [Letter(b"2")], transaction=number), 0)
    model.apply(c.Settle("q", [item.token], c.Disposition.COMPLETE, transaction=number), 0)
    assert in_queue(model, "q") == [(1, State.LOCKED, 0)]
    model.apply(c.Discharge(number), 0)
    assert in_queue(model, "q") == [(2, State.WAITING, 0)]


if __name__ == "__main__":
    sys.exit(main())
