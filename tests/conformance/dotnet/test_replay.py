"""What the real .NET SDK sent, played again against a real broker: it gets the answers it needs.

`traces` has 26 scenarios of its AMQP, one over WebSocket, and a conversation of its administration
client, byte for byte. How they are played is `replay` and `replay_admin`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest

from tandembus.amqp.performatives import Detach
from tandembus.config.server import ServerConfig
from tandembus.core.sas import sign
from tandembus.store.memory import MemoryStore
from tandembus.testing import LocalBroker
from tandembus.testing.broker import ROOT
from tests.conformance.amqp.peer import Disposition
from tests.conformance.dotnet import recording, replay_admin
from tests.conformance.dotnet.replay import DifferenceError, Player

SETTINGS: Final[dict[str, dict[str, str | int | bool]]] = {
    "lock-lost": {"LockDuration": "PT5S"},
    "dead-letter-max": {"MaxDeliveryCount": 2},
    "duplicates-ttl": {
        "RequiresDuplicateDetection": True,
        "DeadLetteringOnMessageExpiration": True,
    },
    "sessions": {"RequiresSession": True},
    "next-session-none": {"RequiresSession": True},
    "session-processor": {"RequiresSession": True},
    "session-prefetch": {"RequiresSession": True},
}
"""Of the queue, beside the defaults; the recorder made it by the administration client."""
WEBSOCKET: Final = "websocket"
SCENARIOS: Final = [name for name in recording.names() if name not in ("admin", WEBSOCKET)]


@contextmanager
def premium(name: str) -> Iterator[LocalBroker]:
    """A broker as the recorded one was set up, with the entities of a scenario."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        config = ServerConfig(Path(folder), ports=(0,), is_emulator=True, is_premium=True)
        with LocalBroker(config, MemoryStore(), None) as broker:
            settings = {"MaxMessageSizeInKilobytes": 1_024, **SETTINGS.get(name, {})}
            broker.create_queue(f"tour-{name}", **settings)
            broker.create_topic(f"topic-{name}")
            broker.create_subscription(f"topic-{name}", "sub")
            yield broker


def disable_sends(broker: LocalBroker, queue: str) -> None:
    token = sign(f"http://{broker.address}", ROOT, broker.key, int(time.time()) + 600)
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/'
        'connect"><Status>SendDisabled</Status></QueueDescription></content></entry>'
    )
    headers = {"Authorization": token, "If-Match": "*", "Content-Type": "application/atom+xml"}
    connection = HTTPConnection(broker.address)
    connection.request("PUT", f"/{queue}?api-version=2021-05", body, headers)
    assert connection.getresponse().status == 200
    connection.close()


def frames_of(name: str, number: int = 1) -> list[recording.Frame]:
    return recording.frames(recording.chunks(name, number))


@pytest.mark.req("C7")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_scenario_is_answered_as_its_client_needs(name: str) -> None:
    first = frames_of(name)

    def beside(broker: LocalBroker, place: int) -> None:
        """What the recorded program did meanwhile, on another connection or by HTTP."""
        before, at = first[max(place - 1, 0)].at_ms, first[place].at_ms
        if name == "cross-entity-transaction" and before <= 200 < at:
            Player(broker, frames_of(name, 2)).play()
        elif name == "errors" and before <= 1_900 < at:
            Player(broker, frames_of(name, 2), has_key=False).play()
            disable_sends(broker, "tour-errors")

    with premium(name) as broker:
        Player(broker, first).play(lambda place: beside(broker, place))


@pytest.mark.req("C7")
def test_fx2_the_recorded_websocket_is_answered_as_its_client_needs() -> None:
    """It asks for `/$servicebus/websocket/`, with a slash at the end."""
    request, inner = recording.inside_websocket(recording.chunks(WEBSOCKET, 1))
    with premium("send-receive") as broker:
        Player(broker, recording.frames(inner), request).play()


def test_a_difference_is_told() -> None:
    """The canary: a queue that is not as the recorded one was."""
    with premium("send-receive") as broker:
        disable_sends(broker, "tour-send-receive")
        with pytest.raises(DifferenceError, match="outcome"):
            Player(broker, frames_of("send-receive")).play()


@pytest.mark.parametrize("kind", [Disposition, Detach])
def test_an_answer_that_is_not_recorded_is_told(kind: type) -> None:
    """The canary: the broker answers once more than in the recording, which lacks one."""
    recorded = frames_of("send-receive")
    last = [it for it in recorded if not it.is_client and isinstance(it.performative, kind)][-1]
    rest = [it for it in recorded if it is not last]
    with premium("send-receive") as broker, pytest.raises(DifferenceError, match="beside what"):
        Player(broker, rest).play()


def test_a_time_that_is_not_as_recorded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a lock is longer than the recorded one."""
    monkeypatch.setitem(SETTINGS, "send-receive", {"LockDuration": "PT5M"})
    with premium("send-receive") as broker, pytest.raises(DifferenceError, match="locked-until"):
        Player(broker, frames_of("send-receive")).play()


@pytest.mark.req("C2")
def test_the_recorded_administration_client_is_answered_as_it_needs() -> None:
    """Statuses, elements, their order, their types and texts."""
    with premium("admin") as broker:
        assert replay_admin.play(broker, recording.chunks("admin", 1)) > 20
