"""How long `vramcast check` takes from a cold shell, against the least that any JSON-printing command takes.

    python bench/startup.py [RUNS]

Runs both commands in turn; prints the medians, their ratio beside the limit, and the heaviest imports. A report: it
exits with 0.
"""

import re
import subprocess
import sys
import time
from statistics import median

LIMIT = 6
FLOOR = [sys.executable, "-c", "import json, argparse"]
CHECK = [sys.executable, *"-m vramcast check --model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --json".split()]
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


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


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    probe = subprocess.run(CHECK, check=False, capture_output=True, text=True)
    if not probe.stdout.startswith("{"):
        print(f"vramcast check gave no answer (exit code {probe.returncode}):\n{probe.stderr.strip()}")
        return
    floor, check = interleaved([FLOOR, CHECK], runs)
    print(f"python -c 'import json, argparse'   {floor * 1000:7.1f} ms   median of {runs}")
    print(f"vramcast check --json               {check * 1000:7.1f} ms   median of {runs}")
    print(f"ratio                               {check / floor:7.2f}      limit {LIMIT}")
    print("\nheaviest imports, own and with what they import (ms)")
    for own, both, name in heaviest_imports():
        print(f"  {own / 1000:7.2f} {both / 1000:7.2f}  {name}")


if __name__ == "__main__":
    main()
