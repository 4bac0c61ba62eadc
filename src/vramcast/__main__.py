"""`python -m vramcast` is the command `vramcast`."""

from vramcast.cli import run

if __name__ == "__main__":
    run()
