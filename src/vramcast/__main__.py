"""`python -m vramcast` and the console script. Imports are inside, so that Ctrl-C is one line from the start."""

import sys
from typing import NoReturn


def run() -> NoReturn:
    """The command `vramcast`."""
    try:
        from vramcast import cli
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    cli.run()


if __name__ == "__main__":
    run()
