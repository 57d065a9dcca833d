"""Several namespaces in one process: told by port, by host name, by key; never by a guess."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandembus.app import Served
from tandembus.client import Client
from tandembus.config import NamespaceConfig, ServerConfig
from tandembus.core.access import everything
from tandembus.core.commands import CreateQueue, DeleteEntity
from tandembus.core.sas import sign
from tandembus.errors import TandemError, UnauthorizedError
from tandembus.testing import LocalBroker
from tests.client import certificates
from tests.unit.server.visitor import Refusal, Visitor


class Pair:
    """Two namespaces, `red` and `blue`, each with a queue `q` that has one message: its name."""

    def __init__(self, broker: LocalBroker) -> None:
        assert broker.server is not None
        self.broker = broker
        self.server = broker.server
        self.port = (self.server.ports or self.server.namespaces[0].ports)[0]
        for each in self.server.namespaces:
            broker.run(each.broker.execute(CreateQueue("q"), everything()))

    def string(self, name: str, host: str = "localhost", *, port: int | None = None) -> str:
        """With the key of that namespace."""
        found = self.server.connection_string_of(self[name])
        found = found.replace("//localhost", f"//{host}")
        return found if port is None else found.replace(f":{self.port};", f":{port};")

    def __getitem__(self, name: str) -> Served:
        return next(each for each in self.server.namespaces if each.config.name == name)

    def bodies(self, name: str) -> list[str]:
        """What is in the queue of a namespace, without asking over the wire."""
        queue = self[name].broker.namespace.find("q")
        return [name] * sum(queue.counts)


@contextmanager
def serving(folder: Path, *, red: Any = None, blue: Any = None, **more: Any) -> Iterator[Pair]:
    config = ServerConfig(
        folder,
        **{"ports": (0,), **more},
        namespaces=(
            NamespaceConfig("red", folder / "red", **(red or {})),
            NamespaceConfig("blue", folder / "blue", **(blue or {})),
        ),
    )
    with LocalBroker(config, None, None) as broker:
        yield Pair(broker)


def send(connection_string: str) -> None:
    with Client(connection_string) as client, client.sender("q") as sender:
        sender.send(b"x")


def send_with_sdk(connection_string: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))


@pytest.mark.req("C2")
def test_by_key(tmp_path: Path) -> None:
    """The same address; each key is one namespace's, for the SDK, the lean client and HTTP."""
    with serving(tmp_path) as pair:
        assert pair.string("red") != pair.string("blue")
        send_with_sdk(pair.string("blue"))
        assert (pair.bodies("red"), pair.bodies("blue")) == ([], ["blue"])
        with Client(pair.string("red")) as client:
            client.entities.create_queue("only-red")
            with client.sender("only-red") as sender:
                sender.send(b"x")
        assert "only-red" in pair["red"].broker.namespace
        assert "only-red" not in pair["blue"].broker.namespace
        wrong = pair.string("red").replace("SharedAccessKey=", "SharedAccessKey=x")
        with pytest.raises(UnauthorizedError):
            send(wrong)
        with Client(wrong) as client, pytest.raises(UnauthorizedError):
            client.entities.list_queues()


def test_by_key_with_plain(tmp_path: Path) -> None:
    """SASL PLAIN shows the key before anything else is said."""
    with serving(tmp_path) as pair:

        async def come(name: str) -> None:
            policy = pair[name].policies[0]
            visitor = Visitor(pair.port, policy.name, str.__str__(policy.primary_key))
            try:
                await visitor.come()
                await visitor.attach("q", sends=True)
            finally:
                await visitor.leave()

        pair.broker.run(pair["red"].broker.execute(DeleteEntity("q"), everything()))
        asyncio.run(come("blue"))
        with pytest.raises(Refusal, match="could not be found"):
            asyncio.run(come("red"))


def test_by_host(tmp_path: Path) -> None:
    """Every key fits every namespace here, as with the emulator's; the host name tells."""
    hosts = {"red": {"hosts": ("127.0.0.1",)}, "blue": {"hosts": ("localhost",)}}
    with serving(tmp_path, is_emulator=True, **hosts) as pair:
        send_with_sdk(pair.string("red", "127.0.0.1"))
        assert (pair.bodies("red"), pair.bodies("blue")) == (["red"], [])
        send(pair.string("red", "localhost"))
        assert (pair.bodies("red"), pair.bodies("blue")) == (["red"], ["blue"])
        with Client(pair.string("red", "127.0.0.1")) as client:
            client.entities.create_queue("only-red")
        assert "only-red" in pair["red"].broker.namespace


def test_by_port(tmp_path: Path) -> None:
    own = {"red": {"ports": (0,)}, "blue": {"ports": (0,)}}
    with serving(tmp_path, is_emulator=True, ports=(), **own) as pair:
        (blue,) = pair["blue"].ports
        send(pair.string("red", port=blue))
        assert (pair.bodies("red"), pair.bodies("blue")) == ([], ["blue"])
        send(pair.string("red"))
        assert pair.bodies("red") == ["red"]


def test_what_cannot_be_told(tmp_path: Path) -> None:
    """One address, one key: the peer is refused in words that say what would tell."""
    words = "Several namespaces are served here ('red', 'blue')"
    with serving(tmp_path, is_emulator=True) as pair:
        with pytest.raises(ServiceBusError) as refused:
            send_with_sdk(pair.string("red"))
        assert words in str(refused.value)
        with (
            Client(pair.string("red")) as client,
            pytest.raises(TandemError) as caught,
            client.sender("q") as sender,
        ):
            sender.send(b"x")
        assert words in str(caught.value)
        assert _get(pair, "/$Resources/queues", token=True) == (400, words)

        async def plain() -> None:
            policy = pair["red"].policies[0]
            visitor = Visitor(pair.port, policy.name, str.__str__(policy.primary_key))
            try:
                await visitor.come()
                await visitor.attach("q", sends=True)
            finally:
                await visitor.leave()

        with pytest.raises(Refusal, match="amqp:not-allowed"):
            asyncio.run(plain())

        async def stranger() -> None:
            visitor = Visitor(pair.port)
            try:
                await visitor.come()
                await visitor.attach("q", sends=True)
            finally:
                await visitor.leave()

        with pytest.raises(Refusal) as unknown:  # who has no key learns no names
            asyncio.run(stranger())
        assert "'red'" not in str(unknown.value)
        assert pair.bodies("red") == pair.bodies("blue") == []


def _get(pair: Pair, path: str, *, token: bool, host: str = "localhost") -> tuple[int, str]:
    headers = {"Host": host}
    if token:
        policy = pair["red"].policies[0]
        key = str.__str__(policy.primary_key)
        headers["Authorization"] = sign(f"http://{host}", policy.name, key, 4_000_000_000)
    connection = HTTPConnection("localhost", pair.port, timeout=30)
    try:
        connection.request("GET", f"{path}?api-version=2021-05", headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
        return response.status, text[: text.find(")") + 1]
    finally:
        connection.close()


def test_http_by_host(tmp_path: Path) -> None:
    """Its own name is a host name of a namespace, alone or before a dot."""
    with serving(tmp_path, is_emulator=True) as pair:
        pair.broker.run(pair["blue"].broker.execute(CreateQueue("deep"), everything()))
        assert _get(pair, "/deep", token=True, host="blue.example.net")[0] == 200
        assert _get(pair, "/deep", token=True, host="blue")[0] == 200
        assert _get(pair, "/deep", token=True, host="red.example.net")[0] == 404
        assert _get(pair, "/deep", token=True, host="reddish.example.net")[0] == 400
        assert _get(pair, "/$Resources/queues", token=False)[0] == 401


def test_by_the_server_name_of_tls(tmp_path: Path) -> None:
    certificate, private_key = certificates.make(tmp_path)
    hosts = {"red": {"hosts": ("127.0.0.1",)}, "blue": {"hosts": ("localhost",)}}
    with serving(
        tmp_path / "data",
        is_emulator=True,
        certificate=certificate,
        private_key=private_key,
        **hosts,
    ) as pair:
        secure = pair.string("red").replace("UseDevelopmentEmulator=true;", "")
        with Client(secure, ca_file=str(certificate)) as client:
            client.entities.create_queue("over-tls")
            with client.sender("over-tls") as sender:
                sender.send(b"x")
        assert "over-tls" in pair["blue"].broker.namespace


@pytest.mark.req("C2")
def test_each_has_a_store_and_a_life_of_its_own(tmp_path: Path) -> None:
    """What is in one is there after a restart, in its folder; one can go while the other stays."""
    with serving(tmp_path) as pair:
        send(pair.string("red"))
        assert (tmp_path / "red" / "log").is_dir()
        keys = [
            json.loads((tmp_path / name / "policies.json").read_text()) for name in ("red", "blue")
        ]
        assert keys[0] != keys[1]
        pair.broker.stop()
        pair.broker.restart()
        assert pair.broker.server is not None
        pair.server = pair.broker.server
        pair.port = pair.server.ports[0]
        assert (pair.bodies("red"), pair.bodies("blue")) == (["red"], [])
        blue = pair.string("blue")
        pair.broker.run(pair.server.close(pair["blue"]))
        with pytest.raises(TandemError):
            send(blue)
        send(pair.string("red"))
        assert pair.bodies("red") == ["red", "red"]
