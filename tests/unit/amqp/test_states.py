"""The state tables: every pair of state and performative has an entry."""

from __future__ import annotations

from tandembus.amqp import states as s
from tandembus.amqp.states import Action

FRAMES = set(range(0x10, 0x19))


def test_every_pair_of_a_connection() -> None:
    """Seven states, nine performatives."""
    assert set(s.CONNECTION) == set(s.ConnectionState)
    for row in s.CONNECTION.values():
        assert set(row) == FRAMES
    assert s.CONNECTION[s.ConnectionState.OPEN][0x10] is Action.TAKE
    assert s.CONNECTION[s.ConnectionState.OPENED][0x10] is Action.REFUSE


def test_every_pair_of_a_session() -> None:
    """All that has a channel of its own."""
    assert set(s.SESSION) == set(s.SessionState)
    for row in s.SESSION.values():
        assert set(row) == FRAMES - {0x10, 0x18}
    assert s.SESSION[s.SessionState.END_SENT][0x17] is Action.TAKE
    assert s.SESSION[s.SessionState.END_SENT][0x14] is Action.IGNORE


def test_every_pair_of_a_link() -> None:
    """All that has a handle."""
    assert set(s.LINK) == set(s.LinkState)
    for row in s.LINK.values():
        assert set(row) == {0x12, 0x13, 0x14, 0x16}
    assert s.LINK[s.LinkState.ATTACH_RECEIVED][0x14] is Action.REFUSE
