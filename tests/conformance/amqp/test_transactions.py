"""AMQP 1.0 part 4: the shapes of transactions, carried through."""

from __future__ import annotations

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.performatives import decode_performative, encode_performative
from tandembus.errors import ProtocolError
from tests.conformance.amqp.peer import Peer


def test_coordinator() -> None:
    """AMQP 1.0 §4.5.1 coordinator: a target with descriptor 0x30."""
    peer = Peer().begun()
    target = p.Coordinator(("amqp:local-transactions",))
    link = peer.attach(is_sender=True, target=target)
    assert link.remote is not None
    assert link.remote.target == target
    link.accept()
    assert peer.answer().target == target


def test_coordinator_without_capabilities() -> None:
    """AMQP 1.0 §4.5.1 capabilities: optional."""
    assert encode_performative(p.Coordinator()) == b"\x00\x53\x30\x45"


def test_declare() -> None:
    """AMQP 1.0 §4.5.2 declare: descriptor 0x31, an optional global-id."""
    assert encode_performative(p.Declare()) == b"\x00\x53\x31\x45"
    assert decode_performative(b"\x00\x53\x31\xc0\x02\x01\x40")[0] == p.Declare()


def test_discharge() -> None:
    """AMQP 1.0 §4.5.3 discharge: txn-id is mandatory, fail is false unless it says so."""
    assert decode_performative(b"\x00\x53\x32\xc0\x04\x01\xa0\x01x")[0] == p.Discharge(b"x")
    assert decode_performative(encode_performative(p.Discharge(b"x", True)))[0].fail
    with pytest.raises(ProtocolError):
        decode_performative(b"\x00\x53\x32\x45")


def test_declared() -> None:
    """AMQP 1.0 §4.5.5 declared: the outcome of a declare, with its txn-id."""
    peer = Peer().begun()
    link = peer.receiving(target=p.Coordinator())
    peer.transfer(0, encode_performative(p.Declare()))
    link.settle([0], p.Declared(b"txn"))
    assert peer.answer().state == p.Declared(b"txn")


def test_transactional_transfer() -> None:
    """AMQP 1.0 §4.4.2: a transfer's state is a transactional-state with the txn-id."""
    peer = Peer().begun()
    peer.receiving()
    (event,) = peer.transfer(0, state=p.TransactionalState(b"txn"))
    assert event.state == p.TransactionalState(b"txn")  # type: ignore[union-attr]


def test_transactional_transfer_in_frames() -> None:
    """AMQP 1.0 §4.4.2: the state may come with any frame of the delivery."""
    peer = Peer().begun()
    peer.receiving()
    peer.transfer(0, more=True, state=p.TransactionalState(b"txn"))
    (event,) = peer.transfer(0)
    assert event.state == p.TransactionalState(b"txn")  # type: ignore[union-attr]


def test_transactional_answer() -> None:
    """AMQP 1.0 §4.4.2: our disposition has the transactional-state with the outcome inside."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0, state=p.TransactionalState(b"txn"))
    state = p.TransactionalState(b"txn", p.ACCEPTED)
    link.settle([0], state)
    assert peer.answer().state == state


def test_transactional_retirement() -> None:
    """AMQP 1.0 §4.4.3: a disposition's transactional-state holds the outcome, any of them."""
    for outcome in (p.ACCEPTED, p.RELEASED, p.Rejected(p.Error("a:b")), p.Modified(True, False)):
        peer = Peer().begun()
        peer.sending().deliver(b"t", [b"m"])
        (event,) = peer.disposition(0, state=p.TransactionalState(b"txn", outcome))
        assert event.state == p.TransactionalState(b"txn", outcome)  # type: ignore[union-attr]


def test_state_inside_a_state() -> None:
    """AMQP 1.0 §4.5.8 outcome: an outcome; not another transactional-state, not received."""
    nested = p.TransactionalState(b"a", p.TransactionalState(b"b"))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        decode_performative(encode_performative(nested))


def test_transaction_errors() -> None:
    """AMQP 1.0 §4.5.9: a discharge is rejected with the transaction's error."""
    peer = Peer().begun()
    link = peer.receiving(target=p.Coordinator())
    peer.transfer(0, encode_performative(p.Discharge(b"gone")))
    link.settle([0], p.Rejected(p.Error("amqp:transaction:unknown-id")))
    assert peer.answer().state.error.condition == "amqp:transaction:unknown-id"


def test_transactional_delivery() -> None:
    """AMQP 1.0 §4.4.4: a delivery of ours may carry a transactional-state."""
    peer = Peer().begun()
    peer.sending().deliver(b"t", [b"m"], state=p.TransactionalState(b"txn"))
    assert peer.answer().state == p.TransactionalState(b"txn")
