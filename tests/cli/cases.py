"""Commands whose whole output is pinned: `expected/<name>.txt` holds what each printed and its exit code."""

from __future__ import annotations

import io
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from vramcast.cli import main

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).parent / "expected"


class Output(NamedTuple):
    exit: int
    stdout: str
    stderr: str

    def text(self, command: str) -> str:
        """The content of an expected file."""
        parts = [f"$ vramcast {command}", f"exit {self.exit}"]
        streams = (("stdout", self.stdout), ("stderr", self.stderr))
        parts += [f"--- {name}\n{text.rstrip()}" for name, text in streams if text]
        return "\n".join(parts) + "\n"


def run(command: str, stdin: str = "") -> Output:
    """Run the command line in this process, as it is typed."""
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(shlex.split(command))
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    finally:
        sys.stdin = before
    return Output(code, out.getvalue(), err.getvalue())


def answer(command: str) -> Output:
    """Run in the repository's root, where `examples/` is."""
    with chdir(ROOT):
        return run(command)


def refusal(command: str) -> Output:
    """Run in a folder that holds the broken files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            (Path(folder) / name).write_bytes(content)
        os.mkdir(Path(folder) / "folder")
        with chdir(folder):
            return run(command)


_QWEN = "--model Qwen/Qwen2.5-7B"
_SFT = f"{_QWEN} --gpu a100-sxm-80gb"

ANSWERS: Mapping[str, str] = {
    "sft": "check examples/trl_sft.yaml --gpu a100-sxm-80gb",
    "lora": "check --model meta-llama/Llama-3.1-8B --set algorithm=sft --set tuning=lora --gpu rtx-4090",
    "inference": f"check {_QWEN} --set algorithm=inference --set seq_len=4096 --set micro_batch=16",
    "sft_full": "check examples/trl_sft.yaml --gpu a100-sxm-80gb --full",
    "full_fine_tuning": f"check {_SFT}",
    "sft_markdown": "check examples/trl_sft.yaml --gpu a100-sxm-80gb --markdown",
    "explain_logits": "explain examples/trl_sft.yaml --gpu a100-sxm-80gb --term logits",
    "manual_logits": "explain --term logits",
    "read": "read examples/trl_sft.yaml --gpu a100-sxm-80gb",
    "list_gpus": "list gpus",
    "list_models": "list models",
}

FILES = {
    "empty.yaml": b"",
    "binary.yaml": bytes(range(256)),
    "large.yaml": b"# " + b"x" * 2_000_000 + b"\nmodel: Qwen/Qwen2.5-7B\n",
    "bomb.yaml": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        f"{chr(letter)}: &{chr(letter)} [{', '.join([f'*{chr(letter - 1)}'] * 9)}]\n".encode()
        for letter in range(ord("b"), ord("j"))
    ),
    "list.yaml": b"- model\n- gpu\n",
    "broken.yaml": b"model: [Qwen\n",
    "wrong.yaml": b"model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 0\nmax_length: many\n",
    "unread.yaml": b"model_name_or_path: Qwen/Qwen2.5-7B\nfact: 1\nmax_lenght: 4096\n",
    "heads.json": b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 0,'
    b' "intermediate_size": -8, "vocab_size": "many"}',
    "type.json": b'{"model_type": "lama", "hidden_size": 64}',
}

REFUSALS: Mapping[str, str] = {
    "no_model": "check --gpu a100-sxm-80gb",
    "unknown_gpu": f"check {_QWEN} --gpu rtx-9090",
    "ambiguous_gpu": f"check {_QWEN} --gpu H100",
    "unknown_model": "check --model Qwen/Qwen2.5-8B",
    "unknown_path": f"check {_SFT} --set seq_length=4096",
    "unknown_value": f"check {_SFT} --set tuning=loar",
    "no_value": f"check {_SFT} --set tuning",
    "zero": f"check {_SFT} --set micro_batch=0",
    "negative": f"check {_SFT} --set seq_len=-4096",
    "no_gpus": f"check {_SFT} --gpus 0",
    "bytes_without_a_unit": f"check {_SFT} --set busy_bytes=2",
    "tp_and_heads": f"check {_SFT} --gpus 6 --set tp=6",
    "not_modelled": f"check {_SFT} --set offload.activations=nvme",
    "nothing_trains": f"check {_SFT} --set tuning=frozen",
    "targets": f"check {_SFT} --set tuning=lora --set lora.targets=q_proj,query",
    "framework": f"check {_SFT} --set framework=tlr==1.16.0",
    "missing": "check nowhere.yaml",
    "empty": "check empty.yaml",
    "binary": "check binary.yaml",
    "folder": "check folder",
    "large": "check large.yaml",
    "bomb": "check bomb.yaml",
    "not_a_mapping": "check list.yaml",
    "not_yaml": "check broken.yaml",
    "wrong_values": "check wrong.yaml",
    "empty_stdin": "check -",
    "model_file": "check --model heads.json",
    "model_type": "check --model type.json",
    "strict": "check unread.yaml --gpu l4 --strict",
    "unknown_term": "explain --term logit",
    "unknown_phase": f"explain {_SFT} --phase backwards",
    "everything_at_once": "check empty.yaml wrong.yaml --model Qwen/Qwen2.5-8B --gpu H100 --gpus 0 --set tuning=loar"
    " --set seq_length=1 --set micro_batch=-2",
}
