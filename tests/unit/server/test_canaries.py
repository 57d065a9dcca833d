"""Secrets stay secret (S19): a whole run of `tandem serve --verbose`, and then all of its output is
searched for every key and token that it has seen."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tandembus.amqp.message import encode_message
from tandembus.core.sas import sign
from tests.unit.server.access_world import encoded, signed_jwt
from tests.unit.server.desk import encode_request
from tests.unit.server.visitor import Refusal, Visitor

CANARIES = {
    "root's first key": "canary-one-of-root-4f1c9a",
    "root's second key": "canary-two-of-root-77d0e2",
    "an entity's key": "canary-of-an-entity-0b5d31",
    "a secret of a directory": "canary-of-a-directory-9e2a60-and-long",
    "a password that is wrong": "canary-that-is-wrong-c3a81f",
}
ONE, TWO, RULE, DIRECTORY, WRONG = CANARIES.values()
LATER = int(time.time()) + 3_600


def forms(secret: str) -> set[str]:
    """As it could stand in a log: plain, escaped, in base64, in hexadecimal, cut in half."""
    raw = secret.encode()
    half = secret[: len(secret) * 3 // 4]
    return {
        secret,
        half,
        quote(secret, safe=""),
        base64.b64encode(raw).decode().rstrip("="),
        encoded(raw),
        raw.hex(),
        secret[::-1],
    }


def entity(kind: str, inside: str = "") -> str:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><'
        f'{kind} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        f"{inside}</{kind}></content></entry>"
    )


def rules(name: str, right: str) -> str:
    return (
        "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule' "
        "xmlns:i='http://www.w3.org/2001/XMLSchema-instance'><ClaimType>SharedAccessKey</ClaimType>"
        f"<Rights><AccessRights>{right}</AccessRights></Rights><KeyName>{name}</KeyName>"
        f"<PrimaryKey>{RULE}</PrimaryKey><SecondaryKey>{RULE}</SecondaryKey>"
        "</AuthorizationRule></AuthorizationRules>"
    )


async def http(port: int, method: str, path: str, body: str = "", **headers: str) -> int:
    lines = {"Host": "h", "Content-Length": str(len(body)), "Connection": "close", **headers}
    head = "".join(f"{name}: {text}\r\n" for name, text in lines.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} /{path} HTTP/1.1\r\n{head}\r\n{body}".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1])


def tokens() -> dict[str, str]:
    """What peers show, right and wrong."""
    aud = {"aud": "https://servicebus.azure.net", "iss": "me", "exp": LATER}
    owner = {"roles": ["Azure Service Bus Data Owner"]}
    return {
        "a SAS token": sign("sb://h/", "root", ONE, LATER),
        "a SAS token of the second key": sign("sb://h/q", "root", TWO, LATER),
        "a SAS token of a rule": sign("sb://h/q", "rule", RULE, LATER),
        "a SAS token with a wrong key": sign("sb://h/q", "root", WRONG, LATER),
        "a SAS token that has expired": sign("sb://h/q", "root", ONE, 1),
        "a SAS token for elsewhere": sign("sb://h/elsewhere", "root", ONE, LATER),
        "a SAS token that is cut": sign("sb://h/q", "root", ONE, LATER)[:-20],
        "a JWT of a policy": signed_jwt(ONE, aud),
        "a JWT of the directory": signed_jwt(DIRECTORY, {**aud, **owner}),
        "a JWT with a wrong key": signed_jwt(WRONG, aud),
        "a JWT that has expired": signed_jwt(ONE, {**aud, "exp": 1}),
        "no token at all": f"{WRONG}:{WRONG}",
    }


async def visit(port: int) -> None:
    """Everything that can go right and wrong with a secret."""
    shown = tokens()
    root = {"Authorization": shown["a SAS token"]}
    assert await http(port, "PUT", "q", entity("QueueDescription", rules("rule", "Send")), **root)
    assert (
        await http(port, "PUT", "q2", entity("QueueDescription", rules("r", "Fly")), **root) == 400
    )
    for text in shown.values():
        for header in (text, f"Bearer {text}", f"Basic {text}"):
            await http(port, "GET", "q", Authorization=header)
        await http(port, "GET", f"q?{quote(text)}", **root)
    for name, key in (("root", ONE), ("root", TWO), ("rule", RULE), ("root", WRONG), (WRONG, ONE)):
        visitor = Visitor(port, name, key)
        await attempt(visitor.come())
        await visitor.leave()
    for text in shown.values():
        visitor = await Visitor(port).come()
        await attempt(visitor.put_token(text, "sb://h/q"))
        await attempt(visitor.put_token(text, "sb://h/nowhere"))
        await attempt(visitor.put_token("sb://h/q", text))
        link: Any = await attempt(visitor.attach("q", sends=True))
        if link is not None:
            await attempt(visitor.deliver(link, encode_message(body=b"x")))
        node: Any = await attempt(visitor.node("q/$management"))
        if node is not None:
            await attempt(visitor.ask(node, encode_request(text, {"x": text})))
        await visitor.leave()


async def attempt(work: Any) -> Any:
    """Whatever comes of it."""
    try:
        return await asyncio.wait_for(work, 20)
    except Refusal:
        return None


def serve(folder: Path, log: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tandembus.cli",
        "serve",
        str(folder),
        "--port",
        "0",
        "--verbose",
    ]
    with log.open("a") as err:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)


def write_keys(folder: Path, **changes: object) -> None:
    policy = {"name": "root", "rights": ["Manage", "Send", "Listen"], "primary_key": ONE}
    tree = {"policies": [{**policy, "secondary_key": TWO, **changes}]}
    file = folder / "policies.json"
    file.write_text(json.dumps(tree))
    file.chmod(0o600)
    keys = [{"kty": "oct", "k": encoded(DIRECTORY.encode())}]
    (folder / "jwt.json").write_text(json.dumps({"keys": keys, "issuers": ["me"]}))


def run(folder: Path, log: Path) -> str:
    """A life of the server; all that it has said but for the connection string, which is there to
    be seen."""
    write_keys(folder)
    process = serve(folder, log)
    said: list[str] = []
    try:
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            if line.startswith("Connection string: "):
                assert ONE in line, "the one place where a key is shown"
                continue
            said.append(line)
            if ", port " in line:
                port = int(line.rpartition("port ")[2].strip(".\n"))
            if line.startswith("Ctrl-C"):
                break
        command_line = Path(f"/proc/{process.pid}/cmdline")
        if command_line.exists():
            said.append(command_line.read_text())
        asyncio.run(visit(port))
        write_keys(folder, primary_key="short", secondary_key=[ONE])
        process.send_signal(signal.SIGHUP)
        asyncio.run(http(port, "GET", "health"))
        write_keys(folder)
        (folder / "jwt.json").write_text(DIRECTORY)
        process.send_signal(signal.SIGHUP)
        asyncio.run(http(port, "GET", "health"))
    finally:
        process.send_signal(signal.SIGINT)
        said.append(process.communicate(timeout=60)[0])
    assert process.returncode == 0
    for broken in (
        f'{{"policies": [{{"name": "{ONE}"',
        json.dumps({"policies": [ONE, {TWO: ONE}]}),
    ):
        (folder / "policies.json").write_text(broken)
        refused = serve(folder, log)
        said.append(refused.communicate(timeout=60)[0])
        assert refused.returncode == 2
    return "".join(said)


def test_no_secret_is_in_the_output(tmp_path: Path) -> None:
    """Not of those that are right, not of those that are wrong, in no form; not in the log of a run
    in which everything was refused that can be, nor in the words with which it does not start."""
    folder, log = tmp_path / "data", tmp_path / "log"
    folder.mkdir()
    said = run(folder, log) + log.read_text()
    assert said.count("TrackingId:") > 20, "what was refused is in the log"
    assert said.count("stay as they are") == 2
    assert "GET 'q' refused" in said
    secrets = dict(CANARIES)
    for name, token in tokens().items():
        if name.startswith("a SAS"):
            fields = dict(part.partition("=")[::2] for part in token.split(" ", 1)[1].split("&"))
            if "sig" in fields:
                secrets[name] = unquote(fields["sig"])
        elif name.startswith("a JWT"):
            secrets[name] = token.rpartition(".")[2]
    for name, secret in secrets.items():
        for form in forms(secret):
            assert form not in said, f"{name} is in the output"


def test_the_search_finds_what_it_looks_for() -> None:
    """The canary of the canaries."""
    line = f"refused: {quote(ONE)} {base64.b64encode(TWO.encode()).decode()} {RULE.encode().hex()}"
    for secret in (ONE, TWO, RULE):
        assert any(form in line for form in forms(secret))
    assert not any(form in line for form in forms(WRONG))
