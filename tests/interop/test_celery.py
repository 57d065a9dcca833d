"""Celery over its own `azureservicebus` transport, unmodified: a task goes and its result comes.

Kombu's transport takes no port, no "development" flag and no CA file: it goes to `HOST.net` on 5671
and 443, over TLS, and trusts what `certifi` trusts (PRODUCT.md §F). So the broker has a certificate
of `tandem cert` for such a name, the authority is added to a copy of certifi, as docs/celery.md
says, and the processes of Celery are given a resolver that leads the name, and those two ports, to
the broker: nothing of the machine is changed, and nobody has to be root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.certificates import make
from tandembus.client import Client
from tandembus.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]
HOST = "bus.tandem.net"
SITE = """
import socket

_resolve = socket.getaddrinfo

def getaddrinfo(host, port, *more, **named):
    if host == {host!r} and port in (5671, 443, "5671", "443"):
        host, port = "localhost", {port}
    return _resolve(host, port, *more, **named)

socket.getaddrinfo = getaddrinfo
"""
TASKS = """
from celery import Celery

app = Celery("tasks", broker={broker!r}, backend={backend!r})
app.conf.update(
    task_default_queue="jobs",
    # The transport has no broadcast, which these need.
    worker_enable_remote_control=False,
    broker_transport_options={{"wait_time_seconds": 1, "peek_lock_seconds": 30}},
    broker_connection_retry_on_startup=False,
)

@app.task
def add(x, y):
    return x + y
"""
ASK = """
from tasks import add

results = [add.delay(number, number) for number in range(3)]
print([result.get(timeout=60) for result in results])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Celery's processes look first: a certifi that trusts our authority."""
    for package in ("celery", "kombu", "azure.servicebus", "certifi", "cryptography"):
        pytest.importorskip(package)
    import certifi

    folder = tmp_path_factory.mktemp("celery")
    shutil.copytree(Path(certifi.__file__).parent, folder / "certifi")
    (folder / "results").mkdir()
    return folder


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[LocalBroker]:
    files = make(folder / "certs", [HOST]).files
    with LocalBroker.start(certificate=files.certificate, private_key=files.private_key) as running:
        yield running


@pytest.fixture(scope="module")
def environment(folder: Path, broker: LocalBroker) -> dict[str, str]:
    """As docs/celery.md sets it up, but for the name, which needs no entry of the machine here."""
    url = f"azureservicebus://RootManageSharedAccessKey:{broker.key}@{HOST}"
    backend = f"file://{folder / 'results'}"
    (folder / "tasks.py").write_text(TASKS.format(broker=url, backend=backend))
    (folder / "ask.py").write_text(ASK)
    (folder / "sitecustomize.py").write_text(SITE.format(host=HOST, port=broker.port))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # these would be trusted instead
        environment.pop(name, None)
    bundle = subprocess.run(
        [sys.executable, "-m", "certifi"],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip()  # fmt: skip
    assert Path(bundle).is_relative_to(folder), "the copy is the one that is found"
    with Path(bundle).open("ab") as trusted:
        trusted.write((folder / "certs" / "ca.pem").read_bytes())
    return environment


def test_a_task_goes_and_its_result_comes(
    folder: Path, environment: dict[str, str], broker: LocalBroker
) -> None:
    """The worker makes its queue over HTTPS, receives, and completes; the client sends."""
    command = [
        sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO",
    ]  # fmt: skip
    with (folder / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            asked = subprocess.run(
                [sys.executable, "ask.py"],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
                check=False,
            )  # fmt: skip
            told = f"{asked.stdout}{asked.stderr}\n{(folder / 'worker.log').read_text()}"
            assert asked.returncode == 0, told
            assert asked.stdout.strip() == "[0, 2, 4]", told
            with Client(broker.connection_string) as client:
                until = time.monotonic() + 60  # the result is there before the message is completed
                while client.browse("jobs") and time.monotonic() < until:
                    time.sleep(0.05)
                assert client.browse("jobs") == [], "each was completed"
                assert client.browse("jobs/$DeadLetterQueue") == []
                assert client.entities.get_queue("jobs").settings["LockDuration"] == "PT30S"
        finally:
            worker.kill()  # a warm shutdown takes seconds, and nothing is left to do
            worker.wait(60)
