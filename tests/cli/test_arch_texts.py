"""`explain --arch` on packed weights, caches by kind of layer, adapters and folders of weights: the key lines."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import run

from vramcast.catalog.models import model_config

QWEN = "explain --arch --model Qwen/Qwen2.5-0.5B"
"""24 layers of 896: 14 heads and 2 key heads of 64, an MLP of 4864; the head is tied"""


def shown(command: str) -> list[str]:
    found = run(command)
    assert (found.exit, found.stderr) == (0, "")
    return found.stdout.splitlines()


def section(command: str, title: str) -> list[str]:
    """The lines of one part of the answer, after the one that begins with `title`."""
    parts = "\n".join(shown(command)).split("\n\n")
    (found,) = (part.splitlines() for part in parts if part.startswith(title))
    return found[1:]


def refused(command: str) -> str:
    found = run(command)
    assert (found.exit, found.stdout) == (2, "")
    return found.stderr.rstrip()


# --- how modules are stored -------------------------------------------------------------------------------------------


def test_a_packed_checkpoint_has_bits_by_module() -> None:
    """gpt-oss packs its experts: half a byte and a byte for 32, 4.25 bits; their biases in bf16 make it 4.254."""
    command = "explain --arch --model openai/gpt-oss-20b"
    assert shown(command)[3] == "  weights     12.82 GiB in mxfp4, the rest in bf16"
    assert section(command, "modules")[:3] == [
        "  routed_experts            19,116,933,120   91.4 %   4.254  mxfp4, bf16",
        "  attention                    637,272,576    3.0 %      16  bf16",
        "  embedding                    579,133,440    2.8 %      16  bf16",
    ]


def test_what_the_job_packs_is_shown_the_same_way() -> None:
    """AWQ: 4 bits, and for 128 weights a scale of 16 and a zero point of 4: 4 + 20 ÷ 128 bits. Biases of q, k and v
    stay beside them."""
    command = f"{QWEN} --set quant.kind=awq"
    assert shown(command)[2] == "  weights     0.43 GiB in awq int4 g128, the rest in bf16"
    lines = section(command, "modules")
    assert lines[0] == "  mlp                          313,786,368   63.5 %   4.156  int4 g128"
    assert lines[1] == "  embedding                    136,134,656   27.6 %      16  bf16"
    assert lines[2].split()[0] == "attention"
    assert lines[2].endswith("  int4 g128, bf16")


def test_qlora_packs_in_nf4() -> None:
    assert section(f"{QWEN} --set tuning=qlora", "modules")[0] == (
        "  mlp                          313,786,368   63.5 %     4.5  nf4"
    )


def test_an_engine_holds_a_packed_checkpoint_in_its_own_way() -> None:
    """GPTQ's file has zero points and an index of every input; Marlin keeps words and scales, 4 + 16 ÷ 128 bits."""
    packed = f"{QWEN} --set quant.kind=gptq"
    bits = [section(f"{packed} {more}", "modules")[0].split()[4] for more in ("", "--set engine.kind=vllm")]
    index = 32 * (896 + 896 + 4864) / (3 * 896 * 4864)  # bits of it for each weight of the MLP
    assert bits == [f"{4 + 20 / 128 + index:.3f}", "4.125"] == ["4.173", "4.125"]


def test_a_rank_of_a_packed_model() -> None:
    """Two ranks cut the linear layers, the embedding and the biases of q, k and v; norms are on each. In fp8 a rank has
    a byte a weight, and an fp32 scale of each of seven layers. Beside them lie the table of 32,768 positions and what
    the allocator rounds up, as in `check`."""
    linears, embedding, biases, norms = 357_826_560, 136_134_656, 24 * (896 + 128 + 128), 49 * 896
    assert linears == 24 * (2 * 896 * 896 + 2 * 128 * 896 + 3 * 4864 * 896)
    params = (linears + embedding + biases) // 2 + norms
    size = linears // 2 + 24 * 7 * 4 + (embedding + biases) + 2 * norms + 32_768 * 64 * 2
    (line,) = section(f"{QWEN} --set quant.kind=fp8 --set engine.kind=vllm --set tp=2", "one rank of tp = 2")
    assert line.split() == ["layers", "0", "to", "23", f"{params:,}", "0.30", "GiB"]
    assert 0 <= 0.30 * 2**30 - size < 0.01 * 2**30


# --- what a sequence keeps --------------------------------------------------------------------------------------------


def test_windows_and_full_layers_are_told_apart() -> None:
    """Gemma 3 12B: 8 key heads of 256, a key and a value in bf16: 8192 bytes a token and layer. A sequence of 8192
    tokens fills 40 windows of 1024 and 8 layers: (40 × 1024 + 8 × 8192) × 8192 bytes."""
    command = "explain --arch --model google/gemma-3-12b-it --set seq_len=8192"
    assert 8192 * (40 * 1024 + 8 * 8192) / 2**30 == 0.8125
    assert section(command, "kept by a sequence") == [
        "    40 × sliding attention                       327,680 B a token    last 1,024",
        "     8 × full attention                           65,536 B a token",
        "         for every further token                  65,536 B a token",
        "         a sequence of 8,192 tokens                                     0.81 GiB",
    ]


def test_states_are_kept_once() -> None:
    """Qwen3-Next: 36 of 48 layers keep a state whatever the length: 32 heads of 128 × 128 fp32 numbers, and 4 columns
    of the convolution's 8192 channels in bf16."""
    state = 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)
    assert state / 2**20 == 74.25
    command = "explain --arch --model Qwen/Qwen3-Next-80B-A3B-Instruct --set seq_len=1024"
    assert section(command, "kept by a sequence") == [
        "    36 × gated delta attention                                         74.25 MiB",
        "    12 × full attention                           24,576 B a token",
        "         for every further token                  24,576 B a token",
        "         state, whatever the length                                    74.25 MiB",
        "         a sequence of 1,024 tokens                                    98.25 MiB",
    ]


def test_a_model_without_attention_keeps_nothing_of_a_token() -> None:
    lines = section("explain --arch --model state-spaces/mamba-790m-hf --set seq_len=4096", "kept by a sequence")
    assert not [line for line in lines if "B a token" in line]
    assert lines[-2].split()[:4] == ["state,", "whatever", "the", "length"]
    assert lines[-1].split()[-2:] == lines[-2].split()[-2:]  # a sequence is its state


def test_a_cache_dtype_of_an_engine() -> None:
    """2 key heads of 64, keys and values, 24 layers: 12,288 bytes in bf16; per-token scales of 4 bytes a head and
    side beside int8."""
    command = f"{QWEN} --set engine.kind=vllm"
    rates = {
        dtype: section(f"{command} --set engine.kv_dtype={dtype}", "kept by a sequence")[1].split()[-4]
        for dtype in ("bf16", "fp8", "int8_per_token_head", "nvfp4")
    }
    assert rates == {
        "bf16": "12,288", "fp8": "6,144", "int8_per_token_head": f"{6144 + 24 * 2 * 2 * 4:,}",
        "nvfp4": f"{12_288 // 4 + 12_288 // 2 // 16:,}",
    }  # fmt: skip
    title = next(line for line in shown(f"{command} --set engine.kv_dtype=fp8") if line.startswith("kept by"))
    assert title == "kept by a sequence, keys and values in fp8 (vllm)"


# --- adapters ---------------------------------------------------------------------------------------------------------

Q, V = 24 * 8 * (896 + 896), 24 * 8 * (896 + 128)
"""adapters of rank 8: 344,064 and 196,608"""


def test_an_adapter_by_its_paths_is_what_peft_prints() -> None:
    assert Q + V == 540_672
    command = f"{QWEN} --set tuning=lora --set lora.rank=8 --set lora.targets=q_proj,v_proj"
    assert section(command, "adapter LORA  (--set)") == [
        "  trainable params: 540,672 || all params: 494,573,440 || 0.1093 %",
        f"         q_proj                                 {Q:>18,}",
        f"         v_proj                                 {V:>18,}",
    ]


def test_an_adapter_by_its_file_or_folder(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]}), encoding="utf-8")
    by_file, by_folder = (shown(f"{QWEN} --adapter {path}") for path in (file, tmp_path))
    assert by_file == by_folder
    assert f"adapter LORA  ({file})" in by_file
    assert "  trainable params: 540,672 || all params: 494,573,440 || 0.1093 %" in by_file


def test_no_adapter_where_nobody_asks_for_one() -> None:
    assert not [line for line in shown(QWEN) if line.startswith("adapter")]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[]", "error: {file} is not an adapter_config.json: its top level is not an object"),
        ("{", "error: {file} is not JSON: Input data was truncated"),
        ('{"peft_type": "LORA", "target_modules": ["qkv_proj", "q_proj"]}',
         "error: target_modules: qkv_proj matches no module\n"
         "  from     {file}\n"
         "  near     v_proj, q_proj, k_proj\n"
         "  allowed  q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj\n"
         "  help     targets are the ends of module names, whole parts of them; or all-linear"),
        ('{"peft_type": "LORA", "target_modules": ["q_proj"], "lora_alpa": 16}',
         "error: LORA of PEFT 0.21.2 has no field lora_alpa\n"
         "  from  {file}\n"
         "  near  lora_alpha, lora_bias, lora_dropout"),
    ],
)  # fmt: skip
def test_adapter_files_that_are_none(content: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(content, encoding="utf-8")
    assert refused(f"{QWEN} --adapter {file}") == error.format(file=file)


@pytest.mark.parametrize(
    "adapter",
    [
        {"peft_type": "VERA", "target_modules": ["q_proj"]},
        {"peft_type": "VERA", "target_modules": 4},
        {"peft_type": "LORA", "target_modules": ["q_proj"], "trainable_token_indices": [1]},
    ],
)
def test_methods_that_peft_counts_name_the_extra(
    adapter: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramcast.trace.process.find_spec", lambda name: None)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(adapter), encoding="utf-8")
    text = refused(f"{QWEN} --adapter {file}")
    assert f"{adapter['peft_type']} is counted by PEFT itself" in text
    assert "pip install 'vramcast[trace]'" in text


def test_an_adapter_file_that_is_not_there() -> None:
    assert refused(f"{QWEN} --adapter nowhere.json") == "error: no such file: nowhere.json"


# --- a folder of weights ----------------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "max_position_embeddings": 64,
}  # fmt: skip
LAYER = "model.layers.0."
SHAPES: dict[str, list[int]] = {
    "model.embed_tokens.weight": [10, 8],
    f"{LAYER}self_attn.q_proj.weight": [8, 8],
    f"{LAYER}self_attn.k_proj.weight": [4, 8],
    f"{LAYER}self_attn.v_proj.weight": [4, 8],
    f"{LAYER}self_attn.o_proj.weight": [8, 8],
    f"{LAYER}mlp.gate_proj.weight": [16, 8],
    f"{LAYER}mlp.up_proj.weight": [16, 8],
    f"{LAYER}mlp.down_proj.weight": [8, 16],
    f"{LAYER}input_layernorm.weight": [8],
    f"{LAYER}post_attention_layernorm.weight": [8],
    "model.norm.weight": [8],
    "lm_head.weight": [10, 8],
}  # fmt: skip
SIZES = {"BF16": 2, "F32": 4, "U8": 1}
Tensors = dict[str, tuple[str, list[int]]]
PLAIN: Tensors = {name: ("BF16", shape) for name, shape in SHAPES.items()}
BYTES = 2 * (2 * 80 + 2 * 64 + 2 * 32 + 3 * 128 + 3 * 8)
"""two ends of 80 numbers; q and o, k and v; the MLP; three norms: 1,520"""


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a folder with a config.json and a safetensors file of these tensors, and goes there."""
    monkeypatch.chdir(tmp_path)

    def write(tensors: Tensors, lost: int = 0, **config: Any) -> None:
        header, end = {}, 0
        for name, (dtype, shape) in tensors.items():
            size = SIZES[dtype] * prod(shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        Path("model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(end - lost))
        Path("config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")

    return write


@pytest.mark.parametrize("name", [".", "config.json", "./config.json"])
def test_a_folder_that_holds_what_its_config_says(name: str, weights: Any) -> None:
    weights(PLAIN)
    assert section(f"explain --arch --model {name}", "files of .") == [
        f"         safetensors                            {'1,520 B':>18}      1.48 KiB",
        f"         expected (the same)                    {'1,520 B':>18}      1.48 KiB",
    ]


def test_groups_of_tensors_that_differ_are_shown_the_largest_first(weights: Any) -> None:
    """A norm in fp32, a projection that is missing, a tensor that no class has."""
    changed = {**PLAIN, "model.norm.weight": ("F32", [8]), f"{LAYER}mlp.extra.weight": ("BF16", [100])}
    del changed[f"{LAYER}mlp.up_proj.weight"]
    weights(changed)
    assert section("explain --arch --model .", "files of .") == [
        f"         safetensors                            {'1,480 B':>18}      1.45 KiB",
        f"         expected                               {'1,520 B':>18}      1.48 KiB",
        f"         layers.*.mlp.up_proj                   {'-256 B':>18}",
        f"         layers.*.mlp.extra                     {'+200 B':>18}",
        f"         norm                                   {'+16 B':>18}",
    ]
    assert BYTES - 256 + 200 + 16 == 1480


def test_a_head_that_is_tied_and_saved_all_the_same(weights: Any) -> None:
    weights(PLAIN, tie_word_embeddings=True)
    assert section("explain --arch --model .", "files of .") == [
        f"         safetensors                            {'1,520 B':>18}      1.48 KiB",
        f"         expected                               {'1,360 B':>18}      1.33 KiB",
        f"         lm_head                                {'+160 B':>18}",
    ]


def test_only_the_largest_eight_differences_are_shown(weights: Any) -> None:
    weights({name: ("F32", shape) for name, shape in SHAPES.items()})
    lines = section("explain --arch --model .", "files of .")
    assert len(lines) == 2 + 8 + 1
    assert lines[-1] == "         4 more groups differ: --json has them all"


def test_a_packed_folder(weights: Any) -> None:
    """8 bits with an fp32 scale for each row: bitsandbytes' `weight` and `SCB`."""
    packed: Tensors = {}
    for name, shape in SHAPES.items():
        is_linear = "proj" in name
        packed[name] = ("U8" if is_linear else "BF16", shape)
        if is_linear:
            packed[name.replace(".weight", ".SCB")] = ("F32", shape[:1])
    weights(packed, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    size = 2 * (2 * 80 + 3 * 8) + (2 * 64 + 2 * 32 + 3 * 128) + 4 * (8 + 4 + 4 + 8 + 16 + 16 + 8)
    assert size == 1200
    lines = section("explain --arch --model .", "files of .")
    assert [line.split()[-4] for line in lines] == ["1,200", "1,200"]
    assert "(the same)" in lines[1]


def test_a_file_that_is_cut_off(weights: Any) -> None:
    weights(PLAIN, lost=20)
    assert refused("explain --arch --model .") == (
        "error: ./model.safetensors is cut off: 20 of 1,520 bytes are missing"
    )


def test_a_folder_without_weights_is_a_config(weights: Any) -> None:
    weights(PLAIN)
    Path("model.safetensors").unlink()
    assert not [line for line in shown("explain --arch --model .") if line.startswith("files of")]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Any:
    """The command for Qwen2.5-0.5B with a section of quantisation, and its file."""

    def write(**section: object) -> tuple[str, Path]:
        file = tmp_path / "config.json"
        config = model_config("Qwen/Qwen2.5-0.5B").config | {"quantization_config": section}
        file.write_text(json.dumps(config), encoding="utf-8")
        return f"explain --arch --model {file}", file

    return write


def test_an_unknown_method_of_quantisation(packed: Any) -> None:
    command, file = packed(quant_method="gtpq", bits=4)
    lines = refused(command).splitlines()
    assert lines[:3] == ["error: quantisation method 'gtpq' is not known", f"  from     {file}", "  near     gptq"]
    assert lines[3].startswith("  allowed  gptq, gptq_marlin, awq, ")


def test_a_method_whose_layout_is_not_known_says_why(packed: Any) -> None:
    command, _ = packed(quant_method="aqlm")
    assert "  reason   its codebooks are a size of their own for each checkpoint" in refused(command).splitlines()


def test_a_group_that_divides_no_layer(packed: Any) -> None:
    command, file = packed(quant_method="awq", bits=4, group_size=96, zero_point=True)
    text = (
        "error: group size 96 does not divide the 896 inputs of model.layers.0.self_attn.q_proj.weight\n"
        "  from     {0}\n"
        "  allowed  16, 32, 64, 128\n"
        "error: group size 96 does not divide the 4864 inputs of model.layers.0.mlp.down_proj.weight\n"
        "  from     {0}\n"
        "  allowed  16, 32, 64, 128"
    )
    assert refused(command) == text.format(file)
    assert refused(f"{QWEN} --set quant.kind=awq --set quant.group=96") == text.format("--set")


def test_a_kind_beside_the_checkpoints_own(packed: Any) -> None:
    command, _ = packed(quant_method="awq", bits=4, group_size=128, zero_point=True)
    assert refused(f"{command} --set quant.kind=nf4") == (
        "error: quant.kind = nf4, and the checkpoint is quantised already: awq int4 g128\n"
        "  from     --set\n"
        "  allowed  awq"
    )


REFUSALS = {
    "targets that match nothing": (
        "--set lora.targets=query,q_proj",
        "error: lora.targets: query matches no module\n"
        "  from     --set\n"
        "  allowed  q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj\n"
        "  help     targets are the ends of module names, whole parts of them; or all-linear",
    ),
    "a rank above the width": (
        "--set lora.rank=897 --set lora.targets=o_proj,down_proj",
        "error: the rank 897 is above the width 896: model.layers.0.self_attn.o_proj and 23 more\n"
        "  from  --set\n"
        "  help  an adapter is narrower than its layer",
    ),
    "a cache dtype that Transformers has not": (
        "--set engine.kv_dtype=fp8",
        "error: transformers has no cache dtype 'fp8'\n"
        "  from  --set\n"
        "  help  leave it unset for the model's own dtype",
    ),
    "a cache dtype that the engine has not": (
        "--set engine.kind=vllm --set engine.kv_dtype=int4",
        "error: vllm has no cache dtype 'int4'\n"
        "  from     --set\n"
        "  allowed  bf16, fp16, fp8, int8_per_token_head, fp8_per_token_head, int4_per_token_head, nvfp4\n"
        "  help     leave it unset for the model's own dtype",
    ),
    "a dtype of packed weights": (
        "--set weights_dtype=int4",
        "error: weights_dtype = int4 is not a dtype of plain weights\n"
        "  allowed  fp32, bf16, fp16",
    ),
    "packed weights in shares": (
        "--gpus 2 --set shard=fsdp2 --set quant.kind=nf4",
        "error: shard = fsdp2 of packed weights is not modelled yet",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_in_these_words(name: str) -> None:
    flags, text = REFUSALS[name]
    assert refused(f"{QWEN} {flags}") == text


def test_a_cache_dtype_that_this_kind_of_attention_has_not() -> None:
    assert refused("explain --arch --model deepseek-ai/DeepSeek-V2-Lite --set engine.kind=vllm --set "
                   "engine.kv_dtype=nvfp4") == (
        "error: vllm cannot keep a latent in 'nvfp4'\n"
        "  from     --set\n"
        "  near     fp8\n"
        "  allowed  bf16, fp16, fp8\n"
        "  help     leave it unset for the model's own dtype"
    )  # fmt: skip


def test_quantisation_and_layout_are_refused_together() -> None:
    found = refused(f"{QWEN} --set quant.kind=gptq --set quant.group=896 --set tp=4")
    assert [line for line in found.splitlines() if line.startswith("error")] == [
        "error: group size 896 does not divide the 4864 inputs of model.layers.0.mlp.down_proj.weight",
        "error: tp = 4 does not divide the 14 units of self_attn.q_proj.weight",
    ]
