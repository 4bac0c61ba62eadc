"""What a framework does with a model's outputs and its loss: behaviours that no path of a job names."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Recipe(Struct, frozen=True):
    """Behaviours of a framework's version, given a job: rows of `modes` in `catalog/frameworks/`."""

    outputs_fp32: bool = False
    """16-bit outputs of the model are converted to fp32 (accelerate's `prepare_model` under native autocast)."""

    outputs_kept: bool = False
    """The caller keeps the model's outputs until the step is over: logits; keys and values if nothing is recomputed."""

    cache_by_config: bool = False
    """Whether a model makes a cache of keys and values in training is said in its configuration only, which those that
    see do not pass on: their language model makes one, and the outputs have it until the loss is there."""

    norms_fp32: bool = False
    """Beside packed weights, norms are fp32 whatever embedding and head are."""

    clears_cache: bool = False
    """After the rest of a packed base is converted, cached memory is given back."""

    cross_entropy: Literal["torch", "flash"] = "torch"
    """Whose cross-entropy works on full logits: torch's, or flash-attn's kernel with its in-place backward."""

    shift: Literal["labels", "logits", "model"] = "labels"
    """What the plain loss moves by one token: the labels; a copy of the fp32 logits (Transformers 4.46 to 4.48); or the
    same in the model's own forward, which lets go of the 16-bit logits before (older)."""

    fsdp_alone: bool = False
    """A model on a single GPU is wrapped by FSDP too: its mixed precision and its units are there."""

    scores: Literal["", "rows", "plain", "divided", "in_place", "kernel"] = ""
    """How a trainer takes log-probabilities of the completion from its logits; empty: it does not, the model's own loss
    is used. rows: a log-softmax of each sequence; plain: from the logits as they are; divided: from a copy divided by
    the temperature; in_place: they are divided where they are; kernel: one kernel that keeps them."""

    outputs_named: bool = False
    """While scores are taken, a variable holds the model's outputs: logits before they were divided."""

    entropy: Literal["", "sequence", "rows"] = ""
    """Entropy that is measured on the logits: of one sequence at a time, or of some rows at a time."""

    accuracy: Literal["", "copy", "view"] = ""
    """Accuracy that is measured on logits without the last token's: a copy of them, or a view."""

    fused_head: Literal["", "tiles", "chunks"] = ""
    """How a fused head is made: of tiles of logits (TRL), of chunks of tokens (verl); empty: there is none."""

    reference_unfrozen: bool = False
    """Parameters of a reference that is a copy say that they learn: autocast keeps what it casts of them."""

    scores_prompt: bool = False
    """Logits are made of prompt tokens too, not of the completion only."""

    old_logprobs: bool = False
    """Log-probabilities under the rollout's policy are recomputed by the trainer before it learns."""

    syncs_gradients: bool = False
    """FSDP reduces gradients in every micro-batch of an accumulated step (no `no_sync`)."""

    reduce_fp32: bool = False
    """FSDP reduces gradients in fp32."""

    upcasts_trainable: bool = False
    """Under FSDP's mixed precision, parameters that train are kept in fp32 whatever they were loaded in."""

    engine_seqs_from_batch: bool = False
    """The engine's max_num_seqs is what one generation of the trainer needs."""

    server_nccl: bool = True
    """An engine on GPUs of its own gets its weights through a communicator that the trainer's first rank joins."""

    engine_len_from_job: bool = False
    """The engine's max_model_len is prompt plus response, not the model's own limit."""

    prefill_logits: Literal["last", "all", "scaled"] = "last"
    """Of which prompt tokens generation makes logits: of the last one; of all; of all in models that scale theirs, as
    their class came later, and then the loop of `generate` copies them whole."""

    prefill_fp32: bool = False
    """The model's own forward converts the logits it returns to fp32."""

    tile_tokens: int = 0
    """Tokens in one tile or chunk of a fused head."""

    tile_vocab: int = 0
    """Vocabulary rows in one tile of a fused head."""

    device_map: bool = False
    """Transformers puts weights onto the card one by one (`device_map`), where one block of their size has been taken
    and given back; else a model is made on the host and moved."""

    experts_apart: bool = False
    """Each expert is a module of its own, run one after the other on its share of the tokens (Transformers 4)."""

    gptq_buffers: bool = False
    """4-bit GPTQ layers run on kernels that keep an unpacked copy of the largest one."""

    embedding_states_fp32: bool = False
    """An 8-bit optimizer keeps fp32 states for the embedding."""
