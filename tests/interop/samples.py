"""The samples of the azure-servicebus package, unmodified, against `tandem serve`.

`make sdk-samples` runs them. They come out of the SDK's own sdist, which pip downloads into a cache
and which is never committed.
They run in a virtual environment of their own, as programs, with the environment variables that
they read and nothing else changed. Nearly all of them want TLS on the standard ports, a certificate
that the machine trusts, and a token from a directory; so there is

- a broker on an address of the loopback network of its own, ports 5671 and 443, with a throw-away
  certificate authority that only that virtual environment trusts;
- a directory that gives out signed tokens (`stand_ins`), found by azure-identity's own variables.

A sample has run if it ends with 0, complains about nothing, has printed what it should have, and
has left what it should have (`sample_plan`).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import venv
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from tandembus.core.sas import sign
from tandembus.testing import BrokerProcess
from tandembus.testing.process import ROOT
from tests.interop import certificates
from tests.interop.sample_plan import PLANS, Plan
from tests.interop.stand_ins import Directory, Proxy

VERSION: Final = "7.15.0"
# As the SDK's test-suite does (tests/conformance/azure).
WORK: Final = Path(os.environ.get("SBSUITE_WORK", Path.home() / ".cache" / "sbsuite"))
SDIST: Final = WORK / f"azure_servicebus-{VERSION}.tar.gz"
REQUIREMENTS: Final = (
    f"azure-servicebus=={VERSION}",
    "azure-identity",
    "aiohttp",
    "websocket-client",
)
HOSTS: Final = ("127.0.71.53", "localhost")
"""The first is nobody else's; where it cannot be bound (macOS) there is the second."""
PORTS: Final = (5671, 443)
PROXY: Final = ("127.0.0.1", 8899, "admin", "123456")
"""As the sample has it."""
SESSION: Final = "samples"
_PATIENCE_S: Final = 660
"""The longest sample sleeps for 480 s."""
_COMPLAINTS: Final = re.compile(
    r"Traceback|Exception ignored|never retrieved|^\S*(Error|ERROR)\b|failed: ", re.MULTILINE
)


class CannotRun(Exception):
    """This machine does not let the samples run; says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    """`sync_samples/send_queue.py`"""
    text: str
    plan: Plan

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    def reads(self, variable: str) -> bool:
        return f'"{variable}"' in self.text


@dataclass(frozen=True, slots=True)
class Verdict:
    sample: Sample
    word: str
    """`ok`, `FAILED` or `not run`."""
    reason: str = ""
    seconds: float = 0
    output: str = ""


# --- what is downloaded -------------------------------------------------------------------------


def python() -> Path:
    """A virtual environment with the SDK; made once."""
    home = WORK / f"samples-{VERSION}"
    executable, ready = home / "bin" / "python", home / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(REQUIREMENTS)} into {home} …", flush=True)
        venv.create(home, with_pip=True, clear=True)
        _pip(executable, "install", *REQUIREMENTS)
        bundle = _bundle(executable)
        shutil.copy(bundle, bundle.with_suffix(".original"))
        ready.touch()
    return executable


def sdist() -> Path:
    if not SDIST.exists():
        print(f"downloading the sdist of azure-servicebus {VERSION} into {WORK} …", flush=True)
        WORK.mkdir(parents=True, exist_ok=True)
        wanted = ("--no-deps", "--no-binary", "azure-servicebus", "-d", str(WORK))
        _pip(Path(sys.executable), "download", *wanted, f"azure-servicebus=={VERSION}")
    return SDIST


def is_at_hand() -> bool:
    """Whether nothing would have to be downloaded."""
    return SDIST.exists() and (WORK / f"samples-{VERSION}" / ".ready").exists()


def read_samples(folder: Path) -> list[Sample]:
    """Unpack the samples; each with its plan."""
    with tarfile.open(sdist()) as archive:
        members = [one for one in archive.getmembers() if "/samples/" in one.name]
        archive.extractall(folder, members=members, filter="data")
    samples = []
    for path in sorted(folder.glob("*/samples/*/*.py")):
        plan = PLANS.get(path.stem) or PLANS.get(path.stem.removesuffix("_async"))
        if plan is None:
            raise CannotRun(f"{path.name} is not in sample_plan.py: what must it do?")
        name = f"{path.parent.name}/{path.name}"
        samples.append(Sample(name, path.read_text(encoding="utf-8"), plan))
    return samples


def _pip(executable: Path, *arguments: str) -> None:
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    command: list[str] = [str(executable), *pip, *arguments]
    subprocess.run(command, check=True, timeout=600)


def _bundle(executable: Path) -> Path:
    code = "import certifi; print(certifi.where())"
    found = subprocess.run([executable, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


# --- a broker, a directory, a proxy -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Surroundings:
    folder: Path
    python: Path
    host: str
    broker: BrokerProcess
    environment: dict[str, str]
    proxy: Proxy | None


def host_with_ports() -> str:
    """An address where the standard ports can be listened on. Raises CannotRun."""
    reasons = []
    for host in HOSTS:
        try:
            for port in PORTS:
                with socket.create_server((host, port)):
                    pass
        except OSError as error:
            reasons.append(f"{host}: {error.strerror}")
        else:
            return host
    raise CannotRun(
        f"the SDK insists on ports {' and '.join(map(str, PORTS))}, and they cannot be had: "
        + "; ".join(reasons)
    )


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    """One at a time on a machine. Raises CannotRun, or NoOpenSsl."""
    executable = python()
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context((WORK / "samples.lock").open("w"))
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotRun("they are running already, and there is one set of ports") from None
        host = host_with_ports()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-samples-")))
        made = certificates.make(folder, host)
        bundle = folder / "trusted.pem"
        original = _bundle(executable).with_suffix(".original")
        bundle.write_bytes(original.read_bytes() + made.authority.read_bytes())
        # The SDK's AMQP half trusts certifi's file and no variable; this certifi is ours alone.
        shutil.copy(bundle, _bundle(executable))
        ports = [word for port in PORTS for word in ("--port", str(port))]
        arguments = ["--host", host, *ports, *made.arguments]
        broker = stack.enter_context(BrokerProcess.start(arguments=arguments))
        directory = stack.enter_context(Directory(host, made, broker.key))
        try:
            proxy = stack.enter_context(Proxy(*PROXY))
        except OSError:
            proxy = None
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environment = {
            **kept,
            **directory.environment,
            "REQUESTS_CA_BUNDLE": str(bundle),
            "SSL_CERT_FILE": str(bundle),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": host,
            "SERVICEBUS_CONNECTION_STR": f"Endpoint=sb://{host}/;SharedAccessKeyName={ROOT};"
            f"SharedAccessKey={broker.key}",
            "SERVICEBUS_SAS_POLICY": ROOT,
            "SERVICEBUS_SAS_KEY": broker.key,
            "SERVICEBUS_SESSION_ID": SESSION,
        }
        yield Surroundings(folder, executable, host, broker, environment, proxy)


# --- one sample ---------------------------------------------------------------------------------


def run(sample: Sample, around: Surroundings) -> Verdict:
    """Make its entities, run it, look at what it did."""
    plan = sample.plan
    if plan.not_run:
        return Verdict(sample, "not run", plan.not_run)
    if plan.needs_proxy and around.proxy is None:
        return Verdict(sample, "not run", f"port {PROXY[1]} is taken, and it insists on it")
    names = _make_entities(sample, around)
    script = next(around.folder.glob(f"*/samples/{sample.name}"))
    began = time.monotonic()
    process = subprocess.Popen(
        [around.python, script.name],
        cwd=script.parent,
        env={**around.environment, **names},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, code = _watch(process, plan)
    verdict = Verdict(sample, "ok", "", time.monotonic() - began, output)
    reason = _judge(plan, output, code) or _left(sample, around, names)
    return replace(verdict, word="FAILED", reason=reason) if reason else verdict


def _watch(process: subprocess.Popen[str], plan: Plan) -> tuple[str, int | None]:
    """All it prints, and how it ended; None: it had to be stopped, or should have been endless."""
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + _PATIENCE_S
    code: int | None = None
    while time.monotonic() < deadline and (code := process.poll()) is None:
        time.sleep(0.1)
        if plan.is_endless and not _missing(plan, "".join(lines)):
            time.sleep(2)  # to settle what it has printed
            break
    is_stopped = code is None
    if is_stopped:
        process.send_signal(signal.SIGKILL)
    process.wait()
    reader.join()
    assert process.stdout is not None
    process.stdout.close()
    return "".join(lines), None if is_stopped else code


def _judge(plan: Plan, output: str, code: int | None) -> str:
    """What is wrong with its end and its output; "" is nothing."""
    if plan.is_endless and code is not None:
        return f"it should never end, and ended with {code}"
    if not plan.is_endless and code is None:
        return f"not over after {_PATIENCE_S} s"
    if code:
        return f"exit code {code}: {output.strip().splitlines()[-1] if output.strip() else ''}"
    if complaint := _COMPLAINTS.search(output):
        line = output[: complaint.end()].count("\n")
        return f"it complains: {output.splitlines()[line]}"
    return _missing(plan, output)


def _missing(plan: Plan, output: str) -> str:
    for pattern, wanted in plan.prints.items():
        found = len(re.findall(pattern, output, re.MULTILINE))
        if found < wanted:
            return f"it printed {pattern!r} {found} times, not {wanted}"
    return ""


def _client(around: Surroundings) -> Any:
    from azure.servicebus import ServiceBusClient

    return ServiceBusClient.from_connection_string(around.broker.connection_string)


def _make_entities(sample: Sample, around: Surroundings) -> dict[str, str]:
    """Those whose variables it reads, and what waits in them; returns the variables."""
    from azure.servicebus import ServiceBusMessage

    plan, broker, stem = sample.plan, around.broker, sample.stem
    names = {}
    targets = []
    if sample.reads("SERVICEBUS_QUEUE_NAME"):
        names["SERVICEBUS_QUEUE_NAME"] = f"{stem}.queue"
        broker.create_queue(f"{stem}.queue", LockDuration=plan.lock_duration)
        targets.append(("get_queue_sender", f"{stem}.queue"))
    if sample.reads("SERVICEBUS_SESSION_QUEUE_NAME"):
        names["SERVICEBUS_SESSION_QUEUE_NAME"] = f"{stem}.sessions"
        broker.create_queue(
            f"{stem}.sessions", LockDuration=plan.lock_duration, RequiresSession=True
        )
        if plan.has_sessions:
            targets.append(("get_queue_sender", f"{stem}.sessions"))
    if sample.reads("SERVICEBUS_TOPIC_NAME"):
        names["SERVICEBUS_TOPIC_NAME"] = f"{stem}.topic"
        names["SERVICEBUS_SUBSCRIPTION_NAME"] = "sub"
        broker.create_topic(f"{stem}.topic")
        broker.create_subscription(f"{stem}.topic", "sub", RequiresSession=plan.has_sessions)
        targets.append(("get_topic_sender", f"{stem}.topic"))
    if not plan.seed and not plan.has_sessions:
        return names
    with _client(around) as client:
        for kind, name in targets:
            with getattr(client, kind)(name) as sender:
                for n in range(plan.seed):
                    sender.send_messages(ServiceBusMessage(f"seeded {n}"))
                for session in ("one", "two") if plan.has_sessions else ():
                    sender.send_messages(ServiceBusMessage("seeded", session_id=session))
        if plan.has_sessions:
            with client.get_queue_receiver(f"{stem}.sessions", session_id="one") as receiver:
                receiver.session.set_state("begun")
    return names


def _left(sample: Sample, around: Surroundings, names: dict[str, str]) -> str:
    """What is wrong with what it left behind."""
    plan = sample.plan
    if plan.needs_proxy and around.proxy is not None and not around.proxy.tunnels:
        return "it never went through the proxy"
    if plan.leaves is None:
        return ""
    left = sum(
        _active(around.broker, names[variable] + tail)
        for variable, tail in (
            ("SERVICEBUS_QUEUE_NAME", ""),
            ("SERVICEBUS_SESSION_QUEUE_NAME", ""),
            ("SERVICEBUS_TOPIC_NAME", "/Subscriptions/sub"),
        )
        if variable in names
    )
    return "" if left == plan.leaves else f"it left {left} messages, not {plan.leaves}"


def _active(broker: BrokerProcess, path: str) -> int:
    """How many messages the broker says there are: not dead, not scheduled."""
    token = sign(f"http://{broker.address}", ROOT, broker.key, int(time.time()) + 600)
    connection = HTTPConnection(broker.address, timeout=60)
    try:
        connection.request("GET", f"/{path}?api-version=2021-05", headers={"Authorization": token})
        body = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = re.search(r"ActiveMessageCount[^>]*>(\d+)<", body)
    assert found is not None, body
    return int(found[1])


# --- all of them --------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="The SDK's samples against a broker")
    parser.add_argument("names", nargs="*", help="only samples with one of these in their name")
    parser.add_argument("--at-once", type=int, default=8, help="samples side by side (8)")
    parser.add_argument("--verbose", action="store_true", help="print what failed ones printed")
    options = parser.parse_args()
    try:
        with surroundings() as around:
            every = read_samples(around.folder)
            wanted = [
                one
                for one in every
                if not options.names or any(n in one.name for n in options.names)
            ]
            # Those that sleep for minutes first, so that the others fill the time.
            wanted.sort(key=lambda one: "auto_lock_renew" not in one.name)
            with ThreadPoolExecutor(options.at_once) as pool:
                verdicts = []
                for done in as_completed([pool.submit(run, one, around) for one in wanted]):
                    verdicts.append(done.result())
                    _show(verdicts[-1], verbose=options.verbose)
    except (CannotRun, certificates.NoOpenSsl) as error:
        raise SystemExit(f"the samples cannot run here: {error}") from None
    counts = Counter(verdict.word for verdict in verdicts)
    print(
        f"{len(verdicts)} samples of azure-servicebus {VERSION}, unmodified: {counts['ok']} ran, "
        f"{counts['FAILED']} failed, {counts['not run']} not run"
    )
    unplanned = [it for it in verdicts if it.word == "not run" and not it.sample.plan.not_run]
    return 1 if counts["FAILED"] or unplanned or not counts["ok"] else 0


def _show(verdict: Verdict, *, verbose: bool) -> None:
    note = verdict.reason
    if not note and verdict.sample.plan.is_endless:
        note = "it receives for ever: stopped when it had received all"
    line = f"{verdict.word:8}{verdict.seconds:6.1f} s  {verdict.sample.name}"
    print(f"{line:72}{note}".rstrip(), flush=True)
    if verbose and verdict.word == "FAILED":
        print("".join(f"    | {line}\n" for line in verdict.output.splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
