"""H5, H6 and H8: HTTP, WebSocket and TLS."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time

from tandembus.core.sas import sign
from tandembus.testing.process import ROOT

from .attack import Plan, attack
from .frames import TALK_WEBSOCKET
from .wire import connected, is_hung_up, over_tls, trusting

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE z [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{("&" + chr(97 + n) + ";") * 10}">' for n in range(8))
    + "]><entry>&i;</entry>"
).encode()


def _head(plan: Plan, method: str = "PUT", path: str = "/x", *more: str) -> bytes:
    where = f"http://localhost:{plan.target.port}"
    token = sign(where, ROOT, plan.target.key, int(time.time()) + 600)
    lines = [f"{method} {path}?api-version=2021-05 HTTP/1.1", "Host: localhost", *more]
    return "\r\n".join([*lines, f"Authorization: {token}", "", ""]).encode()


def _chunked(plan: Plan, sock: socket.socket) -> None:
    sock.sendall(_head(plan, "PUT", "/x", "Transfer-Encoding: chunked"))
    while plan.has_time():
        sock.sendall(b"1;aaaaaaaaaaaaaaaa\r\nx\r\n" * 1_000)


def _headers(plan: Plan, sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n")


def _slow_body(plan: Plan, sock: socket.socket) -> None:
    sock.sendall(_head(plan, "PUT", "/x", "Content-Length: 100000"))
    for _ in range(3):
        sock.sendall(b"x")
        time.sleep(min(1.0, plan.seconds / 10))


def _bomb(plan: Plan, sock: socket.socket) -> None:
    sock.sendall(_head(plan, "PUT", "/x", f"Content-Length: {len(BOMB)}") + BOMB)


def _lengths(plan: Plan, sock: socket.socket) -> None:
    sock.sendall(_head(plan, "PUT", "/x", "Content-Length: 5", "Content-Length: 6") + b"hello!")


def _huge(plan: Plan, sock: socket.socket) -> None:
    sock.sendall(_head(plan, "PUT", "/x", f"Content-Length: {1 << 40}") + b"x" * 1_000)


def _nested(plan: Plan, sock: socket.socket) -> None:
    body = b"<a>" * 100_000
    sock.sendall(_head(plan, "PUT", "/x", f"Content-Length: {len(body)}") + body)


def _pipeline(plan: Plan, sock: socket.socket) -> None:
    """Thousands of requests in a row, each allowed and each some work."""
    listing = _head(plan, "GET", "/$Resources/Queues")
    sock.sendall(listing * 200)
    is_hung_up(sock, 1.0)


_HTTP = (_chunked, _headers, _slow_body, _bomb, _lengths, _huge, _nested, _pipeline)


@attack("H5-http")
def http(plan: Plan) -> None:
    """chunked for ever, 10,000 headers, slow bodies, XML bombs, wrong lengths, pipelines"""

    def work(offset: int) -> None:
        turn = offset
        while plan.has_time():
            turn += 1
            try:
                with connected(plan.target) as sock:
                    sock.settimeout(5)
                    _HTTP[turn % len(_HTTP)](plan, sock)
                    is_hung_up(sock, 0.05)
            except OSError:
                plan.deed.count("hung up on")
            plan.deed.count("requests")

    _at_once(work, 8)


def _at_once(work: object, count: int) -> None:
    assert callable(work)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- WebSocket ------------------------------------------------------------------------------------


def ws_frame(opcode: int, payload: bytes, *, first: int = 0x80, is_masked: bool = True) -> bytes:
    size = len(payload)
    mask = 0x80 if is_masked else 0
    if size < 126:
        head = bytes((first | opcode, mask | size))
    else:
        head = bytes((first | opcode, mask | 126)) + struct.pack(">H", size)
    return head + (b"\0\0\0\0" if is_masked else b"") + payload


def upgraded(plan: Plan, *more: str) -> tuple[socket.socket, bytes]:
    """A socket behind the handshake, and the broker's answer."""
    sock = connected(plan.target)
    plan.held.append(sock)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        "GET /$servicebus/websocket HTTP/1.1", "Host: localhost", "Connection: Upgrade",
        "Upgrade: websocket", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: AMQPWSB10", *more, "", "",
    )  # fmt: skip
    sock.sendall("\r\n".join(lines).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = sock.recv(4_096)
        if not data:
            raise ConnectionError("hung up in the handshake")
        answer += data
    return sock, answer


@attack("H6-websocket")
def web_sockets(plan: Plan) -> None:
    """compression offered, control frames in pieces, unmasked, ten thousand empty ones, pings"""
    bad = {
        "a ping in pieces": ws_frame(0x9, b"x", first=0),
        "an unmasked frame": ws_frame(0x2, TALK_WEBSOCKET, is_masked=False),
        "a compressed frame": ws_frame(0x2, TALK_WEBSOCKET, first=0xC0),
        "a text message": ws_frame(0x1, b"hello"),
        "a long ping": ws_frame(0x9, b"x" * 200),
        "a frame of 2^62 bytes": b"\x82\xff" + struct.pack(">Q", 1 << 62) + b"\0\0\0\0",
        "a frame with an unknown opcode": ws_frame(0xB, b""),
    }
    while plan.has_time():
        for name, data in bad.items():
            try:
                sock, answer = upgraded(plan, "Sec-WebSocket-Extensions: permessage-deflate")
            except OSError:
                continue
            with sock:
                plan.deed.expect(b"permessage-deflate" not in answer, "compression was agreed to")
                sock.sendall(data)
                plan.deed.expect(is_hung_up(sock), f"{name} was taken")
            plan.deed.count("connections")
            if not plan.has_time():
                return
        try:
            sock, _ = upgraded(plan)
        except OSError:
            continue
        with sock:
            sock.sendall(ws_frame(0x2, TALK_WEBSOCKET))
            sock.settimeout(1)
            end = min(plan.until, time.monotonic() + plan.seconds / 4)
            try:
                while time.monotonic() < end:
                    sock.sendall(ws_frame(0x9, b"") * 5_000 + ws_frame(0x2, b"") * 5_000)
                    sock.recv(262_144)
                    plan.deed.count("empty frames", 10_000)
            except OSError:
                plan.deed.count("held back")


# --- TLS ------------------------------------------------------------------------------------------


@attack("H8-handshakes")
def handshakes(plan: Plan) -> None:
    """TLS handshakes as fast as they can be begun, most of them left in the middle"""
    if not plan.target.has_tls:
        return
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    half = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        half.do_handshake()
    hello = outgoing.read()

    def flood(_: int) -> None:
        held: list[socket.socket] = []
        while plan.has_time():
            try:
                sock = connected(plan.target, seconds=2)
                held.append(sock)
                sock.sendall(hello)
                plan.deed.count("hellos")
            except OSError:
                plan.deed.count("hung up on")
            if len(held) > plan.many(3_000):
                held.pop(0).close()
        plan.held.extend(held)

    def honest(_: int) -> None:
        while plan.has_time():
            try:
                with over_tls(connected(plan.target, seconds=5)):
                    plan.deed.count("whole handshakes")
            except OSError:
                plan.deed.count("not served")

    _at_once(lambda number: (flood, flood, honest)[number](number), 3)


@attack("H8-records")
def records(plan: Plan) -> None:
    """plain bytes after a hello, renegotiation and KeyUpdate as often as openssl can ask for it"""
    if not plan.target.has_tls:
        return
    openssl = shutil.which("openssl")
    while plan.has_time():
        with connected(plan.target) as sock:
            try:
                sock.sendall(b"\x16\x03\x01\x02\x00" + os.urandom(512))
                plan.deed.expect(is_hung_up(sock), "noise in the place of a hello was taken")
            except OSError:
                pass
            plan.deed.count("connections")
        if openssl is None:
            continue
        for version, letter in (("-tls1_3", b"K\n"), ("-tls1_2", b"R\n")):
            where = f"{plan.target.host}:{plan.target.port}"
            command = [openssl, "s_client", "-connect", where, version]
            with subprocess.Popen(
                command,
                bufsize=0,  # what cannot be written is not tried again when the pipe is closed
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as client:
                assert client.stdin is not None
                end = min(plan.until, time.monotonic() + plan.seconds / 3)
                try:
                    while time.monotonic() < end and client.poll() is None:
                        client.stdin.write(letter)
                        plan.deed.count("KeyUpdates" if letter == b"K\n" else "renegotiations")
                        time.sleep(0.001)
                except OSError:
                    plan.deed.count("hung up on")
                client.kill()
