"""How fast an entity takes messages: from all, from each sender, from each tenant (P10).

Here live the token buckets, told the time by `now`. What a rate is, is `extensions`; who is a
sender, the edge says with `Send`.

    a bucket holds `burst` tokens and gets one more each `interval`; a message takes one

A bucket is one number: when it will be full again. So a full one need not be kept at all, and a
restart, which forgets them, makes all full.

The rules: a send is charged to all of its buckets or to none. What is taken is never more than
burst + time / interval in any stretch of time. A batch larger than the burst is taken by a full
bucket, and what it takes too much has to be waited for afterwards; otherwise it could never be
sent.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tandembus import limits
from tandembus.core.commands import Send
from tandembus.errors import ThrottledError
from tandembus.extensions import Rate, RateSettings
from tandembus.model import Message, Millis

_NS_PER_MS: Final = 1_000_000
_ALL: Final = ""
_OTHERS: Final = "\0others"
"""Stands for those who come when all places are taken. No property and no policy is named so."""


class Buckets:
    """One for each key. Times within are nanoseconds, so that no rate is rounded away."""

    __slots__ = ("_burst", "_full_at", "_interval", "_most", "_sweep_at")

    def __init__(self, rate: Rate, most_keys: int = limits.MAX_RATE_KEYS) -> None:
        self._burst = rate.most_at_once
        self._interval = max(1, rate.per_ms * _NS_PER_MS // rate.messages)
        self._full_at: dict[str, int] = {}
        self._most = most_keys
        self._sweep_at = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_ms(self, key: str, count: int, now: Millis, *, is_batch: bool = True) -> Millis:
        """How long until `count` messages would be taken; 0: they are. Takes nothing. Messages that
        are no batch can be taken one by one, so a row of them has to fit."""
        now_ns = now * _NS_PER_MS
        owed = max(0, self._full_at.get(self._place(key, now_ns), 0) - now_ns)
        needed = min(count, self._burst) if is_batch else count
        short = owed + (needed - self._burst) * self._interval
        return -(-short // _NS_PER_MS) if short > 0 else 0

    def take(self, key: str, count: int, now: Millis) -> None:
        """Charge it: `wait_ms` was 0."""
        now_ns = now * _NS_PER_MS
        place = self._place(key, now_ns)
        full_at = max(self._full_at.get(place, 0), now_ns) + count * self._interval
        self._full_at[place] = full_at

    def _place(self, key: str, now_ns: int) -> str:
        full_at = self._full_at
        if key in full_at or len(full_at) < self._most:
            return key
        if now_ns >= self._sweep_at:
            self._full_at = full_at = {k: at for k, at in full_at.items() if at > now_ns}
            # Before the next one is full again, another look would find nothing.
            self._sweep_at = min(full_at.values(), default=now_ns)
        return key if len(full_at) < self._most else _OTHERS


class Throttle:
    """Of one queue or topic."""

    __slots__ = ("_entity", "_sender", "_tenant", "rates")

    def __init__(self, rates: RateSettings) -> None:
        self.rates = rates
        self._entity = None if rates.entity is None else Buckets(rates.entity, 1)
        self._sender = None if rates.sender is None else Buckets(rates.sender)
        self._tenant = None if rates.tenant is None else Buckets(rates.tenant)

    def admit(self, path: str, command: Send, now: Millis) -> None:
        """Charge a send; or raise `ThrottledError`, and nothing is charged. Pings cost nothing."""
        messages = [each for each in command.messages if not each.is_ping]
        sender, is_batch = command.sender, not command.each
        if not messages:
            return
        count = len(messages)
        asked: list[tuple[Buckets, str, int, str]] = []
        rates = self.rates
        if self._entity is not None:
            asked.append((self._entity, _ALL, count, f"{rates.entity}"))
        if self._sender is not None:
            asked.append((self._sender, sender, count, f"{rates.sender} from '{sender:.80}'"))
        if self._tenant is not None:
            assert rates.tenant_property is not None
            name = rates.tenant_property
            for tenant, its_count in Counter(tenant_of(each, name) for each in messages).items():
                what = f"{rates.tenant} where {name} is '{tenant:.80}'"
                asked.append((self._tenant, tenant, its_count, what))
        longest, which = 0, ""
        for buckets, key, number, what in asked:
            wait = buckets.wait_ms(key, number, now, is_batch=is_batch)
            if wait > longest:
                longest, which = wait, what
        if longest:
            raise ThrottledError(path, which, retry_after_ms=longest)
        for buckets, key, number, _ in asked:
            buckets.take(key, number, now)


def tenant_of(message: Message, name: str) -> str:
    """Messages that do not say belong to one tenant without a name."""
    value = message.properties.get(name)
    return "" if value is None else str(value)[: limits.MAX_RATE_KEY]
