"""H7: peers that say nothing, or little, or do not read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from tandembus.amqp.frames import AMQP_HEADER, SASL_HEADER
from tandembus.amqp.message import encode_message
from tandembus.amqp.performatives import Source
from tandembus.amqp.performatives import Target as Node

from .attack import Plan, attack
from .frames import BEGIN, OPEN, SASL_INIT, VICTIM
from .wire import Hung, Wire, connected, is_hung_up

TALK = SASL_HEADER + SASL_INIT + AMQP_HEADER + OPEN + BEGIN


@attack("H7-silent")
def silent(plan: Plan) -> None:
    """connect and say nothing, 10,000 times"""
    held = 0
    most = plan.many(10_000)
    while plan.has_time():
        if held < most:
            try:
                sock = socket.socket()
                sock.setblocking(False)
                plan.held.append(sock)
                sock.connect_ex((plan.target.host, plan.target.port))
                held += 1
                plan.deed.count("connections")
            except OSError:
                time.sleep(0.01)
        else:
            time.sleep(0.05)
        if held % 50 == 0:
            time.sleep(0.002)


@attack("H7-slow")
def slow(plan: Plan) -> None:
    """one byte at a time through every state, on 200 connections"""
    at: dict[socket.socket, int] = {}
    for number in range(plan.many(200)):
        try:
            sock = connected(plan.target)
            plan.held.append(sock)
            sock.sendall(TALK[: number % len(TALK)])
            sock.setblocking(False)
            at[sock] = number % len(TALK)
        except OSError:
            plan.deed.count("hung up on")
    while plan.has_time() and at:
        for sock, place in list(at.items()):
            try:
                sock.send(TALK[place : place + 1])
                at[sock] = place + 1
                plan.deed.count("bytes")
            except BlockingIOError:
                pass
            except OSError:
                del at[sock]
                plan.deed.count("hung up on")
        time.sleep(max(0.0, min(5.0, plan.until - time.monotonic(), plan.seconds / 4)))


@attack("H7-unread")
def unread(plan: Plan) -> None:
    """ask for 5,000 messages on each of 8 links and read nothing; the queue has 120 MiB"""
    with Wire.opened(plan.target) as wire:
        link = wire.attach("large", is_sender=True)
        payload = encode_message(body=os.urandom(200_000), message_id="large")
        wanted = plan.many(600)
        sent = 0
        while sent < wanted and plan.has_time():
            if link.capacity and link.unsettled < 2:
                link.deliver(sent.to_bytes(4, "big"), [payload])
                sent += 1
                wire.flush()
            else:
                wire.hear()
        plan.deed.count("messages", sent)
    for number in range(8):
        try:
            wire = Wire.opened(plan.target)
            plan.held.append(wire)
            session = wire.connection.begin()
            receiver = session.attach(
                f"unread-{number}", is_sender=False, source=Source("large"), target=Node("here")
            )
            wire.talk(lambda: receiver.local is not None and receiver.remote is not None)  # noqa: B023
            receiver.grant(5_000)
            wire.flush()
            plan.deed.count("readers")
        except (OSError, Hung):
            plan.deed.count("hung up on")
    time.sleep(max(0.0, plan.until - time.monotonic()))


@attack("H7-half")
def half_closed(plan: Plan) -> None:
    """close one's own half in every state, and never read the other"""
    held: list[socket.socket] = []
    place = 0
    while plan.has_time():
        place = (place + 7) % (len(TALK) + 1)
        try:
            sock = connected(plan.target)
            plan.held.append(sock)
            held.append(sock)
            sock.sendall(TALK[:place])
            sock.shutdown(socket.SHUT_WR)
            plan.deed.count("connections")
        except OSError:
            time.sleep(0.01)
        if len(held) > 200:
            sock = held.pop(0)
            plan.deed.expect(is_hung_up(sock, 15), "a half-closed connection was kept")
            sock.close()
        time.sleep(0.002)


@attack("H7-freeze")
def frozen(plan: Plan) -> None:
    """50 clients with credit and messages on their way, and then their process is stopped"""
    code = (
        "import sys,time;from tests.hostile.slow import freeze;"
        f"freeze({plan.target.port}, {plan.target.key!r}, {plan.many(50)})"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGSTOP)
    plan.deed.count("frozen", plan.many(50))
    try:
        with Wire.opened(plan.target) as wire:
            link = wire.attach(VICTIM, is_sender=True)
            number = 0
            while plan.has_time():
                if link.capacity:
                    number += 1
                    payload = encode_message(body=b"f" * 1_000, message_id=f"f{number}")
                    link.deliver(number.to_bytes(4, "big"), [payload], settled=True)
                    plan.deed.count("messages")
                    wire.flush()
                    time.sleep(0.002)
                else:
                    wire.hear()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def freeze(port: int, key: str, count: int) -> None:
    from .wire import Target

    held: list[Wire] = []
    for number in range(count):
        wire = Wire.opened(Target(port, key))
        receiver = wire.attach(VICTIM, is_sender=False, name=f"frozen-{number}")
        receiver.grant(5_000)
        wire.flush()
        held.append(wire)
    print("ready", flush=True)
    time.sleep(3_600)
