"""`tandem cert`: an authority, a certificate, and a server that takes a new one by itself."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tandembus.certificates import Files, make, trust
from tandembus.cli import main
from tandembus.client import Client, ConnectionString
from tandembus.errors import ArgumentError, UnauthorizedError
from tandembus.server import certificate as server_certificate
from tandembus.server.certificate import Certificate, expiry
from tandembus.testing import LocalBroker

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make(tmp_path_factory.mktemp("certs"), ["localhost", "127.0.0.1", "::1"]).files


def shown_by(port: int, authority: Path, host: str = "localhost") -> datetime:
    """When the certificate ends that a server shows, after it was verified."""
    context = ssl.create_default_context(cafile=str(authority))
    plain = socket.create_connection(("localhost", port), timeout=30)
    with context.wrap_socket(plain, server_hostname=host) as secure:
        shown = secure.getpeercert()
    assert shown is not None
    ends = shown["notAfter"]
    assert isinstance(ends, str)
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC)


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.req("C3")
def test_keys_are_for_their_owner_alone(made: Files) -> None:
    for path in (made.authority_key, made.private_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in made.folder.iterdir()) == [
        "ca.key", "ca.pem", "server.key", "server.pem",
    ]  # fmt: skip


def test_an_authority_is_used_again(tmp_path: Path) -> None:
    """What trusts it trusts the next certificate, too; which ends when it was told to."""
    first = make(tmp_path / "new", ["localhost"])
    authority, certificate = (
        first.files.authority.read_bytes(),
        first.files.certificate.read_bytes(),
    )
    second = make(tmp_path / "new", ["bus.example.net", "10.0.0.7"], days=3)
    assert (first.has_new_authority, second.has_new_authority) == (True, False)
    assert second.files.authority.read_bytes() == authority
    assert second.files.certificate.read_bytes() != certificate
    left = expiry(second.files.certificate) - datetime.now(UTC)
    assert timedelta(days=2, hours=23) < left < timedelta(days=3, hours=1)
    assert expiry(second.files.certificate) == second.ends


@pytest.mark.parametrize("host", ["", "a b", "-", "x" * 64, "a..b", "ü.net", "a/b", "*"])
def test_a_host_that_is_none(tmp_path: Path, host: str) -> None:
    with pytest.raises(ArgumentError, match="--host"):
        make(tmp_path / "new", [host])


def test_what_cannot_work_is_refused(tmp_path: Path, made: Files) -> None:
    """By its name, and before anything is written."""
    with pytest.raises(ArgumentError, match="--host"):
        make(tmp_path / "new", [])
    for days in (0, 9_999):
        with pytest.raises(ArgumentError, match="--days"):
            make(tmp_path / "new", ["localhost"], days=days)
    assert not (tmp_path / "new").exists()
    (tmp_path / "ca.pem").write_bytes(made.authority.read_bytes())
    with pytest.raises(ArgumentError, match=r"ca\.key"):
        make(tmp_path, ["localhost"])
    make(tmp_path / "other", ["localhost"])
    (tmp_path / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(ArgumentError, match="do not belong together"):
        make(tmp_path, ["localhost"])


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    """And the broker itself needs it for nothing."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from tandembus.cli import main\n"
        f"sys.exit(main(['cert', {str(tmp_path / 'new')!r}]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert "pip install 'tandembus[cert]'" in result.stderr
    assert "Traceback" not in result.stderr


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.req("C1", "C3")
def test_the_command_says_how_to_trust_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each SDK; and the line to serve with is one that works."""
    assert main(["cert", str(tmp_path), "--host", "bus.example.net", "--host", "10.0.0.7"]) == 0
    told = capsys.readouterr().out
    for language in ("Python", ".NET", "Java", "JavaScript", "Go"):
        assert f"{language}:" in told
    assert "bus.example.net, 10.0.0.7" in told
    (line,) = [line for line in told.splitlines() if line.strip().startswith("tandem serve")]
    words = shlex.split(line)
    assert words[words.index("--certificate") + 1] == str(tmp_path / "server.pem")
    assert main(["cert", str(tmp_path), "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["hosts"] == ["localhost", "127.0.0.1", "::1"]
    assert tree["is_new_authority"] is False
    assert tree["trust"] == trust(tmp_path / "ca.pem")


# --- a server with it -----------------------------------------------------------------------------


def _over_tls(broker: LocalBroker) -> ConnectionString:
    """Its connection string, without the word that turns TLS off."""
    text = broker.connection_string.replace("UseDevelopmentEmulator=true;", "")
    return ConnectionString.parse(text)


@pytest.mark.req("C3")
def test_clients_that_trust_it_come_in_and_others_do_not(made: Files) -> None:
    with LocalBroker.start(certificate=made.certificate, private_key=made.private_key) as broker:
        broker.create_queue("q")
        target = _over_tls(broker)
        with Client(target, ca_file=str(made.authority)) as client, client.sender("q") as sender:
            sender.send(b"x")
            assert client.entities.get_queue("q").counts["ActiveMessageCount"] == 1
        with Client(target) as client, pytest.raises(UnauthorizedError, match="refused"):
            client.connect()


@pytest.mark.req("C3")
def test_the_official_sdk_trusts_it(made: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the printed words say: `connection_verify`. It always goes to port 5671, which is led to
    the broker's here."""
    sdk = pytest.importorskip("azure.servicebus")
    with LocalBroker.start(certificate=made.certificate, private_key=made.private_key) as broker:
        broker.create_queue("q")
        port, resolve = broker.port, socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, asked, *more, **named: resolve(
                host, port if asked == 5671 else asked, *more, **named
            ),
        )
        client = sdk.ServiceBusClient.from_connection_string(
            broker.connection_string.replace("UseDevelopmentEmulator=true;", ""),
            connection_verify=str(made.authority),
            retry_total=0,
        )
        with client, client.get_queue_sender("q") as sender:
            sender.send_messages(sdk.ServiceBusMessage("x"))


@pytest.mark.req("C3", "C5")
def test_a_new_certificate_is_taken_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections get it; those that are there go on; one that is broken changes nothing."""
    monkeypatch.setattr("tandembus.server.listener._LOOK_AT_FILES_S", 0.02)
    caplog.set_level(logging.WARNING, "tandembus.server")
    files = make(tmp_path, ["localhost"], days=100).files
    with LocalBroker.start(certificate=files.certificate, private_key=files.private_key) as broker:
        broker.create_queue("q")
        first = shown_by(broker.port, files.authority)
        with Client(_over_tls(broker), ca_file=str(files.authority)) as client:
            sender = client.sender("q")
            sender.send(b"before")

            make(tmp_path, ["localhost"], days=200)
            _wait_for("the certificate was read again", caplog)
            second = shown_by(broker.port, files.authority)
            assert second - first > timedelta(days=90)
            sender.send(b"after, on the old connection")

            good = files.certificate.read_bytes()
            files.certificate.write_bytes(good[:200])
            _wait_for("the certificate stays as it is", caplog)
            assert shown_by(broker.port, files.authority) == second
            files.certificate.unlink()
            assert shown_by(broker.port, files.authority) == second
            files.certificate.write_bytes(good)
            sender.send(b"still")


def _wait_for(words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Until the log has them; the server looks at its files every 20 ms here."""
    import time

    until = time.monotonic() + 30
    while not any(words in record.getMessage() for record in caplog.records):
        assert time.monotonic() < until, caplog.text
        time.sleep(0.01)


def test_a_certificate_by_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    """As a secret in Kubernetes is replaced: the name stays, and what it leads to is another."""
    for name in ("one", "two"):
        make(tmp_path / name, ["localhost"])
    link = tmp_path / "now"
    link.symlink_to("one")
    certificate = Certificate(link / "server.pem", link / "server.key")
    certificate.load()
    assert certificate.refresh() is None
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", link)
    assert certificate.refresh() is not None
    assert certificate.refresh() is None


# --- when it ends ---------------------------------------------------------------------------------


@pytest.mark.req("C5")
def test_its_end_is_read_told_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two weeks before, the log says so at every start."""
    caplog.set_level(logging.WARNING, "tandembus.server")
    files = make(tmp_path, ["localhost"], days=10).files
    certificate = Certificate(files.certificate, files.private_key)
    certificate.load()
    assert "expires on" in caplog.text
    assert certificate.ends == expiry(files.certificate)
    monkeypatch.setattr(server_certificate, "SOON", timedelta(days=1))
    caplog.clear()
    certificate.load()
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.pem"
    path.write_text(text)
    with pytest.raises(ValueError):
        expiry(path)


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_damaged_certificate_is_refused_and_nothing_else(
    made: Files, tmp_path: Path, cut: int
) -> None:
    """Any bytes are a date or a ValueError."""
    der = bytearray(ssl.PEM_cert_to_DER_cert(made.authority.read_text()))
    der[cut] ^= 0xFF
    path = tmp_path / "x.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(bytes(der)))
    with contextlib.suppress(ValueError):
        assert isinstance(expiry(path), datetime)
