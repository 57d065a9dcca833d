"""Does the time of a refusal tell anything about a key? Welch's t test over many tries (S11, A3).

    python -m tests.hostile.timing --count 1000000

Two kinds of wrong tokens are tried in a random order, over and over, and the times that the checks
took are compared: a signature that is wrong in its first byte against one that is wrong in its
last, and a name that no policy has against one that is there. |t| < 4.5 says that so many tries
cannot tell them apart. With so many tries the place of an object in memory shows, too: a difference
of means counts from 10 ns on where a key is concerned, and from 50 ns on for a name, which is no
secret. The canary is a comparison that stops at the first byte that differs: it must be found, or
the measurement is worth nothing.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gc
import math
import random
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple
from urllib.parse import quote, unquote

from tandembus.core.access import Authority, Policy, Right, Secret
from tandembus.core.sas import sign
from tandembus.errors import UnauthorizedError
from tests.unit.core.test_jwt import hs256, text_of

NOW = 1_700_000_000_000
LATER = NOW // 1000 + 3_600
KEY, SECOND, OWN = (Secret(letter * 44) for letter in "kso")
LIMIT = 4.5
KEY_NS, NAME_NS = 10, 50
AUTHORITY = Authority(
    [Policy("root", Right.ALL, KEY, SECOND)],
    lambda path: [Policy("rule", Right.SEND, OWN, SECOND)],
)


def sas(name: str, *, wrong_at: int) -> str:
    """A token whose signature is right but for one byte."""
    token = sign("sb://h/q", name, str.__str__(KEY), LATER)
    head, _, rest = token.partition("sig=")
    signature, _, tail = rest.partition("&")
    raw = bytearray(base64.b64decode(unquote(signature)))
    raw[wrong_at] ^= 1
    return f"{head}sig={quote(base64.b64encode(raw).decode(), safe='')}&{tail}"


def jwt(name: str, *, wrong_at: int) -> str:
    head, _, signature = hs256(str.encode(KEY), {"kid": name}).rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "="))
    raw[wrong_at] ^= 1
    return f"{head}.{text_of(bytes(raw))}"


def grant(text: str) -> None:
    with contextlib.suppress(UnauthorizedError):
        AUTHORITY.grant(text, "sb://h/q", NOW)


def verify(text: str) -> None:
    with contextlib.suppress(UnauthorizedError):
        AUTHORITY.verify(text, "q", NOW)


def login(text: str) -> None:
    name, _, key = text.partition(":")
    AUTHORITY.login(name, key)


def leak(text: str) -> None:
    """The canary: what must not be."""
    for one, two in zip(str.__str__(KEY), text, strict=True):
        if one != two:
            return


class Pair(NamedTuple):
    check: Callable[[str], None]
    one: str
    two: str
    floor_ns: int = KEY_NS


PAIRS = {
    "SAS: first byte or last": Pair(grant, sas("root", wrong_at=0), sas("root", wrong_at=31)),
    "SAS: known name or not": Pair(
        grant, sas("root", wrong_at=0), sas("toor", wrong_at=0), NAME_NS
    ),
    "SAS: name of a rule or not": Pair(
        grant, sas("rule", wrong_at=0), sas("elur", wrong_at=0), NAME_NS
    ),
    "JWT: first byte or last": Pair(verify, jwt("root", wrong_at=0), jwt("root", wrong_at=31)),
    "PLAIN: first character or last": Pair(login, f"root:x{'k' * 43}", f"root:{'k' * 43}x"),
    "PLAIN: known name or not": Pair(login, f"root:{'x' * 44}", f"toor:{'x' * 44}", NAME_NS),
}
CANARY = Pair(leak, f"x{'k' * 43}", f"{'k' * 43}x")


class Found(NamedTuple):
    t: float
    difference_ns: float

    def tells(self, pair: Pair) -> bool:
        return abs(self.t) >= LIMIT and abs(self.difference_ns) >= pair.floor_ns


def measure(pair: Pair, count: int, seed: int = 1) -> Found:
    """What `count` tries in all tell. Each has a fresh text, so that not even the place of one in
    memory tells it from the other."""
    chance = random.Random(seed)
    times: tuple[list[int], list[int]] = ([], [])
    check = pair.check
    raw = (pair.one.encode(), pair.two.encode())
    gc.disable()
    try:
        for text in (pair.one, pair.two) * min(1_000, count):
            check(text)
        for _ in range(count // 1_000):
            order = chance.getrandbits(1_000)
            for bit in range(1_000):
                which = order >> bit & 1
                text = raw[which].decode()
                began = perf_counter_ns()
                check(text)
                times[which].append(perf_counter_ns() - began)
    finally:
        gc.enable()
    # What the machine did meanwhile is no part of it: the slower half of all tries is left out,
    # unless that is nearly all of one kind, and so the very thing that is looked for.
    every = sorted(times[0] + times[1])
    kept = [[each for each in some if each <= every[len(every) // 2]] for some in times]
    return welch(*(times if min(map(len, kept)) < len(every) // 20 else kept))


def welch(one: list[int], two: list[int]) -> Found:
    means = [sum(some) / len(some) for some in (one, two)]
    spread = sum(
        sum((each - mean) ** 2 for each in some) / (len(some) - 1) / len(some)
        for some, mean in zip((one, two), means, strict=True)
    )
    difference = means[0] - means[1]
    return Found(difference / math.sqrt(spread) if spread else 0.0, difference)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="tries for each pair")
    count = parser.parse_args().count
    canary = measure(CANARY, count)
    print(f"canary: |t| = {abs(canary.t):.1f}, {abs(canary.difference_ns):.0f} ns")
    told = []
    for name, pair in PAIRS.items():
        found = measure(pair, count)
        print(f"{name}: |t| = {abs(found.t):.2f}, {abs(found.difference_ns):.1f} ns", flush=True)
        if found.tells(pair):
            told.append(name)
    print(
        f"{len(PAIRS)} pairs, {count:,} tries each: {len(told)} can be told apart; "
        f"canary {'found' if canary.tells(CANARY) else 'NOT FOUND'}"
    )
    return 1 if told or not canary.tells(CANARY) else 0


if __name__ == "__main__":
    sys.exit(main())
