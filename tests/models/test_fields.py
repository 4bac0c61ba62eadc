"""Configs that are cut short, contradict themselves, or say what a table does not know: field and file are named."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000}  # fmt: skip


def build(config: dict[str, Any]) -> Layout:
    return build_layout("mine", config, "mine/config.json")


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(Refused) as refused:
        build(config)
    return str(refused.value)


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**model_config(name).config, **fields}


FROM = "\n  from  mine/config.json"
HELP = "it may change the model's size: see CONTRIBUTING.md, or open an issue with the config.json"
WRONG = [
    ({**LLAMA, "num_attention_heads": 5}, "num_attention_heads = 5 does not divide hidden_size = 64"),
    ({**LLAMA, "num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide num_attention_heads = 4"),
    ({**LLAMA, "num_key_value_heads": 8}, "num_key_value_heads = 8 is more than num_attention_heads = 4"),
    ({**LLAMA, "num_hidden_layers": -1}, "num_hidden_layers must be a whole number above 0, not -1"),
    ({**LLAMA, "hidden_size": None}, "hidden_size is missing"),
    ({**LLAMA, "hidden_size": True}, "hidden_size must be a whole number above 0, not True"),
    ({**LLAMA, "vocab_size": 1 << 50}, f"vocab_size must be at most {1 << 40:,}, not {1 << 50}"),
    ({**LLAMA, "num_hidden_layers": 1_000_000}, "num_hidden_layers must be at most 1,024, not 1000000"),
    (changed("Qwen/Qwen3-Coder-Next", layer_types=["linear_attention"] * 3), "layer_types has 3 entries for 48 layers"),
    (changed("Qwen/Qwen3-Coder-Next", layer_types="all"), "layer_types has 3 entries for 48 layers"),
    (changed("Qwen/Qwen3-Coder-Next", layer_types=7), "layer_types has 7 for 48 layers"),
    (changed("mistralai/Mixtral-8x7B-Instruct-v0.1", num_experts_per_tok=9),
     "num_experts_per_tok = 9 is more than num_local_experts = 8"),
    (changed("nvidia/Nemotron-H-8B-Base-8K", hybrid_override_pattern="M-M*"),
     "hybrid_override_pattern has 4 entries for 52 layers"),
    (changed("google/gemma-3n-E4B-it", vision_config={"architecture": "resnet"}),
     "vision_config.architecture = 'resnet' is not known\n"
     "  from     mine/config.json\n  allowed  mobilenetv5_300m_enc"),
    (changed("llava-hf/llava-1.5-7b-hf", text_config=3), "text_config must be an object, not 3"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "error"), WRONG, ids=[error[:40] for _, error in WRONG])
def test_wrong_fields(config: dict[str, Any], error: str) -> None:
    first, *_ = refusal(config).split("\nerror: ")
    assert first == f"error: {error}" + ("" if "\n" in error else FROM)


def test_all_mistakes_at_once() -> None:
    text = refusal({"model_type": "llama", "num_attention_heads": 0})
    for field in (
        "hidden_size is missing",
        "num_hidden_layers is missing",
        "num_attention_heads must be",
        "vocab_size",
    ):
        assert field in text


def test_a_layer_of_an_unknown_kind() -> None:
    config = changed("Qwen/Qwen3-8B", layer_types=["full_attention"] * 35 + ["mamba"])
    assert refusal(config).startswith("error: layer_types has 'mamba', which is not known\n  from     mine/config.json")


def test_a_field_that_the_table_does_not_know() -> None:
    assert refusal({**LLAMA, "num_experts": 8}) == (
        f"error: model type llama is not known with the field num_experts = 8\n  from  mine/config.json\n  help  {HELP}"
    )
    assert "the field text_config.num_experts = 8" in refusal(
        changed("google/gemma-3-12b-it", text_config={**model_config("google/gemma-3-12b-it").config["text_config"],
                                              "num_experts": 8})
    )  # fmt: skip


def test_a_field_that_is_only_ignored_with_one_value() -> None:
    """MiniMax M2 norms queries and keys whatever the field says, so another value is not its model."""
    name = "MiniMaxAI/MiniMax-M2.5"
    assert build(changed(name)).params == model_config(name).params
    assert "the field use_qk_norm = False" in refusal(changed(name, use_qk_norm=False))
    assert "the field add_cross_attention = True" in refusal(
        changed("openai-community/gpt2-xl", add_cross_attention=True)
    )


def test_neutral_fields_change_nothing() -> None:
    neutral = {"_name_or_path": "x", "attention_dropout": 0.1, "bos_token_id": 1, "rope_scaling": {"type": "yarn"},
               "transformers_version": "5.0", "auto_map": {}, "pretraining_tp": 1, "quantization_config": {"bits": 4},
               "torch_dtype": "float16", "num_nextn_predict_layers": 1, "sliding_window": 128}  # fmt: skip
    layout = build({**LLAMA, **neutral})
    assert layout.params == build(LLAMA).params
    assert layout.dtype == "fp16"


@pytest.mark.parametrize(
    ("model_type", "near"),
    [
        ("lama", "llama, mllama, llama4"),
        ("qwen4", "qwen, qwen3, qwen2"),
        ("kimi_k3", "kimi_k2, kimi_k25, kimi_linear"),
        ("zzz", ""),
    ],
)
def test_an_unknown_type_is_never_taken_for_another(model_type: str, near: str) -> None:
    text = refusal({**LLAMA, "model_type": model_type})
    assert text.startswith(f"error: unknown model type '{model_type}'\n  from  mine/config.json")
    assert [line for line in text.splitlines() if line.startswith("  near")] == ([f"  near  {near}"] if near else [])
    assert text.endswith(
        "  help  a type is a row of a table: see CONTRIBUTING.md, or open an issue with the config.json"
    )


def test_no_type() -> None:
    assert refusal({}).startswith("error: the config names no model_type\n  from  mine/config.json")


def test_defaults_are_transformers_and_are_said() -> None:
    """Llama's biases, activation and tying are not in this config; LLaVA's language model has hardly any field."""
    unsaid = {"attention_bias": "False", "hidden_act": "silu", "mlp_bias": "False", "tie_word_embeddings": "False"}
    source = "transformers 5.24.0 default"
    assert build(LLAMA).assumed == tuple((field, value, source) for field, value in unsaid.items())
    llava = model_config("llava-hf/llava-1.5-7b-hf")
    assumed = {field: value for field, value, _ in build(llava.config).assumed}
    assert assumed["text_config.hidden_size"] == "4096"


def test_null_is_not_missing() -> None:
    """DeepSeek V2 Lite has no low-rank queries: null, where the default is 1536."""
    config = changed("deepseek-ai/DeepSeek-V2-Lite")
    assert config["q_lora_rank"] is None
    assert build(config).params == model_config("deepseek-ai/DeepSeek-V2-Lite").params
    with_default = {key: value for key, value in config.items() if key != "q_lora_rank"}
    assert build(with_default).params != build(config).params


def test_other_spellings() -> None:
    """GPT-2 calls its hidden size n_embd."""
    config = changed("openai-community/gpt2-xl")
    spelled = {**{key: value for key, value in config.items() if key != "n_embd"}, "hidden_size": config["n_embd"]}
    assert build(spelled).params == build(config).params


def test_two_spellings_that_disagree() -> None:
    config = changed("openai-community/gpt2-xl", hidden_size=3200)
    assert refusal(config) == f"error: hidden_size = 3200 and n_embd = 1600 mean the same{FROM}"


def test_a_model_without_head() -> None:
    """An embedding model's class is the base class: no head, and no `model.` before the names."""
    layout = build_layout("e5", model_config("intfloat/e5-mistral-7b-instruct").config, "e5")
    assert "embed_tokens.weight" in layout.tensors()
    assert "lm_head" not in layout.modules()
