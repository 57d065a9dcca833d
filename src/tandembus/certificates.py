"""A certificate authority of one's own, and a server's certificate that it signs: `tandem cert`.

For development, for tests, and for a network without a public authority. Here the files are made
and the words that tell each SDK to trust them; how a server uses its certificate is `server`. Needs
`cryptography` (`pip install tandembus[cert]`), which is imported when a certificate is made.

The rules: a key is readable by its owner only, from its first byte on; an authority that is there
is used again, so that what trusts it goes on to; nothing is overwritten but the server's files.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3_650
SERVER_DAYS: Final = 397
"""What browsers and Apple's systems take at most."""
_MISSING: Final = "`tandem cert` needs the package 'cryptography': pip install 'tandembus[cert]'."
_EARLIER: Final = timedelta(minutes=5)
"""For clients whose clock is behind."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything is, below one folder."""

    folder: Path

    @property
    def authority(self) -> Path:
        """What a client has to trust."""
        return self.folder / "ca.pem"

    @property
    def authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's, with the authority's behind it."""
        return self.folder / "server.pem"

    @property
    def private_key(self) -> Path:
        return self.folder / "server.key"


@dataclass(frozen=True, slots=True)
class Made:
    files: Files
    hosts: tuple[str, ...]
    ends: datetime
    has_new_authority: bool


def make(folder: Path, hosts: Sequence[str], *, days: int = SERVER_DAYS) -> Made:
    """A certificate for these host names and addresses; an authority, if the folder has none."""
    if not hosts:
        raise ArgumentError("--host: a certificate is for one name at least.")
    if not 1 <= days <= AUTHORITY_DAYS:
        raise ArgumentError(f"--days is 1 to {AUTHORITY_DAYS}, not {days}.")
    try:
        import cryptography.x509  # noqa: F401 - whether it is there
    except ImportError:
        raise ArgumentError(_MISSING) from None
    names = [_name(host) for host in dict.fromkeys(hosts)]
    files = Files(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_new = not files.authority.exists() and not files.authority_key.exists()
    authority = _new_authority(files) if is_new else _read_authority(files)
    ends = _sign(files, authority, names, days)
    return Made(files, tuple(dict.fromkeys(hosts)), ends, is_new)


def _name(host: str) -> x509.GeneralName:
    from cryptography import x509

    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    labels = host.removeprefix("*.").rstrip(".").split(".")
    is_name = host.isascii() and len(host) <= 253
    if not is_name or not all(
        label and len(label) <= 63 and label.replace("-", "").isalnum() for label in labels
    ):
        raise ArgumentError(f"--host {host[:64]!a}: it is neither a host name nor an address.")
    return x509.DNSName(host.lower())


def _new_authority(files: Files) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # The folder's own name in it: two authorities in one trust store can be told apart.
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Tandem"),
            x509.NameAttribute(
                x509.NameOID.COMMON_NAME, f"Tandem local CA ({files.folder.absolute().name})"[:64]
            ),
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    certificate = (
        _begun(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(files.authority_key, key)
    _write(files.authority, _pem(certificate), 0o644)
    return certificate, key


def _read_authority(files: Files) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key = load_pem_private_key(files.authority_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it cannot be read"
        raise ArgumentError(
            f"the authority in {files.folder} ({files.authority.name}, "
            f"{files.authority_key.name}): {why}. Use another folder, or move both away."
        ) from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ArgumentError(f"{files.authority} and {files.authority_key} do not belong together.")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise ArgumentError(f"{files.authority} has expired: move it and its key away.")
    return certificate, key


def _sign(
    files: Files,
    authority: tuple[x509.Certificate, EllipticCurvePrivateKey],
    names: Sequence[x509.GeneralName],
    days: int,
) -> datetime:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, str(names[0].value)[:64])])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    certificate = (
        _begun(subject, issuer.subject, key, days, issuer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    # The key first: a server that watches both files finds a pair that fits when the second is
    # there, and keeps the old one in between.
    _write_key(files.private_key, key)
    _write(files.certificate, _pem(certificate) + _pem(issuer), 0o644)
    return certificate.not_valid_after_utc


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    days: int,
    not_after: datetime | None = None,
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(end if not_after is None else min(end, not_after))
        .add_extension(identifier, critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    """In one step: whoever reads it meanwhile gets the old file or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as out:
        os.fchmod(out.fileno(), mode)
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


# --- how to trust it ------------------------------------------------------------------------------


def trust(authority: Path) -> dict[str, str]:
    """What has to be done for each SDK, by its language."""
    path = authority.absolute()
    return {
        "Python": (
            f'ServiceBusClient.from_connection_string(…, connection_verify="{path}")\n'
            f"or for every request of the process: export REQUESTS_CA_BUNDLE={path} (admin client)"
        ),
        ".NET": (
            f"Linux: export SSL_CERT_FILE={path}\n"
            f"or for the machine: sudo cp {path} /usr/local/share/ca-certificates/tandem.crt "
            "&& sudo update-ca-certificates\n"
            f"Windows: certutil -addstore -user Root {path.name}"
        ),
        "Java": (
            f"keytool -importcert -noprompt -alias tandem -file {path} -keystore tandem.p12 "
            "-storepass changeit\n"
            "java -Djavax.net.ssl.trustStore=tandem.p12 -Djavax.net.ssl.trustStorePassword=changeit"
        ),
        "JavaScript": f"export NODE_EXTRA_CA_CERTS={path}",
        "Go": f"export SSL_CERT_FILE={path}",
        "Tandem": f'Client(…, ca_file="{path}")',
    }
