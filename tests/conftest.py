"""What every test takes for granted."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so; then no child of ours would know Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
