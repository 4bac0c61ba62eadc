"""Configurations and scripts with slips of the pen: read, or refused with an error, and nothing else.

What is mutated are small files of every kind that the readers know. Most of a mutation's inputs go through the readers
only; a part goes through `vramcast check`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import pytest
import yaml
from tests.fuzz import mutate

from vramcast.errors import Refused
from vramcast.readers.detect import understand

SECONDS = 5.0
"""No input of this size is worth more, also on a busy machine."""
ROOT = Path(__file__).parents[2]
FILES = sorted(
    [
        *(ROOT / "tests/readers/samples").glob("*/*.yaml"),
        *(ROOT / "tests/readers/samples").glob("*/*.sh"),
        *(path for path in (ROOT / "examples").iterdir() if path.suffix in (".yaml", ".sh", ".toml")),
    ]
)
SCRIPTS = {
    "commands.sh": """#!/bin/bash
#SBATCH --gpus=8
export CUDA_VISIBLE_DEVICES=0,1
N=${N:-$((2 * 4))}; LEN=${LEN:-$(( (512 + 512) * 2 ))}
ARGS=(--max_length $LEN --bf16 true "--learning_rate=1e-5")
if [ "$N" -gt 4 ] && [[ $LEN == 2* ]]; then ARGS+=(--gradient_checkpointing false); else N=1; fi
case $MODE in a*|b) K=1 ;; *) K=2 ;; esac
for i in 1 2; do echo $i; done
read -r -d '' MORE <<EOF
--per_device_train_batch_size $K
EOF
accelerate launch --num_processes "$N" --use_fsdp sft.py --model_name_or_path Qwen/Qwen2.5-0.5B "${ARGS[@]}" $MORE
""",
    "inner.sh": """CMD="python3 -m verl.trainer.main_ppo data.train_batch_size=64 \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B"
srun -N 1 bash -lc "cd /x && $CMD actor_rollout_ref.rollout.n=$((1 << 2)) 'data.x=[1,{a: 2},\\"b\\"]'"
eval "$CMD +data.y=\\${data.train_batch_size} ~data.z actor_rollout_ref.rollout.name=vllm"
sbatch <<'EOF'
trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --num_generations 4 --config x.yaml
EOF
""",
    "list.py": 'subprocess.run(["python", "-m", "verl.trainer.main_ppo", "data.seed=8", f"a.b={x}", *rest])\n',
    "job.json": '{"model": "Qwen/Qwen2.5-0.5B", "gpu": "l4-24gb", "micro_batch": 2, "lora": {"rank": 8}}\n',
}
BASH = (
    "$", "${", "$((", "))", "}", "`ls`", "$(", "\\", "\\\n", "<<EOF\n", "\nEOF\n", " && ", " || ", " | ", ";", "(",
    ")", "{ ", "[[ ", " ]]", "if ", "then ", "fi\n", "case x in ", "esac", "A=1 B=2\n", "A[0]=x\n", "${A[@]}",
    "${A[\u00b2]}", "$A$A", 'A="$A$A"\n', "A+=(1 2)\n", "a[z-a]=1\n", "${A:-", "${A:+x}", "${!A}", "${#A}", "$@",
    "$1", "!", "eval ", "bash -c '", "#", " -", " --", "=", "~", "+", "@", "[", "]", "{", "}", "${oc.env:A,1}",
    "${data.a}", "9" * 30, "-1", "0x1f", "1e999",
)  # fmt: skip
YAML = (
    "!!bool x", '!!int ""', '!!float ""', "!!timestamp x", "!!binary x", "!!set {a}", "!!omap [a: 1]",
    "!!python/name:os", "&a ", "*a", "<<: ", "? ", "- ", "| \n", "> \n", ": ", "---\n", "...\n", "%YAML 9\n", ".inf",
    "-.inf", ".nan", "0o17", "1:30", "2001-01-01", "1_000", "=", "~", "{a: 1}", "[1, [2]]", "\t", "'", '"',
)  # fmt: skip


def read(name: str, text: str) -> None:
    """What every input is promised by the readers: they understand it or refuse it, and soon."""
    text = text.encode("utf-8", "replace").decode().replace("\0", "")  # files of other bytes are refused before
    start = time.monotonic()
    try:
        understand(name, text, str(ROOT / "examples"))
    except Refused:
        pass
    except BaseException as error:
        error.add_note(f"{name}\n{text}"[:4000])
        raise
    assert time.monotonic() - start < SECONDS, f"{name}\n{text}"[:4000]


def contents() -> list[tuple[str, str]]:
    return [*((path.name, path.read_text(encoding="utf-8")) for path in FILES), *SCRIPTS.items()]


@pytest.mark.parametrize("seed", range(4))
def test_texts(seed: int) -> None:
    """Characters, spans and lines lost, doubled, moved, and words of the language where nobody means them."""
    random = Random(f"texts {seed}")
    known = contents()
    for _ in range(mutate.amount(1000)):
        name, text = random.choice(known)
        own = BASH if name.endswith((".sh", ".py")) else YAML
        read(name, mutate.text(random, text, 4, (*mutate.PIECES, *mutate.WORDS, *own, *own)))


def test_values() -> None:
    """Configurations whose values, keys and nesting are others."""
    random = Random("values")
    known = [(name, yaml.safe_load(text)) for name, text in contents() if name.endswith((".yaml", ".json"))]
    for _ in range(mutate.amount(2000)):
        name, content = random.choice(known)
        changed = mutate.tree(random, content, 4)
        if random.random() < 0.5:
            read("x.json", json.dumps(changed, default=str))
        else:
            read(name, yaml.safe_dump(changed, allow_unicode=True, sort_keys=False))


def test_command_lines() -> None:
    """Flags and overrides with values that nobody means, in the quotes that bash wants."""
    random = Random("commands")
    words = [word for _, text in contents() for word in text.split() if "=" in word or word.startswith("--")]
    starts = ("trl sft ", "trl grpo ", "python3 -m verl.trainer.main_ppo ",
              "accelerate launch --num_processes 2 sft.py ", "torchrun --nproc_per_node 2 my.py ",
              "deepspeed --num_gpus 2 train.py ")  # fmt: skip
    for _ in range(mutate.amount(2000)):
        chosen = random.sample(words, random.randrange(1, 14))
        for at in range(len(chosen)):
            if random.random() < 0.4:
                key = chosen[at].partition("=")[0]
                value = str(mutate.value(random)).replace("'", '"')
                chosen[at] = f"'{key}={value}'" if random.random() < 0.7 else f"{key} '{value}'"
        read("run.sh", random.choice(starts) + " ".join(chosen) + "\n")


def test_the_command(tmp_path: Path) -> None:
    """The whole way of a mutated file through `vramcast check`."""
    random = Random("command")
    known = contents()
    for _ in range(mutate.amount(300)):
        name, text = random.choice(known)
        file = tmp_path / name
        own = BASH if name.endswith((".sh", ".py")) else YAML
        text = mutate.text(random, text, 2, (*mutate.PIECES, *mutate.WORDS, *own))
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        more = random.choice(((), ("--strict",), ("--json",), ("--set", "seq_len=512"), ("--gpus", "2")))
        mutate.answers("check", str(file), "--gpu", "h100-sxm-80gb", *more, shown=text)
