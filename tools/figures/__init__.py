"""A document whose figures are asked for again: `python -m tools.figures docs/articles.md`.

The document is the source. After a figure an HTML comment, which no reader sees, says where it comes from:

    LoRA takes 26.0 GiB<!-- SFT LoRA: peak -->.                     one figure, the last of its shape before the comment
    | 5 | 61.1 GiB | fits <!-- SFT: peak; verdict --> |             several, in their order
    <!-- terms GRPO: rollout | GRPO: training -->                   the table that follows, as a whole
    <!-- job ddp shares -->                                         names the commands of the code block that follows

A job is words: names, a model, `path=value`; `jobs.py` has their grammar, `answers.py` the figures.
"""
