"""The three state tables of the transport: connection, session, link.

Here lives what each performative means in each state, and nothing that acts on it. Every pair has
an entry (tests/unit/amqp/test_states.py counts them): a frame before its session began, or after it
ended, has crashed brokers before (CVE-2015-0203).

    TAKE    handled               IGNORE  read past, no answer
    REFUSE  an error of that level: the connection is closed, or the link detached
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tandembus.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
)


class Role(Enum):
    """Which end of a connection is ours."""

    SERVER = "server"
    CLIENT = "client"


class Action(Enum):
    TAKE = "take"
    IGNORE = "ignore"
    REFUSE = "refuse"


class ConnectionState(Enum):
    """What we wait for from the peer; our own half follows from it and from what we have sent."""

    HEADER = "a protocol header"
    SASL = "a SASL frame"
    AMQP_HEADER = "the AMQP header"
    OPEN = "open"
    OPENED = "anything"
    CLOSE_SENT = "close"
    FINISHED = "nothing"


class SessionState(Enum):
    BEGIN_SENT = "begin sent"
    MAPPED = "mapped"
    END_SENT = "end sent"
    ENDED = "ended"


class LinkState(Enum):
    ATTACH_SENT = "attach sent"
    ATTACH_RECEIVED = "attach received"
    ATTACHED = "attached"
    DETACH_SENT = "detach sent"
    DETACH_RECEIVED = "detach received"
    DETACHED = "detached"


_LINK_FRAMES: Final = (ATTACH, FLOW, TRANSFER, DETACH)
_SESSION_FRAMES: Final = (ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END)
_FRAMES: Final = (OPEN, BEGIN, *_SESSION_FRAMES, CLOSE)


def _row(frames: tuple[int, ...], others: Action, **exceptions: Action) -> dict[int, Action]:
    codes = {
        "open": OPEN, "begin": BEGIN, "attach": ATTACH, "flow": FLOW, "transfer": TRANSFER,
        "detach": DETACH, "end": END, "close": CLOSE,
    }  # fmt: skip
    return dict.fromkeys(frames, others) | {codes[name]: it for name, it in exceptions.items()}


# §2.4.6. In the states that wait for headers or SASL, frames of AMQP's type are refused before
# anybody looks inside.
CONNECTION: Final[dict[ConnectionState, dict[int, Action]]] = {
    ConnectionState.HEADER: _row(_FRAMES, Action.REFUSE),
    ConnectionState.SASL: _row(_FRAMES, Action.REFUSE),
    ConnectionState.AMQP_HEADER: _row(_FRAMES, Action.REFUSE),
    ConnectionState.OPEN: _row(_FRAMES, Action.REFUSE, open=Action.TAKE),
    ConnectionState.OPENED: _row(_FRAMES, Action.TAKE, open=Action.REFUSE),
    ConnectionState.CLOSE_SENT: _row(_FRAMES, Action.IGNORE, close=Action.TAKE),
    ConnectionState.FINISHED: _row(_FRAMES, Action.IGNORE),
}

# §2.5.5. Before the peer's begin it has no channel to send on; after our end all but its end is
# discarded; after both ends the channel is free. A second begin on a channel is never right.
SESSION: Final[dict[SessionState, dict[int, Action]]] = {
    SessionState.BEGIN_SENT: _row(_SESSION_FRAMES, Action.IGNORE, begin=Action.TAKE),
    SessionState.MAPPED: _row(_SESSION_FRAMES, Action.TAKE, begin=Action.REFUSE),
    SessionState.END_SENT: _row(
        _SESSION_FRAMES, Action.IGNORE, begin=Action.REFUSE, end=Action.TAKE
    ),
    SessionState.ENDED: _row(_SESSION_FRAMES, Action.IGNORE, begin=Action.TAKE),
}

# §2.6.3-6. Where a link waits for an attach it has no incoming handle yet. Flow may come before we
# have answered an attach (Proton sends both at once), a transfer may not: nobody has allowed it.
# Between our detach and the peer's, all that was under way is ignored; between the peer's and ours,
# what came before is answered. A second attach on a handle
# is an error of the session.
LINK: Final[dict[LinkState, dict[int, Action]]] = {
    LinkState.ATTACH_SENT: _row(_LINK_FRAMES, Action.REFUSE, attach=Action.TAKE),
    LinkState.ATTACH_RECEIVED: _row(
        _LINK_FRAMES, Action.REFUSE, flow=Action.TAKE, detach=Action.TAKE
    ),
    LinkState.ATTACHED: _row(_LINK_FRAMES, Action.TAKE, attach=Action.REFUSE),
    LinkState.DETACH_SENT: _row(
        _LINK_FRAMES, Action.IGNORE, attach=Action.REFUSE, detach=Action.TAKE
    ),
    LinkState.DETACH_RECEIVED: _row(_LINK_FRAMES, Action.IGNORE, attach=Action.REFUSE),
    LinkState.DETACHED: _row(_LINK_FRAMES, Action.IGNORE, attach=Action.TAKE),
}
