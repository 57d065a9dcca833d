"""What the samples expect around a broker and a laptop does not have: a directory that gives out
tokens, and an HTTP proxy. Both on loopback, both for the length of one run.

The directory answers as an AD FS of one's own would, which is what azure-identity can be pointed at
by environment alone. Its tokens are real ones: signed with the key of one of the broker's policies,
and checked by the broker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import select
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs

from tests.interop.certificates import Certificates

AUDIENCE: Final = "https://servicebus.azure.net"
_LIFETIME_S: Final = 3_600


def signed_token(key: str, issuer: str) -> str:
    """A JWT for a namespace, signed with the key of a policy."""
    now = int(time.time())
    claims = {
        "aud": AUDIENCE,
        "iss": issuer,
        "sub": "a sample",
        "iat": now,
        "nbf": now - 60,
        "exp": now + _LIFETIME_S,
        "roles": ["Azure Service Bus Data Owner"],
    }
    parts = (_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims))
    signed = ".".join(parts)
    digest = hmac.new(key.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_encoded(digest)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _Service:
    """A server in a thread, as a context."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Directory(_Service):
    """Gives everyone who asks with a secret a token for the namespace."""

    def __init__(self, host: str, certificates: Certificates, key: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """What MSAL asks first: where tokens are given out."""
                tokens = f"{address()}/adfs/oauth2/token"
                self.answer(
                    {
                        "issuer": f"{address()}/adfs",
                        "authorization_endpoint": f"{address()}/adfs/oauth2/authorize",
                        "token_endpoint": tokens,
                        "device_authorization_endpoint": tokens,
                    }
                )

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                form = parse_qs(self.rfile.read(length).decode())
                if form.get("grant_type") != ["client_credentials"]:
                    self.answer({"error": "unsupported_grant_type"}, 400)
                    return
                directory.given += 1
                self.answer(
                    {
                        "access_token": signed_token(key, f"{address()}/adfs"),
                        "token_type": "Bearer",
                        "expires_in": _LIFETIME_S,
                    }
                )

            def answer(self, tree: dict[str, Any], status: int = 200) -> None:
                body = json.dumps(tree).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        def address() -> str:
            return f"https://{host}:{directory.port}"

        directory = self
        self.host = host
        self.given = 0
        server = ThreadingHTTPServer((host, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.private_key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        super().__init__(server)

    @property
    def environment(self) -> dict[str, str]:
        """What makes `DefaultAzureCredential` and `EnvironmentCredential` come here."""
        return {
            "AZURE_AUTHORITY_HOST": f"https://{self.host}:{self.port}",
            "AZURE_TENANT_ID": "adfs",
            "AZURE_CLIENT_ID": "samples",
            "AZURE_CLIENT_SECRET": "not looked at",
        }


class Proxy(_Service):
    """An HTTP proxy that only tunnels, and only for those who know its password."""

    def __init__(self, host: str, port: int, username: str, password: str) -> None:
        wanted = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                if self.headers.get("Proxy-Authorization") != wanted:
                    self.send_error(407)
                    return
                name, _, number = self.path.rpartition(":")
                with socket.create_connection((name, int(number)), timeout=30) as there:
                    proxy.tunnels += 1
                    self.send_response(200, "Connection established")
                    self.end_headers()
                    _relay(self.connection, there)
                self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        proxy = self
        self.tunnels = 0
        super().__init__(ThreadingHTTPServer((host, port), Handler))


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Bytes both ways until one side has nothing more to say."""
    while True:
        readable, _, _ = select.select([one, other], [], [], 60)
        if not readable:
            return
        for source in readable:
            data = source.recv(1 << 16)
            if not data:
                return
            (other if source is one else one).sendall(data)
