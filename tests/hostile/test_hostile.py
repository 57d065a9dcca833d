"""A slice of every hostile scenario: the broker stands it, says no where it must, loses nothing.

No times are judged here, since a busy machine would make them; `make hostile` does that.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.amqp.events import MessageReceived
from tandembus.amqp.message import encode_message
from tandembus.limits import MAX_UNAUTHENTICATED_PER_ADDRESS
from tandembus.testing import BrokerProcess

from . import connections, crowded
from . import run as runs
from .attack import Plan, load
from .calm import QUEUE, Calm
from .run import CAP_MIB, broker_for_attacks, resident_mib
from .wire import Hung, Target, Wire, connected, is_hung_up, trusting

SECONDS = 0.6
SCALE = 0.02


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Target]]:
    process, target = broker_for_attacks(tmp_path_factory.mktemp("hostile"))
    with process:
        yield process, target


async def _attacked(target: Target, plan: Plan, scenario: str) -> Calm:
    calm = Calm(target, 20)
    await calm.connect()
    running = asyncio.ensure_future(calm.run())
    try:
        await asyncio.to_thread(load()[scenario], plan)
    finally:  # a receiver that stays behind would take the next scenario's messages
        calm.stop()
        await running
    return calm


@pytest.mark.parametrize("scenario", sorted(load()))
def test_the_broker_stands(scenario: str, broker: tuple[BrokerProcess, Target]) -> None:
    """What the attacker should be refused, it is; the client beside it gets every message once; and
    somebody new is served afterwards."""
    process, target = broker
    plan = Plan(target, SECONDS, SCALE)
    plan.begin()
    try:
        calm = asyncio.run(_attacked(target, plan, scenario))
    finally:
        plan.end()
    assert plan.deed.wrongs == []
    assert (calm.trouble, calm.missing, calm.duplicates) == (None, 0, 0)
    assert process.process.poll() is None
    assert resident_mib(process.process.pid) < CAP_MIB
    with Wire.opened(target) as wire:
        wire.attach(QUEUE, is_sender=True)


def test_silent_strangers_make_room(broker: tuple[BrokerProcess, Target]) -> None:
    """More connections from one address than may be unknown at once, and none says a word: the next
    client comes in all the same, because they are let go."""
    _, target = broker
    silent = [connected(target) for _ in range(MAX_UNAUTHENTICATED_PER_ADDRESS + 20)]
    try:
        with Wire.opened(target) as wire:
            wire.attach(QUEUE, is_sender=True)
        assert any(is_hung_up(sock, 0.1) for sock in silent[:5])
    finally:
        for sock in silent:
            sock.close()


def test_a_herd_comes_in(broker: tuple[BrokerProcess, Target]) -> None:
    """Twice as many honest clients as may be unknown from one address connect at the same moment,
    as after a restart: every one of them is served."""
    _, target = broker
    wires = [Wire(target) for _ in range(2 * MAX_UNAUTHENTICATED_PER_ADDRESS)]
    try:
        for wire in wires:
            wire.connection.open()
            wire.flush()
        for wire in wires:
            wire.open()
    finally:
        for wire in wires:
            wire.socket.close()


def test_tls_on_the_same_port(broker: tuple[BrokerProcess, Target]) -> None:
    """Large messages both ways through our own TLS, and an end that the client is told."""
    _, target = broker
    if not target.has_tls:
        pytest.skip("this machine cannot make a certificate")
    with Wire.opened(target, tls=True) as wire:
        link = wire.attach("large", is_sender=True)
        body = bytes(range(256)) * 700
        for number in range(5):
            link.deliver(b"%d" % number, [encode_message(body=body, message_id=f"{number}")])
        wire.talk(lambda: not link.session.outgoing.entries)
        receiver = wire.attach("large", is_sender=False)
        receiver.grant(5)

        def received() -> list[MessageReceived]:
            return [event for event in wire.events if isinstance(event, MessageReceived)]

        wire.talk(lambda: len(received()) == 5)
        assert all(body in event.payload for event in received())
        wire.connection.close()
        wire.talk(lambda: wire.connection.is_finished)
        assert wire.socket.recv(100) == b""


def test_old_tls_is_refused(broker: tuple[BrokerProcess, Target]) -> None:
    """A client that knows nothing newer than TLS 1.1 gets nowhere."""
    _, target = broker
    if not target.has_tls:
        pytest.skip("this machine cannot make a certificate")
    context = trusting()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with connected(target) as sock, pytest.raises(OSError):
        context.wrap_socket(sock)


def test_idle_connections_are_held(tmp_path: Path) -> None:
    """Some hundred, plain and inside TLS: none is lost, and a client works beside them."""
    process, target = broker_for_attacks(tmp_path)
    with process:
        for tls in (False, True) if target.has_tls else (False,):
            idle = connections.Idle(target, 100, tls=tls)
            try:
                with Wire.opened(target, tls=tls) as wire:
                    wire.attach(QUEUE, is_sender=True)
                time.sleep(0.2)
                assert idle.lost == 0
            finally:
                idle.close()


@pytest.mark.req("T18")
def test_fx9_fx10_one_connection_has_many_links_and_deliveries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As .NET uses it: 300 session receivers and 1,000 senders that all work, and 6,000 unsettled
    on one link; `make connections` has the full counts."""
    code = crowded.main(["--links", "2000", "--unsettled", "6000"])
    assert code == 0, capsys.readouterr().out


def test_the_quota_of_connections_is_kept(tmp_path: Path) -> None:
    """One more than `--max-connections` is hung up on; when one has gone, the next is served."""
    with BrokerProcess.start(
        tmp_path, arguments=["--emulator", "--max-connections", "3"]
    ) as process:
        target = Target(process.port, process.key)
        wires = [Wire.opened(target) for _ in range(3)]
        with connected(target) as sock:
            assert is_hung_up(sock)
        wires.pop().socket.close()
        deadline = time.monotonic() + 20
        while True:
            try:
                Wire.opened(target).socket.close()
                break
            except (OSError, Hung):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        for wire in wires:
            wire.socket.close()


def test_a_failure_says_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is the command that runs the scenario that failed, and no other."""

    def measured(scenario: str, *_: object) -> runs.Result:
        wrongs = ["3 are missing"] if scenario == "H9-sessions" else []
        return runs.Result(scenario, 3.0, 3.0, 4.0, 30.0, 0.0, {}, wrongs)

    monkeypatch.setattr(runs, "measured", measured)
    monkeypatch.setattr(runs, "be_first", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["run", "--seconds", "7"])
    assert runs.main() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == 'repeat: make hostile ATTACK_S=7 ARGS="--only H9-sessions --calm 10"'
    assert [name for name in load() if name.startswith("H9-sessions")] == ["H9-sessions"]
    monkeypatch.setattr("sys.argv", ["run", "--seconds", "7", "--only", "H1"])
    assert runs.main() == 0
    assert "repeat:" not in capsys.readouterr().out


def test_a_standstill_excuses_no_other_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine stood still, the latency is measured again; what was lost is lost."""

    def result(stood_still_s: float, *wrongs: str) -> runs.Result:
        return runs.Result("H0", 3.0, 3.0, 4.0, 30.0, stood_still_s, {}, list(wrongs))

    def measured(*results: runs.Result) -> list[str]:
        found = iter(results)

        async def run(*_: object, **__: object) -> runs.Result:
            return next(found)

        monkeypatch.setattr(runs, "run", run)
        return runs.measured("H0", 1, 1).judge()

    assert measured(result(0.6), result(0.0)) == []
    assert measured(result(0.6, "3 are missing"), result(0.0)) == ["3 are missing"]
    assert "stood still" in measured(*[result(0.6)] * runs.MOST_TRIES)[0]
