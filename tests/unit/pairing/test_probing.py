"""A probe, with a sender that only says what it is told to say (N8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk

from tandembus.clock import ManualClock
from tandembus.pairing.heart import Health, Heart
from tandembus.pairing.ledger import Ledger
from tandembus.pairing.options import PairingOptions, Probe
from tandembus.pairing.probing import probe
from tandembus.pairing.sending import run_blocking


class Client:
    """Its own sender, too."""

    _amqp_transport = object

    def __init__(self, error: Exception | None) -> None:
        self.calls: list[str] = []
        self._error = error

    def get_queue_sender(self, path: str) -> Client:
        self.calls.append(path)
        return self

    def send_messages(self, message: Any, timeout: float) -> None:
        self.calls.append("send")
        if self._error is not None:
            raise self._error

    def _open(self, timeout: float) -> None:
        self.calls.append("attach")
        if self._error is not None:
            raise self._error

    def _do_retryable_operation(
        self, operation: Callable[..., Any], timeout: float, operation_requires_timeout: bool
    ) -> Any:
        assert operation_requires_timeout
        return operation(timeout)

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.req("N8")
@pytest.mark.parametrize("how", list(Probe))
@pytest.mark.parametrize(
    ("error", "is_back"),
    [
        (None, True),
        (sdk.ServiceBusConnectionError(), False),
        (sdk.OperationTimeoutError(), False),
        (sdk.MessagingEntityDisabledError(), False),
        (AttributeError("the SDK trips"), False),
        # A queue with sessions on Azure, which knows no pings any more: it takes sends.
        (sdk.ServiceBusError("no session id", condition="amqp:not-allowed"), True),
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_counts_as_an_answer(how: Probe, error: Exception | None, is_back: bool) -> None:
    """An answer brings all back; no answer, and the entity is asked again. A ping that was taken
    is one operation, a link none; the sender is closed in any case."""
    heart = Heart(PairingOptions(failover_interval=timedelta(), probe=how), ManualClock())
    heart.engage("orders")
    entity, ledger, client = heart.entity("orders"), Ledger(), Client(error)
    run_blocking(probe(client, entity, heart, ledger))
    assert (entity.health is Health.HEALTHY) is is_back
    assert client.calls == ["orders", "send" if how is Probe.PING else "attach", "close"]
    assert ledger.total().pings == (error is None and how is Probe.PING)
