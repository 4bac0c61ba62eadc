"""CONTRIBUTING's recipes, applied: a model type, a role and a sharding axis are the rows that it shows, and no more."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CONFIG = {
    "model_type": "toy_lm", "architectures": ["ToyForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "head_dim": 64,
    "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
BLOCK = 2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2 * 1024
"""query and output, key and value, the gated MLP, two norms"""


def applied(recipe: str, folder: Path) -> Path:
    """A copy of the source with the diffs of a section."""
    source = folder / "src"
    copytree(ROOT / "src", source, ignore=ignore_patterns("__pycache__"))
    section = re.search(rf"^### {recipe}\n(.*?)^### ", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert section
    for name, diff in re.findall(r"^```diff\n\+\+\+ (\S+)\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL):
        file = folder / name
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        file.write_text("\n".join(patched(lines, diff.splitlines())) + "\n", "utf-8")
    return source


def patched(lines: list[str], diff: list[str]) -> list[str]:
    """What a plus adds stands behind the line above it, or before the one below it."""
    found, waiting = list(lines), list[str]()
    at = None
    for sign, text in ((line[:1], line[1:]) for line in diff):
        if sign == "+" and at is None:
            waiting.append(text)
        elif sign == "+":
            found.insert(at, text)
            at += 1
        else:
            start = found.index(text, at or 0)
            found[start : start + 1] = [*waiting, *([text] if sign == " " else [])]
            at, waiting = start + len(waiting) + (sign == " "), []
    return found + waiting


def run(source: Path, *command: str) -> str:
    """What Python prints with that source."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def checked(source: Path, *flags: str) -> dict[str, Any]:
    return json.loads(run(source, "-m", "vramcast", "check", "--gpu", "h100-sxm-80gb", "--json", *flags))


def of_term(answer: dict[str, Any], phase: str, term: str) -> dict[str, int]:
    """role → bytes of a term in a phase of the first step."""
    found = next(one for one in answer["groups"][0]["phases"] if (one["name"], one["when"]) == (phase, "steady"))
    return {one["role"]: one["bytes"] for one in found["terms"] if one["name"] == term}


def test_a_diff_is_applied_where_it_says():
    assert patched(["a", "b", "c"], ["+0", " a", "+1", "-c", "+2"]) == ["0", "a", "1", "b", "2"]


def test_a_model_type(tmp_path: Path):
    """Its parameters, and what its gate keeps for backward: a share and what it multiplies, bf16, in each layer."""
    source = applied("Add a model type", tmp_path)
    saved: list[int] = []
    for name in ("llama", "toy_lm"):
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": name}))
        counted = json.loads(run(source, "-m", "vramcast", "explain", "--arch", "--model", str(tmp_path), "--json"))
        gate = 1024 * 1024 if name == "toy_lm" else 0
        assert counted["arch"]["params"] == 4 * (BLOCK + gate) + 2 * 32000 * 1024 + 1024
        modes = ("algorithm=sft", "recompute=none", "weights_dtype=bf16", "autocast=false", "micro_batch=1")
        job = [word for value in (*modes, "seq_len=512") for word in ("--set", value)]
        saved.append(of_term(checked(source, "--model", str(tmp_path), *job), "loss", "activations.saved")["policy"])
    assert saved[1] - saved[0] == 4 * 2 * 512 * 1024 * 2


def test_a_role(tmp_path: Path):
    """A teacher's weights stay beside the policy's, and its forward is a phase before the policy's."""
    source = applied("Add a role", tmp_path)
    job = ("--set", "algorithm=distill", "--set", "weights_dtype=bf16")
    answer = checked(source, "--model", "Qwen/Qwen2.5-0.5B", *job)
    assert answer["groups"][0]["roles"] == ["policy", "teacher"]
    both = {"policy": 494_032_768 * 2, "teacher": 494_032_768 * 2}
    assert of_term(answer, "score.teacher", "weights") == of_term(answer, "step", "weights") == both
    assert "teacher" in of_term(answer, "score.teacher", "activations.block")
    assert of_term(answer, "step", "optimizer.state").keys() == {"policy"}


def test_a_sharding_axis(tmp_path: Path):
    """Four ranks of expert parallelism hold a quarter of a shared expert each, whatever tensor parallelism there is."""
    source = applied("Add a sharding axis", tmp_path)
    asked = (
        "from vramcast.models.layout import axis; from vramcast.models.parts import tensor;"
        "from vramcast.models.place import Cut, held;"
        "up = tensor('shared.up', axis(4096, 1, 'shared'), 1024);"
        "print(held(up, Cut(tp=2, ep=4)))"
    )
    assert run(source, "-c", asked)== f"{1024 * 1024}\n"
