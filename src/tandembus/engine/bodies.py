"""Where each stored body lies in the log: body number → place, in nine bytes.

Core names a body by a number that only grows; the log moves bodies when it is compacted; this table
joins the two. It holds no body. Numbers are grouped in pages, because bodies are mostly freed in
the order in which they came: a page with nothing alive is dropped as a whole.

A large message is stored in pieces. They are bodies too, with numbers of their own from FIRST_PIECE
on; its own number names its head, and they are freed with it. `Engine.store_piece` stores a piece,
and counts it here, as soon as it has come; `Engine.drop_pieces` frees those of a message that does
not become whole, or `drop_unjoined` after a restart. The record `PiecesJoined`, stored with the
head, makes them the body of the message (`join`). Whoever reads them holds the head's number with
`Engine.pin` until `Engine.unpin`: a message that ends meanwhile is freed at the `unpin`. `free` of
the head's number frees its pieces, too.

The size of a record is kept as one byte, an eighth-of-an-octave class: exact enough to say how much
of the log is alive, and how many bytes to read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from tandembus.changes import PIECE_ROW, PiecesJoined
from tandembus.store.records import Lying

PAGE: Final = 4_096
_SHIFT: Final = 12
_MASK: Final = PAGE - 1
_ZEROS_8: Final = bytes(8 * PAGE)
_ZEROS_1: Final = bytes(PAGE)

_HEAD: Final = Struct("<QQ")
_PAGE_HEAD: Final = Struct("<QIQ")
_LARGE_HEAD: Final = Struct("<QQ")
_LARGE: Final = Struct("<QQQI")

FIRST_PIECE: Final = 1 << 48
"""Core counts bodies from 1, and never gets here."""
_FIRST_PIECE_PAGE: Final = FIRST_PIECE >> _SHIFT

NOWHERE: Final = 0xFFFF_FFFF_FFFF_FFFF
"""Behind every place."""


def size_class(length: int) -> int:
    """The class of a length: its four leading bits and their position. 0..15 are exact."""
    if length < 16:
        return length
    shift = length.bit_length() - 4
    return (shift << 3) + (length >> shift)


def _largest(size: int) -> int:
    """The largest length of a class."""
    if size < 16:
        return size
    shift = (size >> 3) - 1
    return (((size & 7) | 8) + 1 << shift) - 1


LARGEST: Final = tuple(_largest(c) for c in range(256))


class _Page:
    __slots__ = ("live", "lowest", "lowest_is_exact", "places", "sizes")

    def __init__(self, places: bytes | memoryview, sizes: bytes | memoryview) -> None:
        self.places = array("Q")
        self.places.frombytes(places)
        self.sizes = bytearray(sizes)
        self.live = 0
        self.lowest = NOWHERE
        """No living body of the page lies before this place."""
        self.lowest_is_exact = True


class Bodies:
    """`live_bytes` is the size of all living records, each up to an eighth too large."""

    def __init__(self) -> None:
        self._pages: dict[int, _Page] = {}
        self._newest = [-1, -1]
        """The newest page of ordinary bodies, and that of pieces."""
        self.live_bytes = 0
        self.count = 0
        self.next_piece = FIRST_PIECE
        self.large: dict[int, PiecesJoined] = {}
        """The messages that are stored in pieces, by the numbers of their heads."""

    def join(self, joined: PiecesJoined) -> None:
        """These pieces are the body of a message, and live as long as its head."""
        self.large[joined.body] = joined

    def drop_unjoined(self) -> None:
        """Free the pieces of messages that did not become whole before the end of the log."""
        joined = {n for it in self.large.values() for n, _ in PIECE_ROW.iter_unpack(it.pieces)}
        pages = [(key, page) for key, page in self._pages.items() if key >= _FIRST_PIECE_PAGE]
        for key, page in pages:
            for row, place in enumerate(page.places):
                number = key << _SHIFT | row
                if place and number not in joined:
                    self.free(number)

    def put(self, number: int, place: int, length: int) -> None:
        """A new body lies at `place`; its record is `length` bytes long."""
        key = number >> _SHIFT
        page = self._pages.get(key)
        if page is None:
            page = self._open(key)
        row = number & _MASK
        assert not page.places[row], "a body number is used once"
        if number >= self.next_piece:
            self.next_piece = number + 1
        page.places[row] = place
        size = page.sizes[row] = size_class(length)
        page.live += 1
        if place < page.lowest:
            page.lowest = place
        self.live_bytes += LARGEST[size]
        self.count += 1

    def place(self, number: int) -> int:
        """Where the body's record begins; 0 if there is no such body (any more)."""
        page = self._pages.get(number >> _SHIFT)
        return page.places[number & _MASK] if page else 0

    def longest(self, number: int) -> int:
        """No smaller than the length of the body's record, and at most an eighth larger."""
        return LARGEST[self._pages[number >> _SHIFT].sizes[number & _MASK]]

    def find(self, numbers: Iterable[int]) -> list[Lying]:
        """(number, `place`, `longest`) of each. Raises KeyError if one is gone."""
        pages = self._pages
        found: list[Lying] = []
        for number in numbers:
            page, row = pages[number >> _SHIFT], number & _MASK
            place = page.places[row]
            if not place:
                raise KeyError(number)
            found.append((number, place, LARGEST[page.sizes[row]]))
        return found

    def move(self, number: int, place: int) -> None:
        """A body that was written again. One that was freed meanwhile stays freed."""
        page = self._pages.get(number >> _SHIFT)
        row = number & _MASK
        if page is None or not page.places[row]:
            return
        if page.places[row] == page.lowest:
            page.lowest_is_exact = False
        page.places[row] = place

    def free(self, number: int) -> None:
        if self.large and (joined := self.large.pop(number, None)) is not None:
            for piece, _ in PIECE_ROW.iter_unpack(joined.pieces):
                self.free(piece)
        key = number >> _SHIFT
        page = self._pages[key]
        row = number & _MASK
        place = page.places[row]
        assert place, "a body is freed once"
        if place == page.lowest:
            page.lowest_is_exact = False
        page.places[row] = 0
        page.live -= 1
        self.live_bytes -= LARGEST[page.sizes[row]]
        self.count -= 1
        if not page.live and key not in self._newest:  # these are about to be filled further
            del self._pages[key]

    def lowest_place(self) -> int:
        """The place of the oldest living body, `NOWHERE` without one."""
        lowest = NOWHERE
        for page in sorted(self._pages.values(), key=lambda page: page.lowest):
            if page.lowest >= lowest:
                break
            if not page.lowest_is_exact:
                page.lowest = min(filter(None, page.places), default=NOWHERE)
                page.lowest_is_exact = True
            lowest = min(lowest, page.lowest)
        return lowest

    def living_before(self, place: int) -> Iterator[int]:
        """Numbers of the living bodies that lie before `place`, in no promised order. Bodies may be
        freed and moved between two steps."""
        for key, page in list(self._pages.items()):
            if page.lowest >= place:
                continue
            first = key << _SHIFT
            for row, here in enumerate(page.places):
                if 0 < here < place:
                    yield first + row

    def _open(self, key: int) -> _Page:
        page = self._pages[key] = _Page(_ZEROS_8, _ZEROS_1)
        of_pieces = key >= _FIRST_PIECE_PAGE
        newest = self._newest[of_pieces]
        if key > newest:
            former = self._pages.get(newest)
            if former is not None and not former.live:
                del self._pages[newest]
            self._newest[of_pieces] = key
        return page

    # --- the form in the index --------------------------------------------------------------------

    def dump(self) -> list[bytearray]:
        """A copy of everything, as raw columns (native byte order is little-endian wherever we
        run)."""
        out = bytearray(_HEAD.pack(len(self._pages), self.live_bytes))
        for key, page in self._pages.items():
            out += _PAGE_HEAD.pack(key, page.live, page.lowest)
            out += memoryview(page.places).cast("B")
            out += page.sizes
        out += _LARGE_HEAD.pack(self.next_piece, len(self.large))
        for body, skip, body_bytes, pieces in self.large.values():
            out += _LARGE.pack(body, skip, body_bytes, len(pieces)) + pieces
        return [out]

    @classmethod
    def load(cls, data: memoryview) -> Bodies:
        bodies = cls()
        count, bodies.live_bytes = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(count):
            key, live, lowest = _PAGE_HEAD.unpack_from(data, at)
            at += _PAGE_HEAD.size
            page = _Page(data[at : at + 8 * PAGE], data[at + 8 * PAGE : at + 9 * PAGE])
            at += 9 * PAGE
            page.live, page.lowest, page.lowest_is_exact = live, lowest, False
            bodies._pages[key] = page
            of_pieces = key >= _FIRST_PIECE_PAGE
            bodies._newest[of_pieces] = max(bodies._newest[of_pieces], key)
            bodies.count += live
        if at < len(data):  # else it was made before there were large messages
            bodies.next_piece, count = _LARGE_HEAD.unpack_from(data, at)
            at += _LARGE_HEAD.size
            for _ in range(count):
                body, skip, body_bytes, size = _LARGE.unpack_from(data, at)
                at += _LARGE.size
                bodies.join(PiecesJoined(body, skip, body_bytes, bytes(data[at : at + size])))
                at += size
        assert at == len(data), "the dump of the bodies has another length"
        return bodies
