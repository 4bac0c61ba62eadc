"""Levers: what each saves is the job asked again, what it does not name it leaves alone, and there is always one."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec import structs
from tests.group_jobs import INFERENCE, SFT, TRL, VERL, Values
from tests.random_jobs import said

from vramcast.estimate import edited, forecast, resolve
from vramcast.levers import LEVERS, Pulled, helping, pull, pull_all
from vramcast.report.text import show
from vramcast.types.result import Forecast, LeverResult, gets_through

V = "actor_rollout_ref."


class Case(NamedTuple):
    """A job on which a lever applies, what it sets, and how the framework says it."""

    lever: str
    job: Values
    set: dict[str, Any]
    native: dict[str, Any]
    price: str
    helps: bool = True
    """it lowers this job's peak"""


CASES = [
    Case("fused-step", {**SFT, "optimizer.impl": "foreach", "micro_batch": 1, "seq_len": 512},
         {"optimizer.impl": "fused"}, {"optim": "adamw_torch_fused"}, "free"),
    Case("expandable-segments", SFT, {"allocator": "expandable_segments:True"},
         {"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}, "free"),
    Case("attention-kernel", {**SFT, "attention": "eager"}, {"attention": None}, {"attn_implementation": "sdpa"},
         "free"),
    Case("fused-loss", {**VERL, "engine.fraction": 0.25, "micro_batch": 32}, {"loss": "fused"},
         {f"{V}model.use_fused_kernels": True}, "free"),
    Case("engine-fraction", {**TRL, "engine.fraction": 0.9}, {"engine.fraction": 0.54},
         {"vllm_gpu_memory_utilization": 0.54}, "free"),
    Case("non-reentrant",
         {**SFT, "gpus": 4, "shard": "fsdp1", "tuning": "lora", "recompute.reentrant": True, "weights_dtype": "bf16"},
         {"recompute.reentrant": False}, {"gradient_checkpointing_kwargs": {"use_reentrant": False}}, "free"),
    Case("recompute", {**SFT, "recompute": "none"}, {"recompute": "full"}, {"gradient_checkpointing": True}, "slower"),
    Case("smaller-micro-batch", {**SFT, "accumulation": 2}, {"micro_batch": 2, "accumulation": 4},
         {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, "slower"),
    # gradients that outlive a micro-batch cost more than half of its activations
    Case("smaller-micro-batch", SFT, {"micro_batch": 2, "accumulation": 2},
         {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, "slower", helps=False),
    Case("smaller-micro-batch", INFERENCE, {"micro_batch": 4}, {}, "slower"),
    Case("smaller-micro-batch", {**VERL, "engine.fraction": 0.25, "micro_batch": 32}, {"micro_batch": 16},
         {f"{V}actor.ppo_micro_batch_size_per_gpu": 16}, "slower"),
    Case("smaller-token-budget", {**VERL, "token_budget": 65536, "engine.fraction": 0.25}, {"token_budget": 32768},
         {f"{V}actor.use_dynamic_bsz": True, f"{V}actor.ppo_max_token_len_per_gpu": 32768}, "slower"),
    Case("smaller-scoring-batch", {**VERL, "logprob.micro_batch": 64, "engine.fraction": 0.25},
         {"logprob.micro_batch": 32}, {f"{V}rollout.log_prob_micro_batch_size_per_gpu": 32}, "slower"),
    Case("shard", {**TRL, "shard": "none"}, {"shard": "fsdp2"}, {}, "slower"),
    Case("engine-sleep", TRL, {"engine.sleep": "2"}, {"vllm_enable_sleep_mode": True}, "slower"),
    Case("engine", {**TRL, "engine.kind": "hf", "accumulation": 64}, {"engine.kind": "vllm", "engine.sleep": "2"},
         {"use_vllm": True, "vllm_enable_sleep_mode": True}, "slower"),
    Case("offload-optimizer", VERL, {"offload.optimizer": "cpu"},
         {f"{V}actor.fsdp_config.optimizer_offload": True}, "slower"),
    Case("offload-weights", VERL, {"offload.weights": "cpu"}, {f"{V}actor.fsdp_config.param_offload": True}, "slower"),
    Case("bf16-weights", {**SFT, "weights_dtype": "fp32"}, {"weights_dtype": "bf16"}, {"dtype": "bfloat16"},
         "numerics"),
    Case("8-bit-optimizer", SFT, {"optimizer": "adamw_8bit"}, {"optim": "adamw_8bit"}, "numerics"),
    Case("engine-quantisation", VERL, {"engine.quant": "fp8"}, {f"{V}rollout.quantization": "fp8"}, "numerics",
         helps=False),
    Case("kv-dtype", VERL, {"engine.kv_dtype": "fp8"}, {}, "numerics", helps=False),
    Case("quantisation", {**SFT, "tuning": "lora"}, {"tuning": "qlora", "quant.kind": "nf4"},
         {"use_peft": True, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "quality"),
    Case("quantisation", INFERENCE, {"quant.kind": "nf4"}, {}, "quality"),
    Case("double-quantisation", {**SFT, "tuning": "qlora"}, {"quant.double": True}, {"use_bnb_nested_quant": True},
         "numerics"),
    Case("no-reference", {**TRL, "reference.kind": "copy"}, {"reference.kind": "none"}, {"beta": 0.0}, "quality"),
    Case("no-reference", {**VERL, "reference.kind": "copy", "reference.offload.weights": "none"},
         {"reference.kind": "none"}, {f"{V}actor.use_kl_loss": False}, "quality"),
    Case("lora", SFT, {"tuning": "lora", "lora.rank": 16}, {"use_peft": True, "lora_r": 16}, "quality"),
    Case("lora", {**VERL, "reference.kind": "copy"},
         {"tuning": "lora", "lora.rank": 16, "reference.kind": "adapter_off"},
         {f"{V}model.lora_rank": 16, f"{V}actor.use_kl_loss": True}, "quality"),
    Case("lower-rank", {**SFT, "tuning": "lora", "lora.rank": 64}, {"lora.rank": 32}, {"lora_r": 32}, "quality"),
    Case("smaller-group", TRL, {"group": 4}, {"num_generations": 4}, "quality", helps=False),
    Case("shorter-sequences", SFT, {"seq_len": 2048}, {"max_length": 2048}, "quality"),
    Case("shorter-sequences", TRL, {"response_len": 512}, {"max_completion_length": 512}, "quality"),
]  # fmt: skip
NOT_MODELLED = {"zero3", "tensor-parallel"}
"""Levers whose edit the model cannot estimate yet: offered as a reason, never as a figure."""
WITHOUT_A_KEY = {"offload-reference"}
"""Levers for which neither framework has a key: verl's FSDP offloads the reference anyway, TRL never does."""


_ANSWERS: dict[str, tuple[Forecast, list[Pulled]]] = {}


def asked(job: Values) -> tuple[Forecast, list[Pulled]]:
    """The job's answer and what came of every lever, worked out once for all tests that look at it."""
    key = repr(sorted(job.items()))
    if key not in _ANSWERS:
        answer = forecast(said(job), cards=False)
        _ANSWERS[key] = (answer, pull_all(said(job), answer))
    return _ANSWERS[key]


def pulled(job: Values, lever: str) -> Pulled:
    return next(found for found in asked(job)[1] if found.lever.name == lever)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.lever)
def test_what_a_lever_says_is_the_edited_job_asked_afresh(case: Case) -> None:
    answer, everything = asked(case.job)
    found = pulled(case.job, case.lever)
    result = found.result
    assert result is not None, found.why
    fresh = forecast(said({**case.job, **case.set}), cards=False)
    assert result.set == case.set
    assert result.peak_bytes == fresh.peak.bytes
    assert result.saves_bytes == answer.peak.bytes - fresh.peak.bytes
    assert result.verdict == fresh.verdict
    assert (result.saves_bytes > 0) == case.helps
    assert (result in helping(everything, answer)) == case.helps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.lever)
def test_a_lever_has_a_price_and_speaks_the_framework(case: Case) -> None:
    found = pulled(case.job, case.lever)
    assert found.result is not None
    assert found.result.native == case.native
    assert found.result.price == case.price == found.lever.price


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.lever)
def test_a_lever_leaves_alone_what_it_does_not_name(case: Case) -> None:
    """Of what the user said nothing else changes; of what nobody said, only what follows from the edit."""
    question = said(case.job)
    changed = edited(question, dict(case.set), "lever")
    before, after = resolve(question), resolve(changed)
    asked = before.job.values
    assert after.job.values == {**asked, **case.set}
    moved = {path for path in {*before.facts, *after.facts} if _value(before, path) != _value(after, path)}
    follows = {
        "lora": {"lora.targets", "engine.sleep"},  # PEFT's targets; verl's engine keeps its base for adapters
        "smaller-micro-batch": {"accumulation"},
        "fused-loss": {"logprob.entropy"},  # verl's fused head has it in its chunks
        "smaller-token-budget": {"accumulation"},
        "smaller-group": {"accumulation"},
        "shorter-sequences": {"seq_len"},
        "engine": {"engine.process", "engine.max_batched_tokens"},
        "quantisation": {"lora.dtype"},  # TRL trains bf16 adapters beside a packed base
    }  # fmt: skip
    assert moved <= {*case.set, *follows.get(case.lever, set())}


def _value(job: Any, path: str) -> Any:
    return job.facts[path].value if path in job.facts else None


def test_every_lever_has_a_case() -> None:
    assert {case.lever for case in CASES} | NOT_MODELLED | WITHOUT_A_KEY == {lever.name for lever in LEVERS}


@pytest.mark.parametrize("name", sorted(NOT_MODELLED))
def test_a_lever_that_is_not_modelled_says_so(name: str) -> None:
    found = pulled(VERL, name)
    assert found.result is None
    assert "is not modelled yet" in found.why


@pytest.mark.parametrize(("job", "why"), [(VERL, "verl has no key for it"), (TRL, "trl has no key for it")])
def test_a_lever_that_no_key_says_is_not_pulled(job: Values, why: str) -> None:
    found = pulled({**job, "reference.kind": "copy", "reference.offload.weights": "none"}, "offload-reference")
    assert (found.result, found.why) == (None, why)


# --- there is always one ----------------------------------------------------------------------------------------------

_LORA: Values = {"tuning": "lora", "lora.rank": 1}
VARIED: list[Values] = [
    SFT,
    {**SFT, "micro_batch": 1, "seq_len": 1},
    {**SFT, "weights_dtype": "fp32"},
    {**SFT, "recompute": "none", "micro_batch": 1},
    {**SFT, "model": "Qwen/Qwen2.5-0.5B", "gpu": "t4-16gb"},
    {**SFT, "model": "Qwen/Qwen2.5-72B", "gpu": "h200-sxm-141gb"},
    {**SFT, "gpus": 8},
    {**SFT, "gpus": 8, "shard": "fsdp2"},
    {**SFT, "gpus": 8, "shard": "fsdp1", "wrap": "none"},
    {**SFT, **_LORA},
    {**SFT, "algorithm": "pretrain", "framework": "transformers==5.24.0"},
    INFERENCE,
    {**INFERENCE, "micro_batch": 1},
    {**INFERENCE, "weights_dtype": "fp32"},
    TRL,
    {**TRL, "shard": "none"},
    {**TRL, "engine.kind": "hf"},
    {**TRL, **_LORA, "gpus": 1, "shard": "none", "reference.kind": "adapter_off"},
    VERL,
    {**VERL, "engine.fraction": 0.9},
    {**VERL, "reference.kind": "copy", "token_budget": 16384, "logprob.token_budget": 32768},
    {**VERL, "offload.weights": "cpu", "offload.optimizer": "cpu", "engine.fraction": 0.2},
]


@pytest.mark.parametrize("job", VARIED)
def test_there_is_always_a_lever(job: Values) -> None:
    answer, everything = asked(job)
    levers = helping(everything, answer)
    assert levers
    if answer.verdict == "fits":
        assert levers[0].saves_bytes > 0


_SMALLEST: Values = {**SFT, **_LORA, "micro_batch": 1, "seq_len": 1, "allocator": "expandable_segments:True"}


def test_a_packed_base_helps_the_smallest_job() -> None:
    """One token, adapters of rank 1: what is left is the frozen base, and only that can shrink."""
    answer, everything = asked(_SMALLEST)
    assert [lever.name for lever in helping(everything, answer)] == ["quantisation"]


def test_where_nothing_helps_every_lever_says_why() -> None:
    """The same with a base of 4 bits and packed scales: nothing is left to make smaller."""
    job = {**_SMALLEST, "tuning": "qlora", "quant.double": True}
    answer, found = asked(job)
    levers = pull(said(job), answer)
    assert levers == helping(found, answer) == []
    assert all(one.why for one in found if one.result is None)
    assert all(one.result.saves_bytes <= 0 for one in found if one.result is not None)
    assert "nothing that is modelled lowers the peak: `vramcast levers` says why" in show(
        structs.replace(answer, levers=levers)
    )


def test_a_job_that_does_not_fit_is_offered_what_makes_it_fit_first() -> None:
    job = {**TRL, "shard": "none"}
    answer, everything = asked(job)
    assert answer.verdict == "does_not_fit"
    best = helping(everything, answer)[0]
    assert (best.name, best.gets_through) == ("shard", True)


def test_the_share_is_moved_into_its_window() -> None:
    """Below one sequence it is raised, above what is free it is lowered: to a value that fits with all of its range but
    what is only cached."""
    for fraction in (0.15, 0.9):
        job = {**TRL, "engine.fraction": fraction}
        answer, everything = asked(job)
        engine = answer.groups[0].engines[0]
        result = next(found for found in helping(everything, answer) if found.name == "engine-fraction")
        assert result.set == {"engine.fraction": engine.fraction_low if fraction < 0.5 else engine.fraction_high}
        assert result.gets_through


def test_the_ends_of_the_window_are_its_ends() -> None:
    """A hundredth beyond the high end the engine's parts may be too large."""
    engine = forecast(said(TRL)).groups[0].engines[0]
    assert engine.fraction_high is not None
    inside, beyond = (forecast(said({**TRL, "engine.fraction": round(engine.fraction_high + more, 2)})).peak
                      for more in (0, 0.01))  # fmt: skip
    assert inside.capacity_bytes is not None
    assert inside.needs_high_bytes <= inside.capacity_bytes < beyond.needs_high_bytes


def test_a_tight_job_is_offered_a_smaller_share() -> None:
    """The point fits with this share, what the engine's parts may be beyond it does not."""
    engine = forecast(said(TRL)).groups[0].engines[0]
    assert engine.fraction_high is not None
    job = {**TRL, "engine.fraction": round(engine.fraction_high + 0.02, 2)}
    answer, everything = asked(job)
    assert answer.verdict == "tight"
    assert answer.peak.capacity_bytes is not None
    assert answer.peak.bytes < answer.peak.capacity_bytes < answer.peak.needs_high_bytes
    assert "engine-fraction" in [lever.name for lever in helping(everything, answer)]
    after = pulled(job, "engine-fraction").after
    assert after is not None
    assert after.peak.needs_high_bytes <= answer.peak.capacity_bytes


# --- in which order ---------------------------------------------------------------------------------------------------

PRICES = ("free", "slower", "numerics", "quality")
FULL_FP32: Values = {**SFT, "weights_dtype": "fp32", "autocast": True, "micro_batch": 8, "seq_len": 1024}


def test_a_full_fine_tuning_is_not_told_to_be_another_one_first() -> None:
    """bf16 weights fit, and 8-bit states get through: neither LoRA nor QLoRA comes before them."""
    answer, everything = asked(FULL_FP32)
    assert answer.verdict == "does_not_fit"
    names = [lever.name for lever in helping(everything, answer) if lever.gets_through]
    assert names[:4] == ["bf16-weights", "8-bit-optimizer", "lora", "quantisation"]


def test_a_packed_base_costs_as_much_as_adapters() -> None:
    prices = {lever.name: lever.price for lever in LEVERS}
    assert prices["quantisation"] == prices["lora"] == "quality"
    names = [lever.name for lever in LEVERS]
    assert names.index("lora") < names.index("quantisation")


def _is_enough(lever: LeverResult, answer: Forecast) -> bool:
    """It makes a yes of a no; of a tight job that gets through one that fits."""
    if gets_through(answer.verdict, answer.peak):
        return answer.verdict == "tight" and lever.verdict == "fits"
    return lever.gets_through


@pytest.mark.parametrize("job", [*VARIED, FULL_FP32])
def test_what_makes_it_fit_is_first_and_then_the_price(job: Values) -> None:
    answer, everything = asked(job)
    levers = helping(everything, answer)
    enough = [lever for lever in levers if _is_enough(lever, answer)]
    assert levers[: len(enough)] == enough
    assert [lever.price for lever in enough] == sorted((lever.price for lever in enough), key=PRICES.index)
    others = levers[len(enough) :]
    near = [0 if answer.verdict == "fits" else ["fits", "tight", "does_not_fit"].index(str(lever.verdict))
            for lever in others]  # fmt: skip
    assert near == sorted(near)
    for kind in {(lever.verdict, lever.gets_through) for lever in others}:
        same = [lever for lever in others if answer.verdict == "fits" or (lever.verdict, lever.gets_through) == kind]
        large = [lever for lever in same if lever.saves_bytes * 100 >= answer.peak.bytes]
        assert same[: len(large)] == large  # what saves next to nothing is last
        assert [lever.price for lever in large] == sorted((lever.price for lever in large), key=PRICES.index)


def test_the_listed_order_is_the_order_of_prices() -> None:
    prices = [PRICES.index(lever.price) for lever in LEVERS]
    assert prices == sorted(prices)


@pytest.mark.parametrize(
    ("lever", "job", "path"),
    [
        ("smaller-micro-batch", {**SFT, "micro_batch": 48, "loss": "full", "tuning": "lora"}, "micro_batch"),
        ("smaller-micro-batch", {**SFT, "micro_batch": 45, "loss": "full", "tuning": "lora"}, "micro_batch"),
        ("smaller-micro-batch", {**INFERENCE, "micro_batch": 128}, "micro_batch"),
        ("shorter-sequences", {**SFT, "micro_batch": 1, "seq_len": 65536, "loss": "full", "tuning": "lora"}, "seq_len"),
    ],
)
def test_a_lever_is_pulled_until_the_job_gets_through_and_not_further(lever: str, job: Values, path: str) -> None:
    """The largest step that is a yes; the one before it is none."""
    answer, _ = asked(job)
    assert not gets_through(answer.verdict, answer.peak)
    result = pulled(job, lever).result
    assert result is not None
    assert result.gets_through
    size = result.set[path]
    assert isinstance(size, int)
    whole = int(job[path])
    assert whole % size == 0
    if path == "micro_batch" and "accumulation" in result.set:
        assert size * int(str(result.set["accumulation"])) == whole
    larger = min(part for part in range(size + 1, whole + 1) if whole % part == 0 and part % size == 0)
    more = {**job, path: larger, **({"accumulation": whole // larger} if "accumulation" in result.set else {})}
    before = forecast(said(more))
    assert not gets_through(before.verdict, before.peak)


def test_a_batch_with_a_large_prime_factor_is_still_cut() -> None:
    """A prime of 61 bits, not searched for divisors."""
    job = {**SFT, "micro_batch": (1 << 61) - 1}
    edit = next(lever for lever in LEVERS if lever.name == "smaller-micro-batch").edit
    answer, _ = asked(SFT)
    assert edit(resolve(said(job)), answer) == [{"micro_batch": 1, "accumulation": (1 << 61) - 1}]


def _pairs_of(job: Values) -> tuple[Forecast, list[LeverResult]]:
    answer, everything = asked(job)
    return answer, helping(everything, answer)


def test_two_levers_where_none_alone_is_enough() -> None:
    """7.6B in fp32 without recompute on 44 GiB: adapters alone leave the activations, recompute alone the states."""
    job = {**FULL_FP32, "gpu": "l40s-48gb", "recompute": "none"}
    answer, levers = _pairs_of(job)
    pairs = [lever for lever in levers if "+" in lever.name]
    assert [pair.name for pair in pairs][:2] == ["recompute + lora", "recompute + quantisation"]
    assert levers[: len(pairs)] == pairs
    for pair in pairs:
        fresh = forecast(said({**job, **pair.set}))
        assert (fresh.peak.bytes, fresh.verdict) == (pair.peak_bytes, "fits")
        assert pair.saves_bytes == answer.peak.bytes - fresh.peak.bytes
        assert pair.price == "quality"  # the dearer of the two
        assert "use_peft" in pair.native


def test_a_pair_is_not_dearer_than_one_lever_that_is_enough() -> None:
    """With recompute, adapters alone fit."""
    _, levers = _pairs_of({**FULL_FP32, "gpu": "l40s-48gb"})
    assert [lever.name for lever in levers if lever.verdict == "fits"] == ["lora", "quantisation"]


def test_a_cheaper_pair_comes_before_one_dear_lever() -> None:
    """Shorter sequences alone are enough, and so is what costs time only."""
    job = {**SFT, "gpus": 4, "micro_batch": 8, "seq_len": 2048, "loss": "full", "recompute": "none"}
    _, levers = _pairs_of(job)
    enough = [(lever.name, lever.price) for lever in levers if lever.gets_through]
    assert enough[-1] == ("shorter-sequences", "quality")
    assert ("recompute + shard", "slower") in enough
    assert all("+" in name and price == "slower" for name, price in enough[:-1])


@pytest.mark.parametrize("job", VARIED)
def test_the_search_is_bounded(job: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    """All levers and their pairs ask the model at most 80 times."""
    asked_for = 0

    def counted(*words: Any, **options: Any) -> Forecast:
        nonlocal asked_for
        asked_for += 1
        return forecast(*words, **options)

    answer, _ = asked(job)
    monkeypatch.setattr("vramcast.levers.forecast", counted)
    pull_all(said(job), answer)
    assert asked_for <= 80
