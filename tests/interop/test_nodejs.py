"""A part of `make test-js` in every run: batches, whose limits depend on what the broker says."""

from __future__ import annotations

import pytest

from tests.interop import certificates, nodejs


@pytest.mark.req("T19")
@pytest.mark.parametrize(
    ("serve", "pattern"), [((), "256 KB"), (nodejs.PREMIUM, "1 MB")], ids=["standard", "premium"]
)
def test_fw2_what_javascript_calls_full_is_taken(serve: tuple[str, ...], pattern: str) -> None:
    """Filled to the last message that fits, for bodies from nothing to 100 KB, on entities of
    256 KB, 1 MB and 100 MB."""
    try:
        nodejs.installed()
        code = nodejs.run([nodejs.BATCHES], [f"--test-name-pattern={pattern}"], serve)
    except (SystemExit, certificates.NoOpenSsl) as reason:
        pytest.skip(str(reason))
    assert code == 0
