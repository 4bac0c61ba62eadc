"""How long `vramcast check` takes from a cold shell, against the least that any JSON-printing command takes.

    python bench/startup.py [RUNS]

Runs both commands in turn, byte code warm; prints the medians of their processor time, their ratio beside the limit,
and the heaviest imports. Exits with 1 above the limit. Processor time: what else the machine does must not count.
"""

import os
import re
import resource
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

LIMIT = 6
FLOOR = [sys.executable, "-c", "import json, argparse"]
CHECK = [sys.executable, *"-m vramcast check --model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --json".split()]
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")


def seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def interleaved(commands: list[list[str]], runs: int) -> list[float]:
    """The median of each command, all run in turn so that a busy moment of the machine meets every one of them."""
    for command in commands:
        seconds(command)  # byte code and file cache are warm from here on
    taken = [[seconds(command) for command in commands] for _ in range(runs)]
    return [median(column) for column in zip(*taken, strict=True)]


def heaviest_imports(most: int = 10) -> list[tuple[int, int, str]]:
    """(own, with what it imports, module) in microseconds, largest own time first."""
    done = subprocess.run([CHECK[0], "-X", "importtime", *CHECK[1:]], check=False, capture_output=True, text=True)
    found = [(int(own), int(both), name) for own, both, _, name in _IMPORT.findall(done.stderr)]
    return sorted(found, reverse=True)[:most]


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 31
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder  # byte code is written wherever the package lies
        return compared(runs)


def compared(runs: int) -> int:
    """Both commands, printed: the exit code."""
    probe = subprocess.run(CHECK, check=False, capture_output=True, text=True)
    if not probe.stdout.startswith("{"):
        print(f"vramcast check gave no answer (exit code {probe.returncode}):\n{probe.stderr.strip()}")
        return 1
    floor, check = interleaved([FLOOR, CHECK], runs)
    print(f"python -c 'import json, argparse'   {floor * 1000:7.1f} ms   median of {runs}")
    print(f"vramcast check --json               {check * 1000:7.1f} ms   median of {runs}")
    print(f"ratio                               {check / floor:7.2f}      limit {LIMIT}")
    print("\nheaviest imports, own and with what they import (ms)")
    for own, both, name in heaviest_imports():
        print(f"  {own / 1000:7.2f} {both / 1000:7.2f}  {name}")
    return int(check > LIMIT * floor)


if __name__ == "__main__":
    sys.exit(main())
