"""One broker for all tests of the client, with TLS on the same port; entities have own names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tandembus.client import Client
from tandembus.testing import LocalBroker
from tests.client import certificates

_numbers = count(1)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def broker(certificate: tuple[Path, Path]) -> Iterator[LocalBroker]:
    with LocalBroker.start(certificate=certificate[0], private_key=certificate[1]) as running:
        yield running


@pytest.fixture(params=["plain", "tls"])
def client(
    request: pytest.FixtureRequest, broker: LocalBroker, certificate: tuple[Path, Path]
) -> Iterator[Client]:
    """Over plain TCP, and over TLS with the certificate and the host name checked, as for Azure."""
    direct = broker.connection_string
    if request.param == "tls":
        direct = direct.replace("UseDevelopmentEmulator=true", "")
    with Client(direct, ca_file=str(certificate[0]), timeout_s=20) as connected:
        yield connected


@pytest.fixture
def queue(broker: LocalBroker) -> str:
    """A new queue."""
    name = f"queue-{next(_numbers)}"
    broker.create_queue(name)
    return name
