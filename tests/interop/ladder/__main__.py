"""`python -m tests.interop.ladder`: see `run`."""

import sys

from tests.interop.ladder.run import main

if __name__ == "__main__":
    sys.exit(main())
