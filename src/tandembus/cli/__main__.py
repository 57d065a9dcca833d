"""`python -m tandembus.cli`: the same as `tandem`."""

import sys

from tandembus.cli import main

if __name__ == "__main__":
    sys.exit(main())
