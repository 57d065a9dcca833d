"""`python -m tandem.cli`: the same as `tandem`."""

import sys

from tandem.cli import main

if __name__ == "__main__":
    sys.exit(main())
