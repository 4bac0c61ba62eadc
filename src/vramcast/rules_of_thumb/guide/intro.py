"""The guide's opening: who says what, in which units, and how to ask for both."""

from __future__ import annotations

from vramcast.rules_of_thumb.guide.ask import GENERATE, GRPO, LORA, SFT, block, command, prose, table


def intro() -> list[str]:
    """Title, units, settings."""
    return [
        "# Two articles' rules of thumb, beside the exact forecast",
        "",
        "<!-- Made by `make docs` from the tool itself. Do not edit: change src/vramcast/articles/guide/ and rerun. "
        "-->",
        "",
        *prose(
            "Most estimates of training memory go back to a few rules. This page takes those of two articles, works "
            "each one out, and puts what `vramcast` computes from the model's real tensors beside it. Read it to "
            "learn where memory goes, which rules hold, and by how much the others miss."
        ),
        '- **A** is "GRPO VRAM & GPU Sizing: Policy, Reference and Reward".',
        '- **B** is "No Out Of Memory!".',
        "",
        "The same command gives the rules alone, both with the reasons why they differ, and the forecast alone:",
        "",
        *block(
            "vramcast check --model article/7b --set tuning=lora --rules article",
            "vramcast check --model Qwen2.5-7B --gpu h100-sxm-80gb --compare",
            "vramcast check --model Qwen2.5-7B --gpu h100-sxm-80gb",
        ),
        *prose(
            "**Units.** The articles write GB for two things: 10^9 bytes when they count parameters, 1024^3 bytes "
            "when they count caches and activations, and they add both. The rules here do the same. The exact "
            "figures say which one they are: GB is 10^9, GiB is 1024^3. 80 GB on the box of an H100 are 79.2 GiB for "
            "a program."
        ),
        *prose(
            "**Letters.** P parameters, L layers, h width, a attention heads, s tokens of a sequence, b sequences at "
            "once. `article/7b` is the articles' round model: L = 32, h = 4,096, a = 32, P = 7,000,000,000. "
            "`article/72b` has L = 80, h = 8,192, a = 64. No checkpoint has just these numbers; the exact column "
            "uses Qwen2.5 models."
        ),
        *prose("**Settings of the exact column.** Three jobs and an addition, changed only where a table says so:"),
        *table(
            ("name", "job"),
            (
                ("SFT", f"`{command(SFT)}`"),
                ("generate", f"`{command(GENERATE)}`"),
                ("GRPO", f"`{command(GRPO)}`, with lengths, batch and `engine.fraction`"),
                ("LoRA", " ".join(f"`--set {path}={value}`" for path, value in LORA.items())),
            ),
        ),
    ]
