"""Plain AMQP 1.0 clients against a real broker: `make test-interop`.

Apache Qpid Proton, built from its source on PyPI into a virtual environment of its own where there
is a compiler, else Debian's package of it; and rhea from npm (`nodejs`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from tests.interop import certificates, nodejs

ROOT: Final = Path(__file__).parents[2]
HOME: Final = Path(sys.prefix) / "interop-proton"
"""Inside our own virtual environment, so that `make clean` takes it along."""
DEBIAN: Final = Path("/usr/bin/python3")
PROTON: Final = "python-qpid-proton==0.40.0"
_BUILD_S: Final = 900
_RUN_S: Final = 300
_HAS_PROTON: Final = (
    "import sys, proton.utils; sys.exit(sys.version_info < (3, 11) or proton.VERSION < (0, 30))"
)


def with_proton() -> Path:
    """A Python that has Proton. Raises SystemExit with what to install."""
    executable = HOME / "bin" / "python"
    if _has_proton(executable):
        return executable
    if shutil.which("gcc") and shutil.which("pkg-config"):
        print(f"building {PROTON} from its source into {os.path.relpath(HOME)} …", flush=True)
        venv.create(HOME, with_pip=True, clear=True)
        pip = [str(executable), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        built = subprocess.run([*pip, PROTON], timeout=_BUILD_S, check=False)
        if built.returncode == 0 and _has_proton(executable):
            return executable
        print("Proton could not be built (its TLS needs libssl-dev).", flush=True)
    if not _has_proton(DEBIAN) and os.geteuid() == 0 and shutil.which("apt-get"):
        print("installing Debian's python3-qpid-proton …", flush=True)
        apt = ["apt-get", "install", "--yes", "--quiet", "python3-qpid-proton"]
        subprocess.run(apt, timeout=_BUILD_S, check=False)
    if _has_proton(DEBIAN):
        return DEBIAN
    raise SystemExit(
        "Apache Qpid Proton is needed: gcc, pkg-config and libssl-dev to build it, "
        "or Debian's python3-qpid-proton"
    )


def _has_proton(executable: Path) -> bool:
    if not executable.exists():
        return False
    found = subprocess.run([executable, "-c", _HAS_PROTON], capture_output=True, check=False)
    return found.returncode == 0


def run_proton() -> int:
    executable = with_proton()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    command = [str(executable), "-m", "tests.interop.proton_program"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=_RUN_S, check=False)
    return ended.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Plain AMQP 1.0 clients against a broker")
    parser.add_argument("--only", choices=("proton", "rhea"), help="one of the two")
    options = parser.parse_args()
    results = {}
    if options.only != "rhea":
        results["Apache Qpid Proton"] = run_proton()
    if options.only != "proton":
        try:
            results["rhea"] = nodejs.run(["rhea.test.mjs"])
        except certificates.NoOpenSsl as error:
            raise SystemExit(str(error)) from None
    for name, code in results.items():
        print(f"{name}: {'FAILED' if code else 'passed'}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
