"""Flags, allocator texts, model configs, adapters and job files that nobody means: each is answered or refused.

`make fuzz` tries many times as many.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.fuzz.mutate import NUMBERS, WORDS, amount, answers, scalar, text, tree, value, word

from vramcast.algorithms import ALGORITHMS
from vramcast.catalog.gpus import gpus
from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused
from vramcast.estimate.modelled import known_values
from vramcast.memory import alloc_conf
from vramcast.models.adapters.methods import facts, fusions
from vramcast.readers.native import Format, write_job
from vramcast.types.job import Job
from vramcast.types.paths import PATHS, find
from vramcast.types.settings import ROLES, Settings
from vramcast.units import show_bytes

CARDS = [gpu.id for gpu in gpus()]
SMALL = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-360M", "mistralai/Mistral-7B-v0.1")
BASES: tuple[dict[str, Any], ...] = (
    {},
    {"algorithm": "sft", "tuning": "lora", "lora.rank": 8},
    {"algorithm": "sft", "framework": "trl==1.16.0", "tuning": "qlora"},
    {"algorithm": "pretrain", "gpus": 4, "shard": "fsdp2"},
    {"algorithm": "grpo", "framework": "verl", "gpus": 4, "shard": "fsdp1", "group": 4},
    {"algorithm": "grpo", "framework": "trl", "engine.kind": "vllm", "engine.fraction": 0.4},
    {"algorithm": "inference"},
)
FRAMEWORKS = ("", "trl==1.16.0", "trl==0.19.0", "trl==0.12.0", "verl", "transformers", "loop")
VERBS = ("read",) * 8 + ("explain",) * 2 + ("check", "levers")


def a_path(random: Random) -> str:
    name = random.choice(list(PATHS))
    name = f"{random.choice(ROLES)}.{name}" if random.random() < 0.1 else name
    return word(random, name) if random.random() < 0.05 else name


def meant(random: Random, name: str) -> Any:
    """A value that the path allows; a strange one in one of four."""
    path = PATHS.get(name)
    if path is None or random.random() < 0.25:
        return scalar(random)
    match path.kind:
        case "choice":
            return random.choice(path.choices)
        case "count":
            return random.choice((1, 2, 3, 4, 8, 16, 17, 128, 1000, 2048, "4k", 1 << 20, 1 << 40, (1 << 63) - 1))
        case "bytes":
            return show_bytes(random.choice((0, 1, 1 << 20, 1 << 30, 30 << 30, 1 << 50)))
        case "fraction" | "number":
            return random.choice((0.0, 0.001, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 1e-9))
        case "flag":
            return random.choice((True, False, "yes", "off"))
        case "list":
            names = random.sample(["q_proj", "v_proj", "gate_proj", "all-linear", "lm_head", "x", ""], 3)
            return names if random.random() < 0.5 else ",".join(names)
        case "table":
            return random.choice(({"q_proj": 4}, {"layers.0": 2, "x": 10**6}, {}, "q_proj=4,v_proj=8"))
        case _:
            return {
                "model": random.choice(SMALL), "gpu": random.choice(CARDS), "allocator": an_allocator(random),
                "framework": random.choice(("trl", "verl", "transformers", "loop", "trl==1.2.3", "verl==0", "x==1")),
            }.get(name) or scalar(random)  # fmt: skip


SIZES = (1, 2, 3, 4, 8, 16, 17, 127, 128, 129, 512, 1000, 2048, 4096)


def a_known_job(random: Random) -> dict[str, Any]:
    """Values that the memory model knows, in any combination."""
    algorithm = random.choice(list(ALGORITHMS))
    found: dict[str, Any] = {"algorithm": algorithm, "model": random.choice(SMALL), "gpu": random.choice(CARDS)}
    paths = ALGORITHMS[algorithm].paths
    framework = random.choice(FRAMEWORKS)
    if framework:
        found["framework"] = framework
    for name in random.sample(paths, random.randrange(len(paths) // 2)):
        path = find(name)[1]
        offered: tuple[Any, ...] = SIZES if path.kind == "count" else path.choices or (True, False)
        if path.kind in ("choice", "flag", "count"):
            known = known_values(name, path, Settings())
            values = [one for one in offered if known is None or one in (*known, path.default)]
            found.setdefault(name, random.choice(values))
    return found


def test_jobs_of_known_values() -> None:
    """Most are answered: what they are made of is modelled."""
    random, answered = Random(6), 0
    tries = amount(200)
    for _ in range(tries):
        sets = [f"--set={name}={flag(value)}" for name, value in a_known_job(random).items()]
        answered += answers(random.choice(("check", "explain", "explain", "levers")), *sets).code < 2
    assert answered > tries / 10


def flag(value: Any) -> str:
    """As it is typed after `--set path=`; a command line holds no NUL."""
    if isinstance(value, dict):
        value = ",".join(f"{key}={number}" for key, number in value.items())
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return str(value).replace("\0", "")


def a_job(random: Random) -> dict[str, Any]:
    """A job that may be one, with a few of its paths said anew."""
    found: dict[str, Any] = {"model": random.choice(SMALL), "gpu": random.choice(CARDS), **random.choice(BASES)}
    for _ in range(random.randrange(6)):
        name = a_path(random)
        found[name] = meant(random, name.rpartition(".")[2] if name not in PATHS else name)
    return found


def test_flags() -> None:
    random = Random(1)
    for _ in range(amount(900)):
        sets = [f"--set={name}={flag(value)}" for name, value in a_job(random).items()]
        if random.random() < 0.05:
            sets.append(f"--set={random.choice(WORDS)}".replace("\0", ""))
        more = [random.choice(("--json", "--strict", "--compare", "--markdown"))] if random.random() < 0.3 else []
        verb = "check" if more and more[0] not in ("--json",) else random.choice(VERBS)
        answers(verb, *sets, *more)


# --- allocator texts --------------------------------------------------------------------------------------------------

ENTRIES = tuple("True False 0 1 4 21 64 128 0.5 0.999 1e9 [256:1,512:2,>:8] [:] [>:4 native cudaMallocAsync -1".split())


def an_allocator(random: Random) -> str:
    keys = [*alloc_conf._KEYS, "max_split_size", "x"]
    entries = [f"{random.choice(keys)}:{random.choice((*ENTRIES, *WORDS))}" for _ in range(random.randrange(4))]
    found = random.choice((",", ",", ", ", ";", "")).join(entries)
    return text(random, found, pieces=(*",:[]>", *ENTRIES)) if random.random() < 0.5 else found


def test_allocator_texts() -> None:
    random = Random(2)
    for _ in range(amount(8700)):
        found = an_allocator(random)
        with suppress(Refused):
            alloc_conf.parse(found)
    for _ in range(amount(200)):
        answers("read", f"--set=allocator={flag(an_allocator(random))}")


# --- files of models and adapters -------------------------------------------------------------------------------------


def a_field(random: Random) -> Any:
    return value(random) if random.random() < 0.7 else random.choice((0, 1, 2, 3, 7, 64, 1 << 20, 1 << 35))


def configs() -> list[dict[str, Any]]:
    """One of each model type."""
    found: dict[str, dict[str, Any]] = {}
    for name in model_names():
        config = model_config(name).config
        found.setdefault(str(config.get("model_type")), config)
    return list(found.values())


def written(file: Path, content: Any) -> str:
    """As Python's JSON writes it; what no file holds is left out."""
    raw = json.dumps(content).encode("utf-8", "replace").replace(b"\\udcff", b"?")
    file.write_bytes(raw)
    return str(file)


def test_model_configs(tmp_path: Path) -> None:
    random, known = Random(3), configs()
    plain = [config for config in known if config.get("model_type") in ("llama", "qwen2", "qwen3", "granite")]
    for _ in range(amount(600)):
        arch = random.random() < 0.6
        config = random.choice(known if arch else plain)
        config = {**config, **({"quantization_config": a_quantisation(random)} if random.random() < 0.2 else {})}
        file = written(tmp_path / "config.json", tree(random, config, 3, a_field))
        more = ["--set=tp=3"] if random.random() < 0.1 else ["--compare"] if not arch and random.random() < 0.2 else []
        verb = ["explain", "--arch"] if arch else ["check", f"--gpu={random.choice(CARDS)}"]
        answers(*verb, f"--model={file}", *more, shown=Path(file).read_text()[:3000])


def a_quantisation(random: Random) -> Any:
    methods = ("bitsandbytes", "gptq", "awq", "fp8", "compressed-tensors", "mxfp4", "modelopt", "torchao", "hqq")
    weights = {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}
    base = {
        "quant_method": random.choice(methods), "bits": 4, "group_size": 128, "load_in_4bit": True,
        "modules_to_not_convert": ["lm_head"], "ignore": ["lm_head", "re:.*gate$"], "weight_block_size": [128, 128],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    return tree(random, base, 3)


def an_adapter(random: Random) -> dict[str, Any]:
    """A method of PEFT with some of its fields, of the right kind or of none."""
    method = random.choice(("LORA", random.choice(sorted(fusions().methods))))
    known = facts().fields
    found: dict[str, Any] = {"peft_type": method, "target_modules": random.choice((["q_proj", "v_proj"], "all-linear"))}
    for name in random.sample(sorted(known), min(len(known), random.randrange(6))):
        found[name] = random.choice((known[name][0], random.choice(NUMBERS[:10]), value(random), "q_proj", ["x"], 4))
    if random.random() < 0.1:
        found["target_modules"] = random.choice((r".*\.(q|v)_proj", "(.*)*X", "(?i)Q_PROJ", "(", "a{9999999999}", ".*"))
    return tree(random, found, 2) if random.random() < 0.5 else found


def test_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.trace.process.find_spec", lambda name: None)  # no process of PEFT's for each of them
    random = Random(4)
    models = ("Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM2-360M", "openai-community/gpt2")
    for _ in range(amount(500)):
        file = written(tmp_path / "adapter_config.json", an_adapter(random))
        answers("explain", "--arch", f"--model={random.choice(models)}", f"--adapter={file}",
                shown=Path(file).read_text()[:3000])  # fmt: skip


# --- job files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["toml", "yaml", "json"])
def test_job_files(tmp_path: Path, format: Format) -> None:
    random, file = Random(f"5 {format}"), tmp_path / f"job.{format}"
    for _ in range(amount(300)):
        content = a_job(random)
        content = tree(random, content) if random.random() < 0.3 else content
        made = write_job(_Written(content), format)
        made = text(random, made) if random.random() < 0.6 else made
        file.write_bytes(made.encode("utf-8", "surrogatepass")[: 2 * 10**6])
        answers(random.choice(VERBS), str(file), shown=made[:3000])


class _Written(Job):
    """A job of any content."""

    def to_file(self) -> Any:
        return self.values


# --- what such inputs found once --------------------------------------------------------------------------------------

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize("more", [[], ["--compare"], ["--rules=article"]])
@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("architectures", 2), ("architectures", {"a": 1}), ("architectures", [{"a": 1}]), ("architectures", "x"),
        ("num_key_value_heads", [0]), ("num_key_value_heads", 0), ("head_dim", [None]), ("head_dim", "64"),
        ("max_position_embeddings", "x"), ("max_position_embeddings", [None]), ("max_position_embeddings", {}),
        ("vocab_size", 10**30), ("num_hidden_layers", 10**6), ("num_attention_heads", 10**6), ("text_config", [0]),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_config_is_named(tmp_path: Path, field: str, wrong: Any, more: list[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, field: wrong}))
    for words in (["check", "--gpu=l4", *more], ["explain", "--arch"]):
        found = answers(*words, f"--model={file}")
        asked = words[0] == "check" or field != "max_position_embeddings"
        if asked and not (field == "text_config" and more):
            assert (found.code, field in found.err.splitlines()[0]) == (2, True), words
