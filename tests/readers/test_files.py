"""What cannot be read is refused with one clear error: files, YAML that is broken or hostile, other formats."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.errors import Refused
from vramcast.readers import read_config


def refusal(folder: Path, content: str | bytes, name: str = "job.yaml") -> str:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(Refused) as refused:
        read_config(str(file))
    return str(refused.value)


def bomb() -> str:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 9)]
    return "\n".join(["l0: &l0 [x, x, x]", *levels])


def test_missing(tmp_path: Path):
    with pytest.raises(Refused, match=r"^error: no such file: .*none\.yaml$"):
        read_config(str(tmp_path / "none.yaml"))


def test_folder(tmp_path: Path):
    with pytest.raises(Refused, match="is a folder, not a file"):
        read_config(str(tmp_path))


def test_impossible_name():
    with pytest.raises(Refused, match="cannot read"):
        read_config("a\0b")


@pytest.mark.parametrize("content", ["", " \n\t\n", "# only a comment\n", "---\n"])
def test_empty(tmp_path: Path, content: str):
    assert "is empty" in refusal(tmp_path, content)


@pytest.mark.parametrize("content", [b"a: \0", b"\xff\xfe\x00", b"a: \xc3\x28", b"\x7fELF\x02\x01\x01\x00"])
def test_binary(tmp_path: Path, content: bytes):
    assert "is binary, not text" in refusal(tmp_path, content)


def test_too_large(tmp_path: Path):
    assert "is larger than 2 MB" in refusal(tmp_path, "a: 1\n" * 400_001)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("dtype: bfloat16\nbf16: [true\n", "error: job.yaml:3 is not YAML: "),
        ("dtype: a: b\n", "error: job.yaml:1 is not YAML: "),
        ("a: 1\n---\na: 2\n", "error: job.yaml:2 is not YAML: "),
        ("dtype: *none\n", "is not YAML: "),
        ("dtype: \x01\n", "is not YAML: "),
        ("dtype: !!python/object:os.system x\n", "error: job.yaml:1 is not YAML: "),
        ("dtype: 2001-99-99\n", "error: job.yaml:1: '2001-99-99' is not a value"),
        ("- a\n- b\n", "the top level of job.yaml is a list, not keys with values"),
        ("hello\n", "the top level of job.yaml is a single value, not keys with values"),
        ("[a, b]: 1\n", "error: job.yaml:1: a key must be a single word"),
        ("dtype: &a [*a]\n", "error: job.yaml:1: an alias contains itself"),
        ("<<: 1\n", "error: job.yaml:1: << must name a mapping"),
        ("a: " + "[" * 5000, "is not YAML: "),
        ("a: " + "[" * 900 + "]" * 900, "job.yaml is nested too deeply"),
    ],
)
def test_bad_yaml(tmp_path: Path, content: str, error: str):
    assert error in refusal(tmp_path, content)


def test_yaml_bomb(tmp_path: Path):
    assert "job.yaml: aliases repeat more than 1000 values" in refusal(tmp_path, bomb())


def test_aliases_and_merges_within_reason(tmp_path: Path):
    file = tmp_path / "sft.yaml"
    file.write_text(
        "base: &base\n  max_length: 64\n  packing: true\n<<: *base\nmax_length: 128\nmodel_name_or_path: m\n"
    )
    values = read_config(str(file)).job().values
    assert (values["seq_len"], values["packing"]) == (128, True)


def test_of_a_key_given_twice_the_last_counts_and_a_remark_says_so(tmp_path: Path):
    file = tmp_path / "sft.yaml"
    file.write_text("model_name_or_path: m\nmax_length: 1\nbf16: true\nmax_length: 2\nenv:\n  A: 1\n  A: 2\n")
    understood = read_config(str(file))
    assert understood.job().values["seq_len"] == 2
    remarks = [
        "sft.yaml:7: env.A is given twice (first in line 6): the last one counts",
        "sft.yaml:4: max_length is given twice (first in line 2): the last one counts",
    ]
    assert [text for text in understood.warnings if "twice" in text] == remarks[::-1]
    script = tmp_path / "run.sh"
    script.write_text("trl sft --config sft.yaml\n")
    assert [text for text in read_config(str(script)).warnings if "twice" in text] == remarks[::-1]


def test_json_as_python_writes_it(tmp_path: Path):
    file = tmp_path / "job.json"
    file.write_text('{"tp": 1, "tp": 2, "model": "m"}')
    understood = read_config(str(file))
    assert (understood.job().values["tp"], understood.warnings) == (
        2,
        ["job.json: tp is given twice: the last one counts"],
    )
    file.write_text('{"model_name_or_path": "m", "max_length": 8, "learning_rate": Infinity, "beta": NaN}')
    assert read_config(str(file)).job().values["seq_len"] == 8


@pytest.mark.parametrize("value", ["!!bool x", '!!int ""', '!!float ""', "!!timestamp x", "!!int 1:x"])
def test_values_that_do_not_fit_their_tag(tmp_path: Path, value: str):
    assert refusal(tmp_path, f"bf16: true\ndtype: {value}\n").startswith("error: job.yaml:2: ")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("job.yaml", f"tp: {'1' * 5000}\n", "job.yaml:1: 1111111111111111111111111111111111111111... is longer than"),
        ("job.json", f'{{"tp": {"1" * 5000}}}', "job.json is not JSON: Exceeds the limit"),
        ("job.toml", f"tp = {'1' * 5000}", "job.toml is not TOML: Exceeds the limit"),
        ("job.yaml", "tp: [" + "1," * 600_000 + "]", "job.yaml holds more than 50,000 values"),
        ("job.json", '{"tp": [' + "1," * 600_000 + "1]}", "job.json holds more than 50,000 values"),
        ("job.toml", "a = 1\n" * 60_000, "job.toml holds more than 50,000 values"),
        ("job.toml", ".".join("a" * 990) + " = 1", "job.toml is nested too deeply"),
        ("job.json", '{"a":' * 150 + "1" + "}" * 150, "job.json is nested too deeply"),
        ("run.py", "x = [" + "[1]," * 200_000 + "]", "run.py is larger than 128 KiB: not a launch script"),
    ],
)
def test_files_have_bounds(tmp_path: Path, name: str, content: str, error: str):
    assert error in refusal(tmp_path, content, name)


def test_a_script_without_a_training_command_says_what_it_starts(tmp_path: Path):
    script = "cd x\nexport A=1\npip install y\nA=1 python3 -u -m my.own.main --a 1\nray stop\n"
    assert "  it starts   pip install, python3 -u -m my.own.main, ray stop\n" in refusal(tmp_path, script, "run.sh")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("job.json", "{", "job.json is not JSON: "),
        ("job.json", "[1]", "the top level of job.json is not an object with keys"),
        ("job.json", "[" * 100_000, "job.json is nested too deeply"),
        ("job.json", "{}", "is empty"),
        ("job.toml", "tp: 1", "job.toml is not TOML: "),
        ("job.toml", "tp = 1\ntp = 2", "job.toml is not TOML: "),
        ("job.toml", "# nothing", "is empty"),
        ("run.sh", "echo hello", "run.sh has no training command"),
    ],
)
def test_other_formats(tmp_path: Path, name: str, content: str, error: str):
    assert error in refusal(tmp_path, content, name)


def test_neither_says_what_is_read(tmp_path: Path):
    assert refusal(tmp_path, "colour: red\nsize: 3\n") == (
        "error: job.yaml is not a configuration that vramcast reads\n"
        "  keys  colour, size\n"
        "  read  TRL YAML (SFT, DPO, GRPO), verl and accelerate YAML; launch scripts of verl and TRL; "
        "job files in TOML, YAML or JSON"
    )


@pytest.mark.parametrize(
    ("content", "framework"),
    [
        (
            "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ncutoff_len: 512\nlearning_rate: 1e-4\n",
            "LLaMA-Factory",
        ),
        ("base_model: m\nsequence_len: 512\ngradient_accumulation_steps: 2\n", "axolotl"),
    ],
)
def test_other_frameworks_do_not_pass_for_trl(tmp_path: Path, content: str, framework: str):
    assert f"is a configuration of {framework}, which is not read yet" in refusal(tmp_path, content)


@pytest.mark.parametrize("text", ["tp = 2\n", "tp: 2\n", '{"tp": 2}'])
def test_stdin_in_every_format(text: str):
    understood = read_config("-", io.StringIO(text))
    assert understood.job().values == {"tp": 2}
    assert understood.facts[0].origin.where.startswith("stdin")


def test_stdin_that_cannot_be_read():
    with pytest.raises(Refused, match="stdin is empty"):
        read_config("-", io.StringIO(""))
    with pytest.raises(Refused, match="stdin is binary"):
        read_config("-", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    with pytest.raises(Refused, match="no standard input"):
        read_config("-", None)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path):
    file = tmp_path / "job.toml"
    file.write_bytes(b"\xef\xbb\xbftp = 2\n")
    assert read_config(str(file)).job().values == {"tp": 2}


def test_yaml_is_imported_only_for_yaml(tmp_path: Path):
    (tmp_path / "job.toml").write_text("tp = 2\n")
    (tmp_path / "job.yaml").write_text("tp: 2\n")
    program = (
        "import sys\n"
        "from vramcast.readers import native_keys, read_config\n"
        "read_config(sys.argv[1]); native_keys('trl', {'tp': 2})\n"
        "assert 'yaml' not in sys.modules and 'packaging' not in sys.modules\n"
        "read_config(sys.argv[2])\n"
        "assert 'yaml' in sys.modules\n"
    )
    paths = [str(tmp_path / "job.toml"), str(tmp_path / "job.yaml")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True)
