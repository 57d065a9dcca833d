"""Which namespace a peer means, where one process serves several.

It is told by the port that the peer came to, by the host name that it asked for (TLS's server name,
AMQP's open, HTTP's Host, a token's audience), or by the key that it has. Here is the choice among
those; the brokers themselves know nothing of each other.

The rule: nobody comes into a namespace by a guess. Where more than one is left, the peer is refused
in words that say what would tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tandembus import http
from tandembus.core.access import Grant
from tandembus.errors import Refused, UnauthorizedError
from tandembus.server.turns import Turns
from tandembus.server.web import HttpHandler

if TYPE_CHECKING:
    from tandembus.server.broker import Broker


@dataclass(frozen=True, slots=True, eq=False)
class Hosted:
    """A namespace that is served."""

    broker: Broker
    serve_http: HttpHandler
    hosts: Sequence[str] = ()
    """Host names that mean it, in lower case. Its own name, alone or before a dot, does anyway."""
    ports: set[int] = field(default_factory=set)
    """Ports of its own; empty: those that nobody has for himself."""

    @property
    def name(self) -> str:
        return self.broker.name

    def likeness(self, host: str) -> int:
        """How well a host name fits; 0: not at all."""
        if host in self.hosts:
            return 1_000
        own = self.name.lower()
        return len(own) if host == own or host.startswith(f"{own}.") else 0


class Directory:
    """All that are served, and who is meant on a port. Namespaces can come and go."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns or Turns(self._is_disk_at_work)
        """For all of them: they share one event loop."""
        self._hosted: list[Hosted] = []

    @classmethod
    def of(cls, broker: Broker, serve_http: HttpHandler) -> Directory:
        """One namespace, whatever it is called by."""
        directory = cls(broker.turns)
        directory.add(Hosted(broker, serve_http))
        return directory

    def __iter__(self) -> Iterator[Hosted]:
        return iter(self._hosted)

    def add(self, hosted: Hosted) -> None:
        assert all(each.name.lower() != hosted.name.lower() for each in self), "names are unique"
        self._hosted.append(hosted)

    def remove(self, hosted: Hosted) -> None:
        self._hosted.remove(hosted)

    def at(self, port: int) -> tuple[Hosted, ...]:
        """Who can be meant by a peer that came to this port."""
        own = tuple(each for each in self if port in each.ports)
        return own or tuple(each for each in self if not each.ports)

    def _is_disk_at_work(self) -> bool:
        return any(each.broker.engine.engine.is_writing for each in self._hosted)


def named(candidates: Sequence[Hosted], host: str | None) -> tuple[Hosted, ...]:
    """Those that a host name means; all, if it means none: an address says nothing."""
    wanted = host_of(host)
    fits = {each: each.likeness(wanted) for each in candidates} if wanted else {}
    best = max(fits.values(), default=0)
    return tuple(each for each in candidates if not best or fits[each] == best)


def host_of(text: str | None) -> str:
    """The host of `host`, `host:port` or `sb://host:port/path`, in lower case."""
    if not text:
        return ""
    try:
        return urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


def unclear(candidates: Sequence[Hosted]) -> str:
    """What a peer is told that could mean several."""
    names = ", ".join(f"'{each.name}'" for each in candidates[:5])
    more = f" and {len(candidates) - 5} more" if len(candidates) > 5 else ""
    return (
        f"Several namespaces are served here ({names}{more}), and it cannot be told which is "
        "meant: use a host name or a port that is one's own, or a key that only one has."
    )


class Choice:
    """Of one AMQP connection that may mean several, while it is open which."""

    __slots__ = ("_proven", "candidates", "is_known")

    def __init__(self, candidates: tuple[Hosted, ...]) -> None:
        self.candidates = candidates
        self._proven: dict[Hosted, list[Grant]] = {}
        """What a login has shown, by namespace."""
        self.is_known = False
        """Whether the peer has shown a key: strangers do not learn which namespaces there are."""

    @property
    def only(self) -> Hosted | None:
        return self.candidates[0] if len(self.candidates) == 1 else None

    @property
    def has_login(self) -> bool:
        return bool(self._proven)

    @property
    def why_not(self) -> str:
        return unclear(self.candidates)

    def grants(self, hosted: Hosted) -> list[Grant]:
        return self._proven.get(hosted, [])

    def log_in(self, name: str, key: str) -> bool:
        """SASL PLAIN: those stay that take this name and key. False: none does."""
        self._proven = {
            each: grants for each in self.candidates if (grants := each.broker.login(name, key))
        }
        if self._proven:
            self.candidates = tuple(self._proven)
            self.is_known = True
        return self.has_login

    def ask_for(self, host: str | None) -> None:
        """The peer names a host."""
        self.candidates = named(self.candidates, host)

    def show(self, accepting: Sequence[Hosted]) -> None:
        """The peer has a token that these take. None: all stay."""
        if accepting:
            self.candidates = tuple(accepting)
            self.is_known = True


def http_handler(candidates: tuple[Hosted, ...], server_name: str | None) -> HttpHandler:
    """What answers the requests of a connection that can mean these."""
    candidates = named(candidates, server_name)
    if len(candidates) == 1:
        return candidates[0].serve_http

    async def handle(request: http.Request) -> http.Response:
        left = named(candidates, request.headers.get("host"))
        token = request.headers.get("authorization")
        if len(left) > 1 and token is not None:
            left = tuple(each for each in left if _takes(each, token, request)) or left[:1]
            if len(left) > 1:
                return http.text(400, unclear(left))
        # Without a token it asks for what is the same in all, such as their health; with one
        # that none takes, the first has the words for the refusal.
        return await left[0].serve_http(request)

    return handle


def _takes(hosted: Hosted, token: str, request: http.Request) -> bool:
    try:
        hosted.broker.authorize(token, "/".join(request.path))
    except UnauthorizedError:
        return False
    except Refused:
        return True
    return True
