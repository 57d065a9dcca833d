"""A throw-away certificate authority and a server certificate that it signed.

Made anew for every run with the `openssl` program; trusted by nobody who is not told to.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

_DAYS: Final = "-days 2"
_KEY: Final = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
_EXTENSIONS: Final = """\
subjectAltName={}
basicConstraints=CA:FALSE
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


class NoOpenSsl(RuntimeError):
    """There is no `openssl` program on this machine."""


@dataclass(frozen=True, slots=True)
class Certificates:
    authority: Path
    """What a client has to trust."""
    certificate: Path
    private_key: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """Those of `tandem serve`."""
        return ("--certificate", str(self.certificate), "--private-key", str(self.private_key))


def make(folder: Path, *names: str) -> Certificates:
    """For a server with these names or addresses. Raises NoOpenSsl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise NoOpenSsl("the `openssl` program makes the certificates, and is not there")

    def run(arguments: str) -> None:
        command = [openssl, *arguments.split()]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

    alternatives = ",".join(f"{_kind(name)}:{name}" for name in names)
    (folder / "server.cnf").write_text(_EXTENSIONS.format(alternatives), encoding="utf-8")
    signed = "-addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem"
    run(f"req -x509 {_DAYS} {_KEY} -subj /CN=throw-away {signed}")
    run(f"req {_KEY} -subj /CN={names[0]} -keyout server.key -out server.csr")
    signer = "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile server.cnf"
    run(f"x509 -req {_DAYS} -in server.csr {signer} -out server.pem")
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


def _kind(name: str) -> str:
    try:
        ip_address(name)
    except ValueError:
        return "DNS"
    return "IP"
