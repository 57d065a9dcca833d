"""What this process does, told to the console of a namespace every few seconds.

For pairs, pools and pipelines: `say` gives what is shown, `do` gets what somebody has asked for on
the console. The rule: nobody waits for the console. If it cannot be reached, that is logged once,
and tried again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Event, Thread
from typing import Any, Final
from urllib.parse import quote

from tandembus.client.addresses import ConnectionString
from tandembus.client.tls import tls_context
from tandembus.clock import SystemClock
from tandembus.limits import MAX_HTTP_BODY

log = logging.getLogger("tandembus.console")

EVERY_S: Final = 2.0
_TIMEOUT_S: Final = 5.0


class Reporter:
    """In a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        connection_string: str,
        kind: str,
        name: str,
        say: Callable[[], dict[str, Any]],
        do: Callable[[dict[str, Any]], None] = lambda wish: None,
        ca_file: str | None = None,
    ) -> None:
        self._target = ConnectionString.parse(connection_string)
        self._ca_file = ca_file
        self._path = f"/$console/api/board/{quote(kind, safe='')}/{quote(name, safe='')}"
        self._say, self._do = say, do
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="tandem-console", daemon=True)
        self._has_complained = False

    def start(self) -> Reporter:
        self._thread.start()
        return self

    def stop(self) -> None:
        """What is so far is said once more."""
        self._stopped.set()
        self._thread.join(_TIMEOUT_S)

    def _work(self) -> None:
        while True:
            is_last = self._stopped.is_set()
            try:
                for wish in self._post(self._say()):
                    self._do(wish)
                self._has_complained = False
            except (OSError, ValueError, KeyError, HTTPException) as error:
                if not self._has_complained:
                    log.warning("the console cannot be told: %s", error)
                self._has_complained = True
            if is_last:
                return
            self._stopped.wait(EVERY_S)

    def _post(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        target = self._target
        if target.uses_tls:
            connection: HTTPConnection = HTTPSConnection(
                target.host,
                target.http_port,
                timeout=_TIMEOUT_S,
                context=tls_context(self._ca_file),
            )
        else:
            connection = HTTPConnection(target.host, target.http_port, timeout=_TIMEOUT_S)
        token, _ = target.token(target.audience(""), SystemClock().now_ms())
        headers = {"Content-Type": "application/json", "Authorization": token}
        try:
            connection.request("POST", self._path, json.dumps(said).encode(), headers)
            answer = connection.getresponse()
            tree = json.loads(answer.read(MAX_HTTP_BODY))
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(tree.get("error", f"the server answered {answer.status}"))
        wishes: list[dict[str, Any]] = tree["wishes"]
        return wishes
