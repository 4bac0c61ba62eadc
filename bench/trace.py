"""How long a trace takes, beside PyTorch's own memory tracker on the same model. Needs the extra `trace`.

    python bench/trace.py

A report: it exits with 0. Imports are paid before the clock starts.
"""

from __future__ import annotations

import resource
import time
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from msgspec import structs  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402

from vramcast.catalog.models import model_config  # noqa: E402
from vramcast.estimate import resolve  # noqa: E402
from vramcast.memory.alloc_conf import parse  # noqa: E402
from vramcast.trace.child.fakes import fake_mode, to_fake  # noqa: E402
from vramcast.trace.child.step import run  # noqa: E402
from vramcast.trace.question import Question, question_of  # noqa: E402
from vramcast.trace.replay import replay  # noqa: E402
from vramcast.types.job import Fact, Origin, Understanding, check_value  # noqa: E402

COMMON = {
    "algorithm": "sft", "framework": "transformers", "gpu": "h100-sxm-80gb", "weights_dtype": "bf16",
    "autocast": "false", "optimizer.impl": "foreach", "micro_batch": 1, "seq_len": 1024,
}  # fmt: skip


def question(model: str, **paths: object) -> Question:
    """One step of a job."""
    origin = Origin("bench")
    said = {**COMMON, "model": model, **paths}
    facts = [Fact(path, check_value(path, value, origin), origin) for path, value in said.items()]
    return structs.replace(question_of(resolve(Understanding(facts)), model_config(model).config), steps=1)


def timed(name: str, asked: Question, limit: float) -> float:
    """Seconds of a trace and of its replay, printed."""
    start = time.perf_counter()
    recording = run(asked)
    taken = time.perf_counter() - start
    start = time.perf_counter()
    replay(recording, parse(""))
    replayed = time.perf_counter() - start
    print(
        f"{name:<44}{taken:7.2f} s   limit {limit:4.1f} s   replay {replayed:5.2f} s   {len(recording.events)} events"
    )
    return taken


def mem_tracker(model: str) -> float:
    """Seconds of the same step under torch.distributed._tools.mem_tracker."""
    from transformers import AutoConfig, AutoModelForCausalLM

    mode = fake_mode()
    config = AutoConfig.for_model(**model_config(model).config)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    to_fake(built, mode)
    with mode:
        optimizer = torch.optim.AdamW(built.parameters(), foreach=True)
        tracker = MemTracker()
        tracker.track_external(built, optimizer)
        start = time.perf_counter()
        with tracker:
            ids = torch.zeros((1, 1024), dtype=torch.long)
            built(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start


def main() -> None:
    model = "Qwen/Qwen2.5-7B"
    run(question("Qwen/Qwen2.5-0.5B"))  # what is imported late is there
    ours = timed("Qwen2.5-7B, full fine-tune, one step", question(model), 3)
    timed("Qwen2.5-72B, full fine-tune, recompute", question("Qwen/Qwen2.5-72B", recompute="full"), 15)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"resident memory, most                       {used / 1e9:7.2f} GB  limit 1 GB")
    theirs = mem_tracker(model)
    print(f"MemTracker, Qwen2.5-7B, one step            {theirs:7.2f} s   {theirs / ours:4.1f} times ours, limit 8")


if __name__ == "__main__":
    main()
