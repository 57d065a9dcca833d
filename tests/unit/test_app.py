"""`app.py`: which settings are refused, which ports are taken, who is let in by which file."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tandembus.app import EMULATOR_KEY, ROOT_POLICY, Server, event_loop, read_policies
from tandembus.config import ServerConfig
from tandembus.config import server as settings
from tandembus.core.access import Right
from tandembus.core.commands import CreateQueue
from tandembus.errors import ArgumentError
from tandembus.server.listener import is_loopback
from tests.unit.server.access_world import encoded, signed_jwt
from tests.unit.server.visitor import UNAUTHORIZED, Refusal, Visitor

KEY, OTHER_KEY = "a key of the operator", "another key of the operator"


def serving(options: ServerConfig, work: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await Server.start(options)
        try:
            async with asyncio.timeout(60):
                await work(server)
        finally:
            await server.stop()

    asyncio.run(run())


def refused(options: ServerConfig) -> str:
    """The words with which it does not start."""
    with pytest.raises(ArgumentError) as caught:
        asyncio.run(Server.start(options))
    return str(caught.value)


def policy(name: str, *rights: str, key: str = KEY) -> dict[str, Any]:
    return {"name": name, "rights": rights, "primary_key": key, "secondary_key": key}


def write_policies(folder: Path, *policies: object) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / "policies.json"
    file.write_text(json.dumps({"policies": policies}))
    file.chmod(0o600)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def comes_in(server: Server, name: str, key: str) -> bool:
    visitor = Visitor(server.ports[0], name, key)
    try:
        await visitor.come()
    except Refusal:
        return False
    finally:
        await visitor.leave()
    return True


# --- settings that cannot work --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"ports": (70_000,)}, "--port"),
        ({"ports": (-1,)}, "--port"),
        ({"ports": ()}, "--port"),
        ({"namespace": ""}, "--namespace"),
        ({"namespace": "a b"}, "--namespace"),
        ({"namespace": "n" * 51}, "--namespace"),
        ({"host": "no-such-host.invalid"}, "--host"),
        ({"host": "192.0.2.1"}, "--host"),
        ({"certificate": Path("missing.pem")}, "--certificate"),
        ({"private_key": Path("missing.key")}, "--private-key"),
        ({"certificate": Path("missing"), "private_key": Path("missing")}, "--certificate"),
        ({"is_emulator": True, "host": "0.0.0.0"}, "--emulator"),
        ({"jwt_keys": Path("missing.json")}, "--jwt-keys"),
        ({"jwt_keys": Path(__file__)}, "--jwt-keys"),
    ],
)
def test_a_setting_that_cannot_work(tmp_path: Path, settings: dict[str, Any], name: str) -> None:
    """It is refused at the start, by its name, and the folder is free again."""
    options = ServerConfig(tmp_path / "data", **{"ports": (0,), **settings})
    assert name in refused(options)

    async def nothing(server: Server) -> None: ...

    serving(ServerConfig(tmp_path / "data", ports=(0,)), nothing)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """On one of the host's addresses is enough; none of the others is left open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}" in refused(ServerConfig(tmp_path, ports=(port,)))


def test_all_namespaces_share_the_turns_of_the_loop(tmp_path: Path) -> None:
    """Who asks for little is noted by the listener; the connections have to see it."""

    async def work(server: Server) -> None:
        assert all(each.broker.turns is server._directory.turns for each in server.namespaces)

    serving(ServerConfig(tmp_path, ports=(0,)), work)


# --- standard ports -------------------------------------------------------------------------------


def test_standard_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that can be had are, and the others are told with the reason; the ports that were asked
    for by number come first."""
    plain, encrypted, free = free_port(), free_port(), free_port()
    monkeypatch.setattr(settings, "TLS_PORTS", (encrypted,))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = taken.getsockname()[1]
        monkeypatch.setattr(settings, "STANDARD_PORTS", (plain, encrypted, busy, free))

        async def work(server: Server) -> None:
            assert server.ports == [plain, free]
            assert set(server.unbound) == {encrypted, busy}
            assert "--certificate" in server.unbound[encrypted]
            assert str(busy) in server.unbound[busy]

        serving(ServerConfig(tmp_path, "ns", "127.0.0.1", (), use_standard_ports=True), work)

        async def both(server: Server) -> None:
            assert server.ports[1:] == [plain, free]

        serving(ServerConfig(tmp_path, "ns", "127.0.0.1", (0,), use_standard_ports=True), both)

        monkeypatch.setattr(settings, "STANDARD_PORTS", (busy, encrypted))
        words = refused(ServerConfig(tmp_path, "ns", "127.0.0.1", (), use_standard_ports=True))
        assert "--standard-ports" in words
        assert str(busy) in words


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.req("C3")
def test_the_first_start_makes_a_key(tmp_path: Path) -> None:
    """For nobody else to read, another one for each folder, and the same at the next start."""
    one, two = read_policies(tmp_path / "one"), read_policies(tmp_path / "two")
    assert [(each.name, each.rights) for each in one] == [(ROOT_POLICY, Right.ALL)]
    keys = {each.primary_key for each in (*one, *two)} | {each.secondary_key for each in one}
    assert len(keys) == 3
    assert min(map(len, keys)) >= 40
    assert (tmp_path / "one" / "policies.json").stat().st_mode & 0o777 == 0o600
    assert read_policies(tmp_path / "one") == one


@pytest.mark.parametrize(
    "policies",
    [
        [],
        [policy("a", "Send"), policy("a", "Listen")],
        [policy("a", "Send", key="short")],
        [policy("a", "Send", key="")],
        [policy("a")],
        [policy("", "Send")],
        [policy("a", "Fly")],
        [{"name": "a", "rights": "Send", "primary_key": KEY, "secondary_key": KEY}],
        [{"name": "a", "rights": ["Send"], "primary_key": KEY}],
        [{"name": "a", "rights": ["Send"], "primary_key": KEY, "secondary_key": None}],
        [[KEY]],
        [KEY],
    ],
)
def test_policies_that_cannot_work(tmp_path: Path, policies: list[Any]) -> None:
    """An empty list among them: it would be nobody, and must not become everybody. The words name
    the file, and show no key."""
    write_policies(tmp_path, *policies)
    words = refused(ServerConfig(tmp_path, ports=(0,)))
    assert "policies.json" in words
    assert KEY not in words


def test_a_file_that_others_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_policies(tmp_path, policy("a", "Send"))
    read_policies(tmp_path)
    assert not caplog.records
    (tmp_path / "policies.json").chmod(0o644)
    read_policies(tmp_path)
    assert "chmod 600" in caplog.text


def test_policies_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new key counts at once, what rested on the old one ends, and a file that cannot be read
    changes nothing."""
    write_policies(tmp_path, policy("a", "Send"), policy("b", "Send"))

    async def work(server: Server) -> None:
        await server.broker.engine.execute(CreateQueue("q"))
        goes, stays = (Visitor(server.ports[0], name, KEY) for name in ("a", "b"))
        links = []
        for visitor in (goes, stays):
            await visitor.come()
            links.append(await visitor.attach("q", sends=True))
        write_policies(tmp_path, policy("a", "Send", key="short"))
        server.reload()
        assert "stay as they are" in caplog.text
        assert await comes_in(server, "a", KEY)
        write_policies(tmp_path, policy("a", "Send", key=OTHER_KEY), policy("b", "Send"))
        server.reload()
        assert await goes.detached(links[0]) == UNAUTHORIZED
        await stays.deliver(links[1], b"\x00\x53\x75\xa0\x01x")
        assert await comes_in(server, "a", OTHER_KEY)
        assert not await comes_in(server, "a", KEY)
        for visitor in (goes, stays):
            await visitor.leave()

    serving(ServerConfig(tmp_path, ports=(0,)), work)


def test_without_a_root_policy(tmp_path: Path) -> None:
    """The connection string is that of the policy that can do most."""
    write_policies(tmp_path, policy("a", "Send"), policy("m", "Manage", key=OTHER_KEY))

    async def work(server: Server) -> None:
        assert f"SharedAccessKeyName=m;SharedAccessKey={OTHER_KEY};" in server.connection_string

    serving(ServerConfig(tmp_path, ports=(0,)), work)


def test_the_emulator_s_key(tmp_path: Path) -> None:
    """It counts when it was asked for, beside the operator's own; and not otherwise."""
    write_policies(tmp_path, policy(ROOT_POLICY, "Manage"), policy("a", "Send"))

    async def emulator(server: Server) -> None:
        assert await comes_in(server, ROOT_POLICY, EMULATOR_KEY)
        assert await comes_in(server, ROOT_POLICY, KEY)
        assert await comes_in(server, "a", KEY)
        assert not await comes_in(server, "a", EMULATOR_KEY)
        assert EMULATOR_KEY in server.connection_string

    async def plain(server: Server) -> None:
        assert not await comes_in(server, ROOT_POLICY, EMULATOR_KEY)
        assert EMULATOR_KEY not in server.connection_string

    serving(ServerConfig(tmp_path, ports=(0,), is_emulator=True), emulator)
    serving(ServerConfig(tmp_path, ports=(0,)), plain)


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::1%lo", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_loopback(address: str, is_here: bool) -> None:
    """Of an address, never of a name."""
    assert is_loopback(address) == is_here


def test_a_peer_from_elsewhere_is_turned_away(tmp_path: Path) -> None:
    """By its own address, whatever address it came to (S12): with the emulator's key nobody but
    this machine is let in, even if the socket could be reached."""
    own = _own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")

    async def reaches(server: Server) -> bool:
        port = await server._listener.bind("0.0.0.0", 0)
        reader, writer = await asyncio.open_connection(own, port)
        writer.write(b"AMQP\x03\x01\x00\x00")
        try:
            return bool(await reader.read(8))
        except ConnectionError:
            return False
        finally:
            writer.close()

    async def emulator(server: Server) -> None:
        assert not await reaches(server)
        assert await comes_in(server, ROOT_POLICY, EMULATOR_KEY)

    async def plain(server: Server) -> None:
        assert await reaches(server)

    serving(ServerConfig(tmp_path, ports=(0,), is_emulator=True), emulator)
    serving(ServerConfig(tmp_path, ports=(0,)), plain)


def _own_address() -> str | None:
    """Of this machine, as others would see it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if is_loopback(address) else address


# --- JWTs -----------------------------------------------------------------------------------------


def test_the_keys_of_a_directory(tmp_path: Path) -> None:
    """`jwt.json` of the folder, or the file that was named; without either, a directory's token is
    worth nothing."""
    secret = "a secret that a directory signs with"
    tree = {"keys": [{"kty": "oct", "k": encoded(secret.encode())}], "issuers": ["me"]}
    write_policies(tmp_path, policy("a", "Send"))
    claims = {
        "aud": "https://servicebus.azure.net",
        "iss": "me",
        "exp": 32_503_680_000,
        "roles": ["Azure Service Bus Data Owner"],
    }

    async def is_taken(server: Server) -> bool:
        if "q" not in server.broker.namespace:
            await server.broker.engine.execute(CreateQueue("q"))
        visitor = Visitor(server.ports[0])
        await visitor.come()
        try:
            await visitor.put_token(signed_jwt(secret, claims), "sb://localhost/q")
        except Refusal:
            return False
        finally:
            await visitor.leave()
        return True

    async def yes(server: Server) -> None:
        assert await is_taken(server)

    async def no(server: Server) -> None:
        assert not await is_taken(server)
        (tmp_path / "jwt.json").write_text(json.dumps(tree))
        server.reload()
        assert await is_taken(server)

    serving(ServerConfig(tmp_path, ports=(0,)), no)
    serving(ServerConfig(tmp_path, ports=(0,)), yes)
    named = tmp_path / "named.json"
    (tmp_path / "jwt.json").rename(named)
    serving(ServerConfig(tmp_path, ports=(0,), jwt_keys=named), yes)


# --- the event loop -------------------------------------------------------------------------------


def test_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's where it is installed, and asyncio's otherwise."""

    class Uvloop:
        __version__ = "9.9"

        @staticmethod
        def new_event_loop() -> asyncio.AbstractEventLoop:
            return asyncio.new_event_loop()

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop() == ("asyncio", asyncio.new_event_loop)
    monkeypatch.setitem(sys.modules, "uvloop", Uvloop)
    assert event_loop() == ("uvloop 9.9", Uvloop.new_event_loop)
