"""What every test takes for granted."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from tools.harnesses import EXPECTED_SKIPS

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so; then no child of ours would know Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where CI is set Hypothesis has a profile of its own, in which every run is the same.
settings.register_profile("tandem", derandomize=False, deadline=None)
settings.load_profile("tandem")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a test that is skipped because something is not installed is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    reasons = {str(report.longrepr[2]) for report in reporter.stats.get("skipped", ())}
    unexpected = sorted(each for each in reasons if not EXPECTED_SKIPS.search(each))
    if unexpected and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\nskipped in CI, which installs all it needs: {unexpected}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
