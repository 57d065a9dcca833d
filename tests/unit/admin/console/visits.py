"""A browser's part of the console, without one."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from tandembus.testing import BrokerProcess

ROOT = "RootManageSharedAccessKey"


class Visit:
    """What a browser keeps."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.headers: dict[str, str] = {}

    def ask(
        self, method: str, name: str, body: object = None, **headers: str
    ) -> tuple[HTTPResponse, Any]:
        connection = HTTPConnection("127.0.0.1", self._broker.port, timeout=20)
        sent = {"Content-Type": "application/json", **self.headers}
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        data = None if body is None else json.dumps(body)
        connection.request(method, f"/$console/{name}", data, sent)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        is_json = "json" in (answer.headers["Content-Type"] or "")
        return answer, json.loads(text) if is_json else text

    def sign_in(self, key: str) -> HTTPResponse:
        answer, said = self.ask("POST", "api/sign-in", {"name": ROOT, "key": key})
        if answer.status == 200:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.headers = {"Cookie": cookie, "X-Tandem-Token": said["token"]}
        return answer
