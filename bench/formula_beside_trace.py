"""Random training jobs through both methods: at how many instants the formula is within 1 % of the trace, and where it
is not, in which terms. Needs the extra `trace`.

    python bench/formula_beside_trace.py [--jobs 20] [--seed 1] [PATH=VALUE ...]

PATH=VALUE is said of every job. A report: it exits with 0. A job that is refused is drawn again.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

warnings.filterwarnings("ignore")

from vramcast.catalog.models import model_config  # noqa: E402
from vramcast.errors import Refused  # noqa: E402
from vramcast.estimate import forecast, resolve  # noqa: E402
from vramcast.memory.alloc_conf import parse  # noqa: E402
from vramcast.trace.child.step import run  # noqa: E402
from vramcast.trace.judged import judge  # noqa: E402
from vramcast.trace.question import question_of  # noqa: E402
from vramcast.types.job import Fact, Origin, Understanding, check_value  # noqa: E402
from vramcast.types.result import PhaseBytes  # noqa: E402

MIB = 1 << 20
LIMIT = 0.01
MODELS = (
    "Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM2-360M", "Qwen/Qwen3-0.6B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "Qwen/Qwen2.5-1.5B", "mistralai/Mistral-7B-v0.1",
)  # fmt: skip
PRECISION = (
    {"weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False},
    {"weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": True},
    {"weights_dtype": "fp32", "compute_dtype": "bf16", "autocast": True},
    {"weights_dtype": "fp16", "compute_dtype": "bf16", "autocast": True},
    {"weights_dtype": "fp32", "compute_dtype": "fp32", "autocast": False},
)
TUNING = (
    {"tuning": "full"},
    {"tuning": "lora", "lora.targets": ["all-linear"]},
    {"tuning": "lora", "lora.targets": ["q_proj", "v_proj"]},
    {"tuning": "qlora", "quant.kind": "nf4", "lora.targets": ["all-linear"]},
)
FRAMEWORKS = ("trl==1.16.0", "trl==1.12.0", "trl==1.9.2", "trl==1.6.0", "trl==0.29.0", "trl==0.22.0", "trl==0.19.0",
              "trl==0.15.0", "transformers", "loop")  # fmt: skip


class Instant(NamedTuple):
    """One instant of a job by both methods."""

    name: str
    traced: int
    formula: int
    terms: str
    """where they differ by more than 1 MiB: term, traced / by formula"""

    @property
    def off(self) -> float:
        return self.formula / self.traced - 1


def draw(dice: random.Random, fixed: dict[str, Any]) -> dict[str, Any]:
    """What a random job says, `fixed` before all."""
    said: dict[str, Any] = {
        "model": dice.choice(MODELS), "gpu": "a100-sxm-80gb", "framework": dice.choice(FRAMEWORKS),
        "algorithm": dice.choice(("sft", "pretrain", "grpo")), **dice.choice(PRECISION), **dice.choice(TUNING),
        "micro_batch": dice.choice((1, 2, 3)), "accumulation": dice.choice((1, 2)),
        "recompute": dice.choice(("none", "full")), "attention": dice.choice(("flash", "efficient", "eager")),
        "optimizer": dice.choice(("adamw", "adamw_8bit", "sgd")), "loss": "full", **fixed,
    }  # fmt: skip
    if said["framework"] == "trl==1.16.0" and said["algorithm"] != "pretrain":
        said["loss"] = "fused"
    if said["algorithm"] == "grpo":
        prompt = dice.choice((64, 129, 512))
        length = {"prompt_len": prompt, "response_len": dice.choice((96, 257, 512)), "engine.kind": "none", "group": 1}
        return said | length | {"reference.kind": dice.choice(("none", "none", "copy"))} | fixed
    return said | {"seq_len": dice.choice((257, 512, 1024, 2048))} | fixed


def compared(said: dict[str, Any]) -> list[Instant]:
    """Every instant that both methods know.

    Raises:
        Refused: one of them does not know such a job.
    """
    origin = Origin("bench")
    understood = Understanding([Fact(path, check_value(path, value, origin), origin) for path, value in said.items()])
    job = resolve(understood)
    answer = forecast(understood, cards=False)
    question = question_of(job, model_config(str(said["model"])).config)
    judged = judge(run(question), parse(""), job.gpu, job.gpu.total_bytes.value)
    traced = {_key(phase): phase for phase in judged.phases}
    return [
        Instant(
            "{2} {0}·{1}".format(*_key(phase)),
            _allocated(traced[_key(phase)]),
            _allocated(phase),
            ", ".join(_differences(traced[_key(phase)], phase)),
        )
        for phase in answer.groups[0].phases
        if _key(phase) in traced
    ]


def _key(phase: PhaseBytes) -> tuple[str, str, str]:
    return phase.name, phase.instant, phase.when


def _allocated(phase: PhaseBytes) -> int:
    return sum(process.allocated_bytes for process in phase.processes)


def _differences(traced: PhaseBytes, formula: PhaseBytes) -> Iterator[str]:
    theirs, ours = ({term.name: term.bytes for term in phase.terms} for phase in (traced, formula))
    for name in sorted({*theirs, *ours} - {"cuda.context", "allocator.cached"}):
        if abs(theirs.get(name, 0) - ours.get(name, 0)) > MIB:
            yield f"{name} {theirs.get(name, 0) / MIB:.1f} / {ours.get(name, 0) / MIB:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="print every instant, not only those that are off")
    parser.add_argument("said", nargs="*", metavar="PATH=VALUE")
    asked = parser.parse_args()
    fixed = dict(text.split("=", 1) for text in asked.said)
    reasons: Counter[str] = Counter()
    dice, done, within, instants, clean = random.Random(asked.seed), 0, 0, 0, 0
    for _ in range(20 * asked.jobs):
        if done == asked.jobs:
            break
        said = draw(dice, fixed)
        try:
            found = compared(said)
        except Refused as refused:
            reasons.update(mistake.fact for mistake in refused.mistakes)
            continue
        done += 1
        off = [one for one in found if abs(one.off) > LIMIT]
        instants, within, clean = instants + len(found), within + len(found) - len(off), clean + (not off)
        print(f"{done:3} {len(found) - len(off)} of {len(found)}  {' '.join(f'{k}={v}' for k, v in said.items())}")
        for one in found if asked.all else off:
            print(f"      {one.off:+7.2%}  {one.name} {one.traced / MIB:.1f} / {one.formula / MIB:.1f}: {one.terms}")
        sys.stdout.flush()
    print(f"{within} of {instants} instants within {LIMIT:.0%}; {clean} of {done} jobs at all instants")
    if not done:
        print("\n".join(f"refused: {reason}" for reason, _ in reasons.most_common(5)))


if __name__ == "__main__":
    main()
