"""Core against the model: the same random commands to both, and all that can be seen compared.

Here live the runs, short (pytest) and long (`python -m tests.property.test_model --runs 2000
--steps 100`), and the canaries: cores broken on purpose, which prove that the judge would notice.
What is right is said in `model.py`, what is compared in `judge.py`, what is tried in `machine.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tandem.core.namespace import Namespace

from tandem.changes import Deferred, Return
from tandem.core.queue import Queue
from tandem.core.ready import Lane, Ready
from tests.property.judge import Divergence
from tests.property.machine import COVERAGE, Machine

COMMANDS: Final = (
    *("CreateQueue", "CreateTopic", "CreateSubscription", "UpdateEntity", "DeleteEntity"),
    *("AddRule", "RemoveRule", "Send", "CancelScheduled", "Attach", "Flow", "Detach"),
    *("ReceiveDeferred", "Browse", "Settle", "Renew", "DeleteMessages", "ChangePriority"),
    *("RenewSession", "SetSessionState", "GetSessionState", "ListSessions"),
    *("Declare", "Discharge", "Remark"),
)
NEVER_REFUSED: Final = ("CreateTopic", "CreateSubscription", "Detach", "Declare")
"""Among what the machine tries."""
MUST_HAPPEN: Final = (
    *("restart", "delivered", "granted"),
    *("closed: SessionLockLostError", "closed: OperationTimeoutError"),
    *("dead: MaxDeliveryCountExceeded", "dead: TTLExpiredException", "dead: because"),
)


def run_machine(
    machine: type[Machine], *, runs: int, steps: int, number: int, is_shrunk: bool = True
) -> None:
    """`Divergence` if core and model differ."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        seed(number)(machine),
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink) if is_shrunk else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


def missing(coverage: Counter[str]) -> list[str]:
    """What a long run must have met and has not: each command done, and each refused."""
    wanted = [f"{name}: done" for name in COMMANDS] + list(MUST_HAPPEN)
    lacking = [what for what in wanted if not coverage[what]]
    for name in COMMANDS:
        is_refused = any(key.startswith(f"{name}: ") and key != f"{name}: done" for key in coverage)
        if not is_refused and name not in NEVER_REFUSED:
            lacking.append(f"{name}: refused")
    return lacking


# --- the long run ---------------------------------------------------------------------------------

SLICE: Final = 50
"""Runs between two lines of progress; also the length of what one seed makes."""


def run_slice(job: tuple[int, int, int]) -> tuple[int, Counter[str], str | None]:
    number, runs, steps = job
    COVERAGE.clear()
    failure = None
    try:
        run_machine(Machine, runs=runs, steps=steps, number=number)
    except Exception:  # noqa: BLE001 - whatever core raises is reported with its seed
        failure = traceback.format_exc()
    return number, Counter(COVERAGE), failure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    started = time.monotonic()
    jobs = [
        (arguments.seed * 1_000_003 + start, min(SLICE, arguments.runs - start), arguments.steps)
        for start in range(0, arguments.runs, SLICE)
    ]
    coverage: Counter[str] = Counter()
    done = 0
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for job, (number, found, failure) in zip(jobs, pool.imap(run_slice, jobs), strict=True):
            coverage.update(found)
            if failure is not None:
                print(failure, f"\nDIVERGENCE in the slice with seed {number}", file=sys.stderr)
                return 1
            done += job[1]
            seconds = time.monotonic() - started
            print(f"{done} runs, {coverage['steps']} steps, {seconds:.0f} s", flush=True)
    for what, times in sorted(coverage.items()):
        print(f"{times:>9}  {what}")
    if arguments.runs >= SLICE and (lacking := missing(coverage)):
        print(f"never happened: {', '.join(lacking)}", file=sys.stderr)
        return 1
    print(f"{arguments.runs} runs × {arguments.steps} steps: no divergence")
    return 0


# --- the short run, and the canaries --------------------------------------------------------------


@pytest.mark.req("S1", "S7", "S8", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13")
@pytest.mark.req("T14", "T15")
def test_core_does_what_the_model_does() -> None:
    """Replies, refusals, deliveries and every queue's content agree after every step."""
    run_machine(Machine, runs=40, steps=50, number=1)


CANARIES: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {}
"""Cores broken on purpose, by what is wrong with them."""


def canary(break_it: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    CANARIES[break_it.__name__] = break_it
    return break_it


@canary
def abandoned_goes_to_the_end(patch: pytest.MonkeyPatch) -> None:
    def lowest(lane: Lane) -> int | None:
        if lane._head < len(lane._runs):
            return lane._runs[lane._head]
        return lane._back[0] if lane._back else None

    patch.setattr(Lane, "_lowest", lowest)


@canary
def lock_expiry_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Return, "is_counted", property(lambda reason: reason is Return.ABANDONED))


@canary
def a_deferred_message_is_forgotten_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    replay = Namespace.replay
    patch.setattr(
        Namespace, "replay", lambda core, x: None if isinstance(x, Deferred) else replay(core, x)
    )


@canary
def aging_is_half_as_fast(patch: pytest.MonkeyPatch) -> None:
    effective = Ready.effective
    patch.setattr(
        Ready, "effective", lambda r, level, at, now: effective(r, level, at, at + (now - at) // 2)
    )


@canary
def a_lock_can_be_settled_a_millisecond_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Queue, "holder", lambda q, token, now, check=Queue.holder: check(q, token, now - 1)
    )


@pytest.mark.parametrize("name", sorted(CANARIES))
def test_the_judge_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that is broken on purpose does not pass."""
    CANARIES[name](monkeypatch)
    with pytest.raises((Divergence, AssertionError)):
        run_machine(Machine, runs=400, steps=50, number=1, is_shrunk=False)


if __name__ == "__main__":
    sys.exit(main())
