"""What a peer says on a connection that works: the opening, and frames to go on with.

Mutants of these frames, and generated ones whose numbers are nearly right, are what the live
targets get.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.fast import disposition_frame, encode_flow, encode_state, encode_transfer
from tandembus.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    VALUE,
    encode_message,
)
from tandembus.amqp.types import (
    NULL,
    Array,
    UInt,
    encode,
    encode_composite,
    encode_described,
)
from tandembus.model import Symbol
from tests.fuzz import seeds
from tests.fuzz.mutate import Mutator, mend_frame, value

QUEUE: Final = "orders"
SESSIONS: Final = "talks"
TOPIC: Final = "news"
SUBSCRIPTION: Final = f"{TOPIC}/Subscriptions/all"
QUIET: Final = "quiet-b52c"
"""The queue of the well-behaved peer, whose name no mutation hits upon."""
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_HANDLES: Final = 9

NODES: Final = (
    # Name, address, whether the peer receives, session filter if any.
    ("send", QUEUE, False), ("receive", QUEUE, True), ("ask", f"{QUEUE}/$management", False),
    ("answer", f"{QUEUE}/$management", True), ("put", "$cbs", False), ("granted", "$cbs", True),
    ("publish", TOPIC, False), ("read", SUBSCRIPTION, True), ("held", SESSIONS, True),
)  # fmt: skip


def request(operation: str | None, body: object = None, **said: object) -> bytes:
    """A request to a node, as an encoded message."""
    fields = [NULL] * 5
    fields[0] = encode("request-1")
    fields[4] = encode("answer")
    properties = {"operation": operation, **{k.replace("_", "-"): v for k, v in said.items()}}
    message = encode_composite(PROPERTIES, fields)
    message += encode_described(APPLICATION_PROPERTIES, encode(properties))
    return message if body is None else message + encode_described(VALUE, encode(body))


def requests() -> list[bytes]:
    """One of every operation of $management and $cbs."""
    tokens = Array([seeds.ID], 0x98)
    numbers = Array([1, 2], 0x81)
    rule = {
        "sql-filter": {"expression": "a = 1"}, "sql-rule-action": {"expression": "SET b = 2"},
    }  # fmt: skip
    correlated = {"correlation-filter": {"label": "x", "properties": {"k": 1}}}
    bodies: dict[str, object] = {
        "peek-message": {"from-sequence-number": 1, "message-count": 5},
        "renew-lock": {"lock-tokens": tokens},
        "schedule-message": {
            "messages": [{"message-id": "m", "message": encode_message(body=b"later",
                          scheduled_ms=1_800_000_000_000)}]
        },
        "cancel-scheduled-message": {"sequence-numbers": numbers},
        "receive-by-sequence-number": {"sequence-numbers": numbers, "receiver-settle-mode": 1},
        "update-disposition": {
            "disposition-status": "suspended", "lock-tokens": tokens, "deadletter-reason": "r",
            "properties-to-modify": {"k": 1},
        },
        "renew-session-lock": {"session-id": "s"},
        "get-session-state": {"session-id": "s"},
        "set-session-state": {"session-id": "s", "session-state": b"state"},
        "get-message-sessions": {"last-updated-time": 5, "skip": 0, "top": 10},
        "add-rule": {"rule-name": "r", "rule-description": rule},
        "remove-rule": {"rule-name": "r"},
        "enumerate-rules": {"skip": 0, "top": 10},
        "batch-delete-messages": {"message-count": 5},
    }  # fmt: skip
    made = [
        request(f"com.microsoft:{name}", body, com_microsoft=1) for name, body in bodies.items()
    ]
    made.append(request("com.microsoft:add-rule",
                        {"rule-name": "c", "rule-description": correlated}))  # fmt: skip
    token = "SharedAccessSignature sr=sb%3A%2F%2Fh%2Forders&sig=abc%3D&se=1900000000&skn=Root"
    jwt = "eyJhbGciOiJub25lIn0.eyJleHAiOjE5MDAwMDAwMDB9.c2ln"
    for text in (token, jwt):
        made.append(
            request("put-token", text, type="jwt", name=f"amqps://host/{QUEUE}", expiration=5)
        )
    made.append(request("delete-token", None, type="jwt", name=f"amqps://host/{QUEUE}"))
    return made


def transaction_requests() -> list[bytes]:
    declare = p.encode_performative(p.Declare())
    discharges = [p.encode_performative(p.Discharge(n.to_bytes(8, "big"), n == 1)) for n in (0, 1)]
    return [encode_described(VALUE, body) for body in (declare, *discharges)]


def opening(chance: random.Random) -> list[bytes]:
    """Everything from the header to links with credit."""
    said: list[bytes] = []
    if chance.random() < 0.3:
        said += _SASL
    said += (AMQP_HEADER, chance.choice(_OPENS), chance.choice(_BEGINS))
    for attached, flows in _ATTACHED:
        if chance.random() < 0.95:
            said.append(attached)
            if flows:
                said.append(chance.choice(flows))
    if chance.random() < 0.9:
        said.append(_COORDINATED)
    return said


def attach(handle: int, name: str, address: str, is_receiver: bool) -> p.Attach:
    if is_receiver:
        wanted = {_SESSION_FILTER: None} if address == SESSIONS else None
        source = p.Source(address, filter=wanted)
        properties = {Symbol("com.microsoft:timeout"): UInt(500)}
        return p.Attach(
            name, handle, p.RECEIVER, 0, 0, source, p.Target(name), properties=properties
        )
    return p.Attach(
        name, handle, p.SENDER, 2, 0, p.Source(name), p.Target(address), initial_delivery_count=0
    )


def coordinator(handle: int) -> p.Attach:
    target = p.Coordinator(("amqp:local-transactions",))
    return p.Attach("tx", handle, p.SENDER, 0, 0, p.Source(), target, initial_delivery_count=0)


def _body(performative: object) -> bytes:
    return frame(p.encode_performative(performative))


_SASL: Final = (
    SASL_HEADER,
    frame(p.encode_performative(p.SaslInit("ANONYMOUS", b"", "host")), 0, SASL_FRAME),
)
_OPENS: Final = [
    _body(p.Open("fuzz", "h", size, 255, 60_000, properties={Symbol("user-agent"): agent}))
    for size in (512, 4_096, 65_536, 2**32 - 1)
    for agent in ("azsdk-python/7", "other")
]
_BEGINS: Final = [_body(p.Begin(None, 0, window, 2_048, 255)) for window in (0, 2, 2_048, 2_048)]
_ATTACHED: Final = [
    (
        _body(attach(handle, *node)),
        [frame(encode_flow(0, 2_048, 0, 2_048, handle, 0, credit)) for credit in (1, 10, 5_000)]
        if node[2]
        else [],
    )
    for handle, node in enumerate(NODES)
]
_COORDINATED: Final = _body(coordinator(_HANDLES))


def frames() -> list[bytes]:
    """Frames that are right on a connection after `opening`, to make mutants of."""
    bodies = [*seeds.messages()[:24], *requests(), *transaction_requests()]
    said = [
        frame(encode_transfer(handle, number, b"t", message_format=form, settled=False) + body)
        for number, body in enumerate(bodies)
        for handle, form in (((0, 0), (2, 0)) if number % 3 else ((0, seeds.BATCH), (9, 0)))
        if len(body) < 4_000
    ]
    said += [
        disposition_frame(0, role, number, number + number % 3, number % 2 == 0, encode_state(it))
        for number, it in enumerate((None, *seeds.STATES))
        for role in (True, True, False)
    ]
    said += [frame(encode_flow(0, 100, 0, 100, handle, 0, 10)) for handle in range(_HANDLES)]
    said += [
        frame(p.encode_performative(attach(n + 20, f"again-{n}", address, is_receiver)))
        for n, (_, address, is_receiver) in enumerate(NODES)
    ]
    said += [frame(p.encode_performative(p.Detach(handle, True))) for handle in range(_HANDLES)]
    said += [frame(p.encode_performative(it), 1) for it in (p.Begin(None, 0, 9, 9), p.End())]
    return said


class Talk:
    """Frames for a live connection: mutants, generated ones whose numbers are nearly right, and
    some as a working peer would say them, so that the others meet something to spoil."""

    def __init__(self, seed: int) -> None:
        self._right = frames()
        others = [each for each in seeds.frames() if len(each) < 4_000]
        self._mutator = Mutator([*self._right, *others], seed, mend_frame)
        self._bodies = Mutator([*seeds.messages()[:24], *requests(), *transaction_requests()], seed)
        self.chance = self._mutator.chance
        self._number = 0

    def opening(self) -> list[tuple[bytes, bool]]:
        """`opening`, one of ten with a mistake in it, and whether that counts."""
        said = opening(self.chance)
        spoiled = int(self.chance.random() * len(said)) if self.chance.random() < 0.1 else -1
        return [
            (self._mutator.spoiled(data), True) if place == spoiled else (data, False)
            for place, data in enumerate(said)
        ]

    def next(self) -> tuple[bytes, bool]:
        """A frame, and whether it is a mutant (or generated) and so counts."""
        what = self.chance.random()
        if what < 0.07:
            return self._mutator.mutant(), True
        if what < 0.90:
            return self._generated(), True
        return self.chance.choice(self._right), False

    def _one_of(self, usual: Sequence[Any], odd: Sequence[Any]) -> Any:
        """Mostly what goes on, sometimes what ends it."""
        rand = self.chance.random
        some = usual if rand() < 0.97 else odd
        return some[int(rand() * len(some))]

    def _generated(self) -> bytes:
        rand = self.chance.random
        channel = self._one_of((0,), _CHANNELS)
        handle = self._one_of(range(_HANDLES + 1), _ODD_HANDLES)
        self._number += 1
        number = self._one_of((self._number & 0xFF,), _NUMBERS)
        what = rand()
        if what < 0.45:
            head = encode_transfer(
                self._one_of((0, 2, 4, 6, 9), _ODD_HANDLES),
                self._one_of((self._number,), (number, None)), self._one_of((b"t",), (b"", None)),
                message_format=self._one_of((0, 0, 0, None, seeds.BATCH), (7, 2**32 - 1)),
                settled=rand() < 0.3, more=rand() < 0.03,
                state=self._one_of((None,), seeds.STATES), aborted=rand() < 0.02,
            )  # fmt: skip
            body = self._bodies.mutant() if rand() < 0.6 else self._bodies.pick()
            return frame(head + body[:30_000], channel)
        if what < 0.65:
            state = seeds.STATES[int(rand() * len(seeds.STATES))] if rand() < 0.9 else None
            number = self._one_of((int(rand() * 8), number), _NUMBERS)  # ours begin with 0
            last = self._one_of((number, number + int(rand() * 4) & 0xFFFF_FFFF), _NUMBERS)
            return disposition_frame(
                channel, rand() < 0.8, number, last, rand() < 0.5, encode_state(state)
            )
        if what < 0.83:
            receiver = self._one_of((1, 3, 5, 7, 8, None), (handle,))
            return frame(
                encode_flow(
                    self._one_of((0, number), (None, *_NUMBERS)), int(rand() * 50), number, 99,
                    receiver, None if receiver is None else self._one_of((0, number), _NUMBERS),
                    None if receiver is None else self._one_of((0, 1, 50), _NUMBERS),
                    drain=rand() < 0.3, echo=rand() < 0.3,
                ),
                channel,
            )  # fmt: skip
        if what < 0.87:  # sessions that come and go, beside the one of all links
            begin = p.Begin(self._one_of((None,), (0, number & 0xFFFF)), number, number, 5, 9)
            some = begin if rand() < 0.6 else p.End()
            return frame(p.encode_performative(some), 1 + int(rand() * 4))
        return frame(self._changed(handle), channel)

    def _changed(self, handle: int) -> bytes:
        """What begins or ends something."""
        rand = self.chance.random
        what = rand()
        if what < 0.5:
            name, address, is_receiver = NODES[int(rand() * len(NODES))]
            if rand() < 0.1:
                name = "n" * self.chance.choice((200, 480, 3_000))
            made = attach(20 + self._number % 200, name, address, is_receiver)
            if rand() < 0.15:
                made = coordinator(20 + self._number % 200)
            return p.encode_performative(made)
        if what < 0.9:
            error = p.Error("amqp:x", "t") if rand() < 0.3 else None
            return p.encode_performative(p.Detach(handle, rand() < 0.7, error))
        return b"\x00\x53" + bytes((0x10 + int(rand() * 9),)) + value(self.chance)


_CHANNELS: Final = (1, 2, 255, 256, 65_535)
_ODD_HANDLES: Final = (1, 3, 20, 21, 255, 256, 2**32 - 1)
_NUMBERS: Final = (0, 1, 2, 3, 5, 100, 2**31, 2**32 - 2, 2**32 - 1)
