"""A certificate for localhost, made by openssl when a test needs one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make(folder: Path, host: str = "localhost") -> tuple[Path, Path]:
    """(certificate, private key); the certificate is its own authority."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / f"{host}.pem", folder / f"{host}.key"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2", "-subj", f"/CN={host}",
            "-addext", f"subjectAltName=DNS:{host}",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return certificate, key
