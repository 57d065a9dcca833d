"""Which broker the tests talk to: `run.py` says it in the environment, one port for each worker."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

HOST: Final = "localhost"
KEY_NAME: Final = "RootManageSharedAccessKey"
KEY: Final = "SAS_KEY_VALUE"
"""The key of Microsoft's emulator, which `tandem serve --emulator` takes on loopback."""


@dataclass(frozen=True, slots=True)
class Target:
    """One server. Its one port takes AMQP, WebSocket and HTTP; all in TLS when it `is_tls`."""

    port: int
    is_tls: bool
    ca_file: str
    credential: str

    @property
    def admin_url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{HOST}:{self.port}"

    def connection_string(self, key_name: str = KEY_NAME, key: str = KEY, entity: str = "") -> str:
        """Without TLS the SDK wants the emulator's form; with it, it takes no port from here."""
        place = HOST if self.is_tls else f"{HOST}:{self.port}"
        text = f"Endpoint=sb://{place}/;SharedAccessKeyName={key_name};SharedAccessKey={key}"
        text += "" if self.is_tls else ";UseDevelopmentEmulator=true"
        return f"{text};EntityPath={entity}" if entity else text


def is_broker(address: object) -> bool:
    """Whether a namespace as a test writes it (host, host:port, sb://host/) is the one here."""
    text = str(address).strip()
    return urlsplit(text if "//" in text else f"//{text}").hostname == HOST


@functools.cache
def target() -> Target:
    ports = os.environ["SDK_SUITE_PORTS"].split(",")
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return Target(
        port=int(ports[worker % len(ports)]),  # one that replaces a crashed worker counts on
        is_tls=bool(os.environ["SDK_SUITE_CA_FILE"]),
        ca_file=os.environ["SDK_SUITE_CA_FILE"],
        credential=os.environ["SDK_SUITE_CREDENTIAL"],
    )
