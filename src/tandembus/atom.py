"""XML as Azure's administration speaks it: the only XML reader of the tree, and the writer.

Here live the reader's limits, elements by namespace, entries and feeds, and how times and durations
are written, for the broker that answers (`admin`) and for the client that asks. Which elements a
queue's description has is `admin.descriptions`.

The rules. Reading: a document type, an entity, a processing instruction is refused the moment it
begins, and so is what is too large, too deep or too much (RELIABILITY.md S7); names are compared by
namespace, never by prefix. Writing: by literal prefixes, because the JavaScript SDK reads without
namespaces (WIRE.md §10.2). Any bytes give an `Element` or a `ProtocolError`.
"""

from __future__ import annotations

import pyexpat
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn
from urllib.parse import quote

from tandembus import limits
from tandembus.errors import ProtocolError
from tandembus.extensions import key_of
from tandembus.model import NEVER, Millis

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
TANDEM: Final = "urn:tandem:settings"
"""Of the one element, `Tandem`, that holds what Azure has no word for."""

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"

# --- reading --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Element:
    namespace: str
    name: str
    attributes: dict[tuple[str, str], str]
    """By namespace ("" is none) and name."""
    children: list[Element] = field(default_factory=list)
    text: str = ""
    """The characters directly within it."""

    def find(self, name: str, namespace: str = SERVICE_BUS) -> Element | None:
        """The first child of that name."""
        return next(self.every(name, namespace), None)

    def every(self, name: str, namespace: str = SERVICE_BUS) -> Iterator[Element]:
        return (each for each in self.children if (each.namespace, each.name) == (namespace, name))

    def value(self, name: str) -> str | None:
        """The text of a child; None if it is missing, empty, or said to be nil."""
        child = self.find(name)
        if child is None or child.is_nil:
            return None
        return child.text.strip() or None

    @property
    def is_nil(self) -> bool:
        return self.attributes.get((INSTANCE, "nil"), "").strip() in ("true", "1")

    @property
    def type(self) -> str:
        """What `xsi:type` says, without its prefix: each SDK has another one."""
        return self.attributes.get((INSTANCE, "type"), "").strip().rpartition(":")[2]


def read(data: bytes, *, most_nodes: int = limits.MAX_XML_NODES) -> Element:
    """The root element of a document. Raises ProtocolError for everything else.

    A client that reads a page of a hundred entities allows more nodes than a broker does.
    """
    if len(data) > limits.MAX_HTTP_BODY:
        raise ProtocolError(f"The XML exceeds {limits.MAX_HTTP_BODY} bytes.")
    if b"\0" in data:  # UTF-16, which expat takes whatever encoding it is told
        raise ProtocolError("The XML is not UTF-8.")
    return _Reader(most_nodes).read(data)


class _Reader:
    __slots__ = ("_most", "_nodes", "_open", "_root", "_texts")

    def __init__(self, most_nodes: int) -> None:
        self._most = most_nodes
        self._root: Element | None = None
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        self._nodes = 0

    def read(self, data: bytes) -> Element:
        # The encoding is said here and not by the document; the separator is no part of a name.
        parser = pyexpat.ParserCreate("utf-8", " ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartNamespaceDeclHandler = self._declare
        parser.StartDoctypeDeclHandler = _refuse
        parser.EntityDeclHandler = _refuse
        parser.UnparsedEntityDeclHandler = _refuse
        parser.NotationDeclHandler = _refuse
        parser.ElementDeclHandler = _refuse
        parser.AttlistDeclHandler = _refuse
        parser.ExternalEntityRefHandler = _refuse
        parser.SkippedEntityHandler = _refuse
        parser.ProcessingInstructionHandler = _refuse
        try:
            parser.Parse(data, True)
        except (pyexpat.ExpatError, UnicodeError) as error:
            raise ProtocolError(f"The XML cannot be read: {error}.") from None
        if self._root is None:
            raise ProtocolError("The XML has no element.")
        return self._root

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._most:
            raise ProtocolError(f"The XML has more than {self._most} nodes.")

    def _declare(self, prefix: str | None, uri: str | None) -> None:
        self._count(1)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count(1 + len(attributes))
        if len(self._open) >= limits.MAX_XML_DEPTH:
            raise ProtocolError(f"The XML is deeper than {limits.MAX_XML_DEPTH} elements.")
        element = Element(*_split(name), {_split(key): text for key, text in attributes.items()})
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)
        self._texts.append([])

    def _end(self, name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def _characters(self, data: str) -> None:
        if self._texts:
            self._texts[-1].append(data)


def _split(name: str) -> tuple[str, str]:
    namespace, _, local = name.rpartition(" ")
    return namespace, local


def _refuse(*_: object) -> NoReturn:
    raise ProtocolError("XML with a document type, an entity or an instruction is refused.")


def content_of(entry: Element) -> Element:
    """The description inside an entry. Raises ProtocolError if the entry has none."""
    if (entry.namespace, entry.name) != (ATOM, "entry"):
        raise ProtocolError("The body is not an Atom entry.")
    content = entry.find("content", ATOM)
    if content is None or len(content.children) != 1:
        raise ProtocolError("The entry has no content.")
    return content.children[0]


def read_extension_element(description: Element) -> dict[str, str] | None:
    """The extensions in a description, as texts; None: it does not speak of them."""
    found = description.find("Tandem", TANDEM)
    if found is None or found.is_nil:
        return None
    values = {each.name: each.text for each in found.children}
    if len(values) < len(found.children):
        raise ProtocolError("An extension is given twice.")
    return values


# --- writing --------------------------------------------------------------------------------------

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}
)


def escape(text: str) -> str:
    """For text and for attributes. What XML has no character for becomes U+FFFD."""
    return _NOT_XML.sub("\ufffd", text).translate(_ESCAPES)


def tag(name: str, text: str | int | bool | None) -> str:
    """An element with text; none at all for None."""
    if text is None:
        return ""
    if isinstance(text, bool):
        text = "true" if text else "false"
    return f"<{name}>{escape(str(text))}</{name}>"


def extension_element(values: Mapping[str, str | int | bool | None]) -> str:
    elements = "".join(tag(name, value) for name, value in values.items())
    return f'<Tandem xmlns="{TANDEM}">{elements}</Tandem>'


def description_elements(settings: Mapping[str, str | int | bool | None]) -> str:
    """What a client asks for: Azure's elements, and behind them the extensions in their own."""
    own = {name: value for name, value in settings.items() if key_of(name) is not None}
    elements = "".join(tag(name, value) for name, value in settings.items() if name not in own)
    return elements + (extension_element(own) if own else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entity as it is shown."""

    path: str
    """As in the `id`, where the JavaScript SDK finds the names: `t/Subscriptions/s/Rules/r`."""
    title: str
    published_ms: Millis
    updated_ms: Millis
    content: str
    """The XML of the description."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who shows it: what the links and ids begin with."""

    host: str
    namespace: str
    api_version: str

    def url(self, path: str, **query: int) -> str:
        more = "".join(f"&${name}={value}" for name, value in query.items())
        version = quote(self.api_version, safe="")
        return f"https://{self.host}/{path}?api-version={version}{more}"


def write_entry(entry: Entry, origin: Origin) -> bytes:
    return f'<?xml version="1.0" encoding="utf-8"?>{_entry(entry, origin)}'.encode()


def _entry(entry: Entry, origin: Origin) -> str:
    url = escape(origin.url(entry.path))
    return (
        f'<entry xmlns="{ATOM}"><id>{url}</id><title type="text">{escape(entry.title)}</title>'
        f"{tag('published', time(entry.published_ms))}{tag('updated', time(entry.updated_ms))}"
        f"<author>{tag('name', origin.namespace)}</author>"
        f'<link rel="self" href="{url}"/>'
        f'<content type="application/xml">{entry.content}</content></entry>'
    )


def write_feed(
    path: str,
    title: str,
    entries: Sequence[Entry],
    origin: Origin,
    now: Millis,
    *,
    skip: int,
    top: int,
    has_more: bool,
) -> bytes:
    """A page. The link to the next stands there only if there is one: Python's SDK takes the second
    of exactly two links for it."""
    url = escape(origin.url(path, skip=skip, top=top))
    following = escape(origin.url(path, skip=skip + len(entries), top=top))
    return (
        f'<?xml version="1.0" encoding="utf-8"?><feed xmlns="{ATOM}">'
        f'<title type="text">{escape(title)}</title><id>{url}</id>{tag("updated", time(now))}'
        f'<link rel="self" href="{url}"/>'
        + (f'<link rel="next" href="{following}"/>' if has_more else "")
        + "".join(_entry(entry, origin) for entry in entries)
        + "</feed>"
    ).encode()


def write_error(status: int, detail: str) -> bytes:
    return f"<Error>{tag('Code', status)}{tag('Detail', detail)}</Error>".encode()


# --- times and durations --------------------------------------------------------------------------

NEVER_ACCESSED: Final = "0001-01-01T00:00:00Z"
INFINITE: Final = "P10675199DT2H48M5.4775807S"
""".NET's TimeSpan.MaxValue."""
TICKS_PER_MS: Final = 10_000
_INFINITE_DAYS: Final = 10_675_199
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION: Final = re.compile(
    r"(-?)P(?:(\d{1,8})W)?(?:(\d{1,8})D)?"
    r"(?:T(?:(\d{1,10})H)?(?:(\d{1,12})M)?(?:(\d{1,15})(?:\.(\d{1,12}))?S)?)?"
)


def time(ms: Millis) -> str:
    """0 is "never". What no calendar has (a date after 9999) is shown as the last one."""
    if ms <= 0:
        return NEVER_ACCESSED
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return "9999-12-31T23:59:59.999Z"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def read_time(text: str) -> Millis:
    """Milliseconds since 1970; a time without a zone is taken for UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise ProtocolError(f"{text[:40]!a} is not a time.") from None


def duration(ms: Millis) -> str:
    """ISO 8601; for ever is TimeSpan.MaxValue."""
    return INFINITE if ms >= limits.MAX_DURATION_MS else ticks_duration(ms * TICKS_PER_MS)


def ticks_duration(ticks: int) -> str:
    """ISO 8601, exact to 100 ns."""
    seconds, fraction = divmod(abs(ticks), 1_000 * TICKS_PER_MS)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    digits = f"{seconds}.{fraction:07d}".rstrip("0").rstrip(".") if fraction else str(seconds)
    day = f"{days}D" if days else ""
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    clock += f"{digits}S" if digits != "0" or not (day or clock) else ""
    return f"{'-' if ticks < 0 else ''}P{day}{'T' if clock else ''}{clock}"


def read_ticks(text: str) -> int:
    """100 ns steps of an ISO 8601 duration, without years and months, whose length is no number."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()[1:]) or text.strip().endswith("T"):
        raise ProtocolError(f"{text[:40]!a} is not a duration.")
    sign, weeks, days, hours, minutes, seconds, fraction = match.groups()
    whole = int(weeks or 0) * 7 + int(days or 0)
    whole = (whole * 24 + int(hours or 0)) * 60 + int(minutes or 0)
    whole = whole * 60 + int(seconds or 0)
    ticks = whole * 1_000 * TICKS_PER_MS + int((fraction or "0").ljust(7, "0")[:7])
    return -ticks if sign else ticks


def read_duration(text: str) -> Millis:
    """Milliseconds; NEVER for 10,675,199 days and more (Python's SDK sends the rest rounded)."""
    ticks = read_ticks(text)
    if ticks < 0:
        raise ProtocolError(f"{text[:40]!a} is a negative duration.")
    if ticks >= _INFINITE_DAYS * 86_400_000 * TICKS_PER_MS:
        return NEVER
    return ticks // TICKS_PER_MS


def read_boolean(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ProtocolError(f"{text[:40]!a} is neither true nor false.")


def read_integer(text: str) -> int:
    digits = text.strip()
    if not re.fullmatch(r"[-+]?[0-9]{1,19}", digits):
        raise ProtocolError(f"{text[:40]!a} is not an integer.")
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ProtocolError(f"{number} does not fit into 64 bits.")
    return number
