"""What the shells share of sockets: whom TLS trusts, and why a socket failed, in words."""

from __future__ import annotations

import ssl

from tandembus.errors import ConnectionLostError, UnauthorizedError


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Certificates and host names are checked; `ca_file` is trusted instead of the system's."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def lost(error: OSError, host: str, port: int) -> ConnectionLostError | UnauthorizedError:
    """A certificate that is refused today is refused tomorrow; all else may pass."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        return UnauthorizedError(f"The certificate of {host}:{port} is refused: {why}.")
    why = error.strerror or str(error) or type(error).__name__
    return ConnectionLostError(f"{host}:{port}: {why}")
