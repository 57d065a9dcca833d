#!/usr/bin/python3
"""Python reference peer: an in-memory AMQP 1.0 queue broker on Qpid Proton's Python binding
(apt python3-qpid-proton). Nothing is durable. It shows what a Python event handler over a C
protocol engine costs per message, and, with its $cbs stub, lets sdkload.py be tried when no
real Service Bus broker is there.    pybroker.py HOST:PORT"""

import collections
import contextlib
import itertools
import sys

from proton import Delivery, Endpoint, Handler, Message
from proton.handlers import Handshaker
from proton.reactor import Container

TAG = itertools.count()  # 16 characters: Azure's SDK reads the tag as a lock token


class Queue:
    def __init__(self):
        self.messages = collections.deque()
        self.consumers = []

    def pump(self):
        while self.messages:
            for _ in range(len(self.consumers)):
                link = self.consumers[0]
                self.consumers.append(self.consumers.pop(0))
                if link.credit > 0 and link.state & Endpoint.LOCAL_ACTIVE:
                    break
            else:
                return
            raw = self.messages.popleft()
            delivery = link.delivery(f"{next(TAG):016x}")
            delivery.raw = raw
            link.send(raw)
            link.advance()


class Broker(Handler):
    def __init__(self, address):
        super().__init__()
        self.address = address
        self.queues = collections.defaultdict(Queue)
        self.cbs = []
        self.handlers = [Handshaker()]

    def on_reactor_init(self, event):
        self.acceptor = event.reactor.acceptor(*self.address.rsplit(":", 1))

    def on_link_remote_open(self, event):
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode, link.rcv_settle_mode = (
            link.remote_snd_settle_mode,
            link.remote_rcv_settle_mode,
        )
        if link.is_sender:
            if link.source.address == "$cbs":
                self.cbs.append(link)
            else:
                self.queues[link.source.address.lstrip("/")].consumers.append(link)
        else:
            link.flow(2000)
        link.open()

    def on_link_flow(self, event):
        if event.link.is_sender and event.link.source.address != "$cbs":
            self.queues[event.link.source.address.lstrip("/")].pump()

    def on_delivery(self, event):
        delivery, link = event.delivery, event.link
        if link.is_sender:
            if delivery.remote_state or delivery.settled:
                if (
                    delivery.remote_state
                    and delivery.remote_state != Delivery.ACCEPTED
                    and hasattr(delivery, "raw")
                ):
                    self.queues[link.source.address.lstrip("/")].messages.appendleft(delivery.raw)
                delivery.update(delivery.remote_state or Delivery.ACCEPTED)
                delivery.settle()
            return
        if not delivery.readable or delivery.partial:
            return
        raw = link.recv(delivery.pending)
        link.advance()
        name = (link.target.address or "").lstrip("/")
        if name == "$cbs":
            self.put_token(event, raw)
        else:
            queue = self.queues[name]
            queue.messages.append(raw)
            queue.pump()
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        if link.credit < 1000:
            link.flow(1000)

    def put_token(self, event, raw):
        request = Message()
        request.decode(raw)
        reply = Message(
            properties={"status-code": 202, "status-description": "OK"}, correlation_id=request.id
        )
        for link in self.cbs:
            if link.connection is not None and link.connection == event.connection and link.credit:
                link.delivery(f"{next(TAG):016x}")
                link.send(reply.encode())
                link.advance()

    def gone(self, link):
        if link.is_sender and link.source.address:
            consumers = self.queues[link.source.address.lstrip("/")].consumers
            if link in consumers:
                consumers.remove(link)
            if link in self.cbs:
                self.cbs.remove(link)

    def on_link_remote_close(self, event):
        self.gone(event.link)

    def on_link_remote_detach(self, event):
        self.gone(event.link)
        event.link.close()

    def on_transport_closed(self, event):
        for queue in self.queues.values():
            queue.consumers = [c for c in queue.consumers if c.connection != event.connection]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Container(Broker(sys.argv[1])).run()
