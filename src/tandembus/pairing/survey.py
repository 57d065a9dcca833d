"""What a pair looks like from outside, for `tandem pairing status`: who answers, how deep the
backlogs are, how fast they shrink, for which entities messages wait.

It asks over HTTP, which costs no operation; only the entities have to be found out with peeks. A
side that does not answer is a finding, never an error. It blocks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandembus.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    TandemError,
    UnauthorizedError,
)
from tandembus.pairing import aliases
from tandembus.pairing.heart import BacklogQueue
from tandembus.pairing.namespaces import ONE_TRY, Depth, Namespace
from tandembus.pairing.options import backlog_path
from tandembus.pairing.pair import Pair
from tandembus.pairing.probing import FIRST, PEEK, PEEK_S

PAGES: Final = 4
"""So many peeks a queue at most: of a deep backlog the beginning tells enough."""


@dataclass(frozen=True, slots=True)
class Side:
    """A namespace of the pair, and what is wrong with it."""

    name: str
    problem: str | None

    @property
    def state(self) -> str:
        return self.problem or "answers"


@dataclass(frozen=True, slots=True)
class Survey:
    primary: Side
    secondaries: Sequence[Side]
    depths: Sequence[tuple[int, Depth]]
    """Of the backlog queues that are there, each with the number of its secondary."""
    missing: Sequence[str]
    """Backlog queues that are not there."""
    rate: float
    """Messages that leave the backlogs in a second, less those that come."""
    entities: Mapping[str, int] | None = None
    """Messages that were seen waiting, by destination."""

    @property
    def waiting(self) -> int:
        return sum(depth.waiting for _, depth in self.depths)

    @property
    def seconds_to_drain(self) -> float | None:
        """None: there is nothing, or it does not shrink."""
        return self.waiting / self.rate if self.waiting and self.rate > 0 else None

    @property
    def is_whole(self) -> bool:
        return not any(side.problem for side in self.secondaries)


def survey(
    pair: Pair,
    during_s: float,
    *,
    with_entities: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Survey:
    """Two looks at the depths, `during_s` apart."""
    primary = Side(pair.name, _problem(pair.primary, pair.name))
    secondaries = [Side(each.name, _problem(each, pair.name)) for each in pair.secondaries]
    queues = [queue for queue in pair.backlog_queues() if not secondaries[queue.secondary].problem]
    begin = time.monotonic()
    before = _depths(pair, queues)
    if before:
        sleep(during_s)
    now = _depths(pair, list(before))
    elapsed_s = max(time.monotonic() - begin, 1e-9)
    left = sum(before[queue].waiting - depth.waiting for queue, depth in now.items())
    entities = None
    if with_entities:
        entities = _entities(pair, [queue for queue, depth in now.items() if depth.waiting])
    return Survey(
        primary,
        secondaries,
        [(queue.secondary, depth) for queue, depth in now.items()],
        [pair.path_of(queue) for queue in queues if queue not in now],
        left / elapsed_s,
        entities,
    )


def why(error: TandemError) -> str:
    """In words that follow on the name of a namespace."""
    match error:
        case ConnectionLostError():
            return f"does not answer: {error}"
        case UnauthorizedError():
            return f"does not let this key in (it needs Manage): {error}"
    return f"refuses: {error}"


def _problem(namespace: Namespace, primary_name: str) -> str | None:
    assert namespace.administration is not None
    try:
        namespace.administration.depth(backlog_path(primary_name, 0))
    except EntityNotFoundError:
        return None  # an answer is an answer
    except TandemError as error:
        return why(error)
    return None


def _depths(pair: Pair, queues: Sequence[BacklogQueue]) -> dict[BacklogQueue, Depth]:
    found: dict[BacklogQueue, Depth] = {}
    for queue in queues:
        try:
            found[queue] = pair.depth(queue)
        except EntityNotFoundError:
            continue
    return found


def _entities(pair: Pair, queues: Sequence[BacklogQueue]) -> Counter[str]:
    found: Counter[str] = Counter()
    for secondary, namespace in enumerate(pair.secondaries):
        here = [queue for queue in queues if queue.secondary == secondary]
        if here:
            with namespace.client(**ONE_TRY) as client:
                for queue in here:
                    found.update(_paths(client, pair.path_of(queue)))
    return found


def _paths(client: Any, backlog: str) -> Counter[str]:
    found: Counter[str] = Counter()
    number = FIRST
    with client.get_queue_receiver(backlog) as receiver:
        for _ in range(PAGES):
            messages = receiver.peek_messages(
                max_message_count=PEEK, sequence_number=number, timeout=PEEK_S
            )
            for message in messages:
                path = (message.application_properties or {}).get(aliases.PATH.encode(), b"?")
                found[path.decode(errors="replace") if isinstance(path, bytes) else "?"] += 1
            if not messages:
                break
            number = messages[-1].sequence_number + 1
    return found
