"""Writes the table of verl's own defaults from unpacked releases: the wheels of verl, one folder a version.

python -m tests.readers.verl_releases FOLDER        # FOLDER/0.9.1/verl/trainer/config/..., FOLDER/0.8.0/...
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from vramcast.readers.frameworks.verl.defaults import FILE
from vramcast.readers.hydra import flat

LEFT_OUT = (
    "_target_", "profiler", "global_profiler", "transfer_queue", "npu_profile", "controller_nsight_options",
    "worker_nsight_options", "turbo_config", "trace", "prometheus", "hydra", "skip",
)  # fmt: skip
"""Blocks that say nothing about memory, whatever stands in them: `verl_keys.NO_EFFECT` knows them by name."""


def tree(release: Path) -> dict[str, Any]:
    """The defaults of one release, flat; since 0.5 verl composes them into a file of their own."""
    folder = release / "verl" / "trainer" / "config"
    composed = folder / "_generated_ppo_trainer.yaml"
    file = composed if composed.exists() else folder / "ppo_trainer.yaml"
    content = yaml.safe_load(file.read_text())
    return {key: value for key, value in flat(content) if not set(key.split(".")) & set(LEFT_OUT)}


def history(releases: dict[str, dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """Key → [version, default] wherever it changed, and [version] where the key ended; oldest first."""
    found: dict[str, list[list[Any]]] = {}
    for key in sorted({key for defaults in releases.values() for key in defaults}):
        steps: list[list[Any]] = []
        for version, defaults in releases.items():
            now = [defaults[key]] if key in defaults else []
            if now != (steps[-1][1:] if steps else []):
                steps.append([version, *now])
        found[key] = steps
    return found


def main(folder: str) -> None:
    versions = sorted((path.name for path in Path(folder).iterdir()), key=lambda name: [*map(int, name.split(".")[:3])])
    found = history({version.partition(".post")[0]: tree(Path(folder) / version) for version in versions})
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(steps)}" for key, steps in found.items())
    Path(FILE).write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1])
