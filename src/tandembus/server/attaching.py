"""What a link is for, decided when its peer attaches it: the right first, then whether the entity
is there. What the link then does is `links`, `outlet`, `nodes` and `transactions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandembus.amqp import performatives as p
from tandembus.amqp.link import Link
from tandembus.changes import EntityKind
from tandembus.core.access import Right, require_right
from tandembus.core.queue import Queue
from tandembus.errors import EntityNotFoundError, NotAllowedError, UnauthorizedError
from tandembus.limits import BATCH_ENVELOPE, KIB, MAX_BATCH_BYTES, PIECE_BYTES
from tandembus.names import split
from tandembus.server.links import BATCH_SIZE, DESTINATION, Inlet
from tandembus.server.nodes import CBS, MANAGEMENT, Node
from tandembus.server.outlet import Outlet
from tandembus.server.transactions import Transactor, group_of

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway


def open_link(gateway: Gateway, link: Link) -> None:
    """Answer an attach, or ask the broker, which leads to its answer. Raises if it is refused."""
    attach, choice = link.remote, gateway.choice
    assert attach is not None
    group = group_of(link)
    if isinstance(attach.target, p.Coordinator):
        if choice is not None:
            raise NotAllowedError(choice.why_not)
        link.context = Transactor(gateway, link)
        link.pauses = True  # a discharge can be a hundred messages
        link.accept()
        link.grant(100)
        return
    node = attach.source if link.is_sender else attach.target
    address = node.address if isinstance(node, p.Source | p.Target) else None
    if not address:
        raise NotAllowedError("The link names no address.")
    if address.rpartition("/")[2].lower() == CBS:
        gateway.nodes.add(link, Node(CBS, None))
        return
    if choice is not None:
        if not choice.is_known:
            raise UnauthorizedError(f"A token is required for '{address}'.")
        raise NotAllowedError(choice.why_not)
    where = split(address)
    if where.is_management:
        # Before the entity is looked for: whoever has no right on it learns nothing (S9).
        if not gateway.claims.allows_some(f"{where.path}/{MANAGEMENT}", gateway.now_ms()):
            raise UnauthorizedError(f"A token is required for '{address}'.")
        _find(gateway, where.path, address)
        gateway.nodes.add(link, Node(MANAGEMENT, where.path))
    elif link.is_sender:
        if group is not None:
            # The right first here, too: else the refusal tells what the root is.
            require_right(gateway.claims, where.path, Right.LISTEN, gateway.now_ms())
            group.check_receiver(where)
        outlet = link.context = Outlet(gateway, link, where.path)
        outlet.open()
    else:
        if _open_inlet(gateway, link, where.path) and group is not None:
            group.take(where)


def _open_inlet(gateway: Gateway, link: Link, path: str) -> bool:
    """Whether the link is there now."""
    queue, via = _sendable(gateway, path), None
    assert link.remote is not None
    destination = (link.remote.properties or {}).get(DESTINATION)
    if destination is not None:
        # Send-via: what is sent goes to another entity, by way of this one.
        if not isinstance(destination, str):
            raise NotAllowedError(f"'{DESTINATION}' must be a text.")
        via, path = path, split(destination).path
        queue = _sendable(gateway, path)
    inlet = link.context = Inlet(gateway, link, path, via)
    size = max(queue.max_message_bytes, 256 * KIB)
    batch = min(size, MAX_BATCH_BYTES)
    # The SDK for JavaScript fills its batches by the limit of messages, and sends single messages
    # without a look at it.
    announced = batch if gateway.is_javascript else size
    if not link.accept(max_message_size=announced, properties={BATCH_SIZE: batch}):
        return False
    # The SDK for Python fills its batches by a count that leaves the envelope out. Each message is
    # held against the limit again, by core.
    link.max_message_size = size + BATCH_ENVELOPE
    link.part_bytes = PIECE_BYTES
    inlet.grant()
    return True


def _sendable(gateway: Gateway, path: str) -> Queue:
    """The queue or topic at a path, if the peer may send to it."""
    require_right(gateway.claims, path, Right.SEND, gateway.now_ms())
    queue = _find(gateway, path, path)
    if queue.kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
        raise NotAllowedError(f"Nothing can be sent to '{queue.path}'.")
    return queue


def _find(gateway: Gateway, path: str, shown: str) -> Queue:
    if path not in gateway.namespace:
        raise EntityNotFoundError(shown)
    return gateway.namespace.find(path)
