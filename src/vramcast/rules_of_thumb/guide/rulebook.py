"""The rules one by one: what is said, a worked figure, and what the exact method says of it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from vramcast.rules_of_thumb.guide.ask import GENERATE, GRPO, LORA, SFT, at_step, exact, gb, gib, most, prose, worst
from vramcast.rules_of_thumb.guide.worked import (
    activations,
    at_peak,
    changed,
    if_modelled,
    part,
    recipe,
    static,
    total,
    trained,
)  # fmt: skip
from vramcast.rules_of_thumb.lines import number


class Rule(NamedTuple):
    """A rule. `worked`: its figure on a round model; `exact`: the same on Qwen2.5-7B, or why there is none."""

    title: str
    source: str
    text: str
    worked: str
    exact: str


def rulebook() -> list[str]:
    """All sixteen rules."""
    lines = ["## The rules, one by one", ""]
    for index, rule in enumerate(_rules(), start=1):
        lines += prose(f"**{index}. {rule.title}** ({rule.source}). {rule.text}")
        lines += prose(f"Worked: {rule.worked}") if rule.worked else []
        lines += prose(f"Exact: {rule.exact}")
    return lines


def _rules() -> list[Rule]:
    return [*_parameters(), *_sums(), *_sequences(), *_layouts(), *_habits()]


def _parameters() -> list[Rule]:
    bf16, fp32 = recipe(SFT)[-1], recipe(changed(SFT, weights_dtype="fp32"))[-1]
    copy = most(exact({**SFT, **LORA}), "weights")
    return [
        Rule(
            "A model that learns holds 16 bytes per parameter", "A, B",
            "With AdamW in mixed precision: weights 2, gradients 2, fp32 master copy 4, momentum 4, variance 4. The "
            "last three belong to the optimizer: 12 of the 16.",
            f"7 × 10^9 parameters: 14 + 14 + 28 + 28 + 28 = {static('sft', 'none')} GB.",
            f"one recipe of many. TRL with bf16 weights holds {bf16} bytes a parameter, with fp32 weights {fp32}.",
        ),
        Rule(
            "A frozen copy holds its weights only", "A",
            "The reference model and a neural reward model take 2 bytes a parameter each. A reward made of rules takes "
            "nothing.",
            "7B: 14 GB for each copy.",
            f"it holds: Qwen2.5-7B in bf16 is {gb(copy)}. With LoRA no copy is needed: the base without its adapters "
            "is the reference.",
        ),
        Rule(
            "PPO has four models, GRPO has no critic", "A, B",
            "PPO: policy and critic learn (16 bytes each), reference and reward are frozen (2 bytes each). GRPO "
            "drops the critic.",
            f"7B without sequences: PPO 112 + 112 + 14 + 14 = {static('ppo', 'model')} GB, GRPO with a copy and rules "
            f"112 + 14 = {static('grpo', 'rules')} GB.",
            f"{if_modelled(changed(SFT, algorithm='ppo', critic__kind='model'))}. The count of roles is right; the "
            "critic has a scalar head instead of a vocabulary.",
        ),
    ]  # fmt: skip


def _sums() -> list[Rule]:
    cache = most(exact(GENERATE), "kv_cache")
    prefill = worst(exact(GENERATE), ("generate",))
    full, lora = exact(SFT), exact({**SFT, **LORA})
    grpo = exact({**GRPO, **LORA, "micro_batch": "16", "accumulation": "1", "group": "8", "prompt_len": "1024",
                  "response_len": "1024", "engine.max_len": "2048", "engine.fraction": "0.24"})  # fmt: skip
    generation, training = worst(grpo, ("generate",)), worst(grpo, ("forward", "loss", "backward", "step"))
    return [
        Rule(
            "Generation is weights plus cache", "B",
            "2P for the weights, and keys and values of every token: 4 · L · h · s · b / 1024³ in 16 bit.",
            "7B, 16 × 4,096 tokens: 14 + 32 = "
            f"{total('article/7b', algorithm='inference', micro_batch='16', seq_len='4096')}.",
            f"Qwen2.5-7B keeps 4 key heads of 28, so the cache is {gib(cache)}. Reading 16 prompts of 4,096 tokens at "
            f"once then takes more than the cache: {gib(prefill.bytes)} in all while the prompts are read.",
        ),
        Rule(
            "Supervised training is 16P plus activations; LoRA is 2P plus activations", "B",
            "Adapters, their gradients and states are called negligible.",
            f"7B, 8 × 2,048 tokens, checkpointing: {total('article/7b', micro_batch='8', seq_len='2048')} full, "
            f"{total('article/7b', micro_batch='8', seq_len='2048', tuning='lora')} LoRA.",
            f"{gib(full.peak.bytes)} full, {gib(lora.peak.bytes)} LoRA. Adapters with gradients and states take "
            f"{gib(at_step(lora, 'adapters', 'gradients', 'optimizer.state'))}.",
        ),
        Rule(
            "GRPO with LoRA peaks at the larger of two sums", "B",
            "Engine and trainer share one copy of the weights: generation is 2P + KV, training is 2P + activations. A "
            "separate reference adds 2P to both.",
            f"7B, 16 × 2,048 tokens: 14 + 16 = "
            f"{total('article/7b', algorithm='grpo', tuning='lora', micro_batch='16', seq_len='2048')} in both.",
            f"TRL with vLLM keeps two copies while it generates, {gib(generation.bytes)} in all; training takes "
            f"{gib(training.bytes)} (GRPO + LoRA, `engine.fraction=0.24`).",
        ),
        Rule(
            "A reward model of the same size doubles generation", "B",
            "4P + 2 · KV.",
            "7B, 16 × 2,048 tokens: 28 + 32 = " + total(
                "article/7b", algorithm="grpo", tuning="lora", micro_batch="16", seq_len="2048", reward__kind="model"
            ) + ".",
            "a reward model reads each finished response once and keeps no cache. "
            f"{if_modelled({**GRPO, **LORA, 'engine.fraction': '0.3', 'reward.kind': 'model'})}.",
        ),
    ]  # fmt: skip


def _sequences() -> list[Rule]:
    plain = exact(changed(SFT, recompute="none", micro_batch="1"))
    again = exact(SFT)
    saved, block = most(again, "activations.saved"), most(again, "activations.block")
    return [
        Rule(
            "Activations without checkpointing", "B",
            "s · b · h · (34 + 5 · a · s / h) · L bytes. The formula is from a paper on GPT models with eager "
            "attention; its 34 is bytes already, and B multiplies by 2 once more.",
            "7B, 1 × 2,048 tokens: " + part("article/7b", "activations", recompute="none", micro_batch="1") + ".",
            f"Qwen2.5-7B keeps {gib(most(plain, 'activations.saved'))}: flash attention has no matrix of s × s, and a "
            "gated MLP has other tensors than GPT's.",
        ),
        Rule(
            "Activations with checkpointing", "B",
            "2 · L · h · s · b · bytes / 1024³.",
            "7B, 8 × 2,048 tokens: " + part("article/7b", "activations", recompute="full", micro_batch="8") + ".",
            f"{gib(saved)} are kept: one hidden state a layer, not two. But one layer is run again in backward, and "
            f"its working set is {gib(block)} on top.",
        ),
        Rule(
            "Bytes per parameter", "B",
            "fp32 4, bf16 and fp16 2, int8 1, int4 0.5.",
            "7B: 28, 14, 7, 3.5 GB. 72B: 288, 144, 72, 36 GB.",
            "right for plain dtypes. 4-bit formats also store scales: nf4 about 0.56 bytes, 0.52 with double "
            "quantisation, and embeddings, head and norms stay in 16 bit.",
        ),
        Rule(
            "Bytes of the optimizer", "B",
            "Adam 12 a parameter (with the master copy), SGD with momentum 4, Adafactor less than Adam.",
            "7B: 84 GB, 28 GB, less than 84 GB.",
            "states have the dtype of the weights unless a framework says otherwise: Adam on bf16 weights in TRL takes "
            f"{gb(at_step(again, 'optimizer.state'))} for Qwen2.5-7B, 4 bytes a parameter.",
        ),
        Rule(
            "LoRA trains 0.1 to 1 % of the parameters", "B",
            "With ranks from 8 to 64.",
            "",
            f"{trained('8')} % at rank 8 to {trained('64')} % at rank 64, all linear layers of Qwen2.5-7B. On the "
            f"query and value projections alone it is {trained('8', 'q_proj,v_proj')} to "
            f"{trained('64', 'q_proj,v_proj')} %.",
        ),
    ]  # fmt: skip


def _layouts() -> list[Rule]:
    stages = [total("article/7b", recompute="full", micro_batch="1", gpus="8", shard=kind)
              for kind in ("none", "zero1", "zero2", "zero3")]  # fmt: skip
    fsdp = changed(SFT, micro_batch="1", gpus="8", shard="fsdp2")
    return [
        Rule(
            "Cutting over GPUs", "B",
            "TP divides parameters and activations, PP divides parameters, data parallelism divides nothing. ZeRO-1 "
            "divides the optimizer over N ranks, ZeRO-2 the gradients too, ZeRO-3 the weights too.",
            f"7B on 8 GPUs, 1 × 2,048 tokens: data parallelism {stages[0]}, ZeRO-1 {stages[1]}, ZeRO-2 {stages[2]}, "
            f"ZeRO-3 {stages[3]}.",
            "right for what rests. What works is whole: with FSDP2 on 8 GPUs Qwen2.5-7B peaks at "
            f"{gib(exact(fsdp).peak.bytes)}, {at_peak(fsdp, 'fsdp.gathered')} of it gathered weights. "
            f"Of the other ways to cut a trainer: {if_modelled(changed(SFT, gpus='8', shard='zero2'))}; "
            f"{if_modelled(changed(SFT, gpus='8', tp='4'))}; {if_modelled(changed(SFT, gpus='8', pp='4'))}.",
        ),
    ]  # fmt: skip


def _habits() -> list[Rule]:
    before, after = activations(changed(SFT, recompute="none")), activations(SFT)
    return [
        Rule(
            "Checkpointing saves 5 to 10 times", "B", "For about 30 % more compute.", "",
            f"{gib(before)} of activations become {gib(after)}, {number(Fraction(before, after))} times less (8 × "
            "2,048 tokens). One more forward is a third of the compute of a step.",
        ),
        Rule(
            "Generation takes 70 to 85 % of an RL step", "A",
            "A cache that is too small makes rollouts wait for each other: alive, but too slow to use.", "",
            "over 55 published synchronous setups generation takes 9 to 93 % of a step, median 57 %. It depends on "
            "response length, concurrency and the update path. A starved cache shows as `waves` in the forecast: how "
            "many rounds a rollout needs.",
        ),
        Rule(
            "Add up static, activations and headroom", "A",
            "Set the engine's limit so that it never overlaps with the trainer; keep engines with the trainer or "
            "apart.",
            "",
            "the forecast does this sum at every instant and prints the window: the fractions between which one "
            "sequence fits in the engine and the trainer keeps its room.",
        ),
    ]  # fmt: skip
