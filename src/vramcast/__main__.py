"""`python -m vramcast` is the command `vramcast`."""

import sys

from vramcast.cli import main

if __name__ == "__main__":
    sys.exit(main())
