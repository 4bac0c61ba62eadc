"""`--gpu auto`: recorded answers of nvidia-smi and rocm-smi, through executables of that name on PATH."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.catalog import cards
from vramcast.catalog.cards import Card, Machine, chosen, identify, machine, parse_nvidia, parse_rocm, this_machine
from vramcast.cli import main
from vramcast.errors import Refused
from vramcast.units import MIB

A100 = """\
0, GPU-5fd1a9a7-3d4c-7b0e-9a55-2f0f3a1f7f10, NVIDIA A100-SXM4-80GB, 81920, 4, Disabled
1, GPU-0a1c0f0e-55b2-45aa-8a1e-6f4b7e6a9d21, NVIDIA A100-SXM4-80GB, 81920, 2211, Disabled
2, GPU-9b3b7d2c-1e7a-4f06-b0c4-0d3f5c8e1a32, NVIDIA A100-SXM4-80GB, 81920, 4, Disabled
3, GPU-c7e4a1b8-9d52-4c3b-8f67-3e2d1c0b9a43, NVIDIA A100-SXM4-80GB, 81920, 4, Disabled
"""
MIXED = """\
0, GPU-11111111-3d4c-7b0e-9a55-2f0f3a1f7f10, NVIDIA A100-SXM4-80GB, 81920, 4, Disabled
1, GPU-22222222-55b2-45aa-8a1e-6f4b7e6a9d21, NVIDIA A100-SXM4-40GB, 40960, 4, Disabled
2, GPU-33333333-55b2-45aa-8a1e-6f4b7e6a9d21, NVIDIA T400 4GB, 4096, 350, [N/A]
"""
SPARK = "0, GPU-8f2b6c1d-3d4c-7b0e-9a55-2f0f3a1f7f10, NVIDIA GB10, [N/A], [N/A], [N/A]\n"
MI300X = {
    f"card{index}": {
        "Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1",
        "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "Card SKU": "M3000100", "GFX Version": "gfx942",
        "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": str(297291776 + index),
    }
    for index in range(8)
}  # fmt: skip


def nvidia(name: str, total: object, used: object = 4, mig: str = "[N/A]") -> list[Card]:
    return parse_nvidia(f"0, GPU-5fd1a9a7-3d4c-7b0e-9a55-2f0f3a1f7f10, {name}, {total}, {used}, {mig}")


Tool = Callable[..., None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Put an executable on an otherwise empty PATH that prints a recorded answer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def make(name: str, answer: str = "", *, errors: str = "", code: int = 0, sleep: bool = False) -> None:
        file = tmp_path / name
        lines = [f"printf '%s' '{answer}'", f"printf '%s' '{errors}' >&2", f"exit {code}"]
        file.write_text("#!/bin/sh\n" + ("while :; do :; done\n" if sleep else "") + "\n".join(lines) + "\n")
        file.chmod(0o755)

    return make


# --- what the tools print ---------------------------------------------------------------------------------------------


def test_nvidia_smi():
    found = parse_nvidia(A100)
    assert [card.index for card in found] == ["0", "1", "2", "3"]
    assert found[1] == Card(
        "1", "GPU-0a1c0f0e-55b2-45aa-8a1e-6f4b7e6a9d21", "NVIDIA A100-SXM4-80GB", 81920 * MIB, 2211 * MIB
    )
    assert parse_nvidia("") == []
    assert parse_nvidia(SPARK)[0].total_bytes is None
    assert nvidia("NVIDIA A100-SXM4-80GB", 81920, mig="Enabled")[0].mig


def test_nvidia_smi_says_something_else():
    with pytest.raises(Refused, match=r"nvidia-smi said 'Field .* is not a valid field to query.', which is no list"):
        parse_nvidia('Field "mig.mode.current" is not a valid field to query.')


def test_rocm_smi():
    found = parse_rocm(json.dumps(MI300X))
    assert len(found) == 8
    assert found[0] == Card("0", "", "AMD Instinct MI300X OAM", 206141652992, 297291776, arch="gfx942")


def test_rocm_smi_with_a_warning_before_and_other_capitals():
    warning = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
    content = {
        "card0": {
            "VRAM Total Memory (B)": "25753026560", "VRAM Total Used Memory (B)": "1186672640",
            "Card series": "Radeon RX 7900 XTX", "Card model": "0x471e",
        },
        "system": {"Driver version": "6.14.14"},
    }  # fmt: skip
    assert parse_rocm(warning + json.dumps(content)) == [Card("0", "", "Radeon RX 7900 XTX", 25753026560, 1186672640)]


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{", '{"card0": 1}'])
def test_rocm_smi_says_something_else(text: str):
    with pytest.raises(Refused, match="rocm-smi's answer is not the JSON"):
        parse_rocm(text)


# --- which cards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("0,1,2,3", "0 1 2 3"),
        ("2", "2"),
        ("3, 1", "3 1"),
        ("GPU-9b3b7d2c", "2"),
        ("GPU-c7e4a1b8-9d52-4c3b-8f67-3e2d1c0b9a43,0", "3 0"),
        ("1,-1,2", "1"),
        ("0,7,1", "0"),
    ],
)
def test_visible_devices(value: str, left: str):
    found = chosen(parse_nvidia(A100), {"CUDA_VISIBLE_DEVICES": value}, "nvidia-smi")
    assert [card.index for card in found] == left.split()


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "9", "GPU-"])
def test_visible_devices_that_leave_none(value: str):
    with pytest.raises(Refused) as refused:
        chosen(parse_nvidia(A100), {"CUDA_VISIBLE_DEVICES": value}, "nvidia-smi")
    assert str(refused.value) == (
        f"error: CUDA_VISIBLE_DEVICES={value} leaves no GPU\n"
        "  found  4 × NVIDIA A100-SXM4-80GB (80.00 GiB)\n"
        "  help   --gpu NAME"
    )


def test_visible_devices_of_rocm():
    found = parse_rocm(json.dumps(MI300X))
    assert len(chosen(found, {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "3"}, "rocm-smi")) == 2
    assert len(chosen(found, {"CUDA_VISIBLE_DEVICES": "3"}, "rocm-smi")) == 1
    assert len(chosen(parse_nvidia(A100), {"HIP_VISIBLE_DEVICES": ""}, "nvidia-smi")) == 4


def test_a_slice_is_not_read():
    with pytest.raises(Refused, match="MIG is on"):
        chosen(parse_nvidia(A100), {"CUDA_VISIBLE_DEVICES": "MIG-4f1c"}, "nvidia-smi")
    with pytest.raises(Refused, match=r"MIG is on .*\n +help +--gpu mig-\.\.\."):
        machine(nvidia("NVIDIA A100-SXM4-80GB", 81920, mig="Enabled"), "nvidia-smi")


# --- which row --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mib", "found"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-sxm-40gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm-80gb"),
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4090", 49140, "rtx-4090-48gb-modded"),
        ("NVIDIA RTX A6000", 46068, "rtx-a6000-48gb"),  # ECC on
        ("Tesla T4", 15109, "t4-16gb"),  # a driver before R510
        ("NVIDIA GB10", "[N/A]", "gb10-dgx-spark-128gb"),
    ],
)
def test_name_and_memory_find_the_row(name: str, mib: object, found: str):
    assert identify(nvidia(name, mib)[0]).id == found


@pytest.mark.parametrize(
    ("name", "arch", "total", "found"),
    [
        ("AMD Instinct MI300X OAM", "gfx942", 206141652992, "mi300x-192gb"),
        ("AMD INSTINCT MI250X (MCM) OAM AC MBA", "gfx90a", 68702699520, "mi250x-128gb-per-gcd"),
        ("AMD Radeon RX 9070 XT", "gfx1201", 17095983104, "rx-9070-xt-16gb"),
        ("Radeon RX 7900 XTX", "", 25753026560, "rx-7900-xtx-24gb"),
        ("0x75b0", "gfx950", 308902100992, "mi350x-288gb"),  # or the MI355X, which is as large,
    ],
)
def test_rocm_names_find_the_row(name: str, arch: str, total: int, found: str):
    assert identify(Card("0", "", name, total, 0, arch=arch)).id == found


def test_a_card_of_another_memory_is_not_the_row():
    """A laptop GPU with the name of a desktop card."""
    with pytest.raises(Refused) as refused:
        identify(nvidia("NVIDIA RTX PRO 5000 Blackwell", 24463)[0])
    assert str(refused.value) == (
        "error: this machine's GPU has another memory than the catalogue's: NVIDIA RTX PRO 5000 Blackwell (23.89 GiB)\n"
        "  known  rtx-pro-5000-bw-48gb (47.79 GiB)\n"
        "  help   --gpu NAME"
    )


def test_an_unknown_card():
    with pytest.raises(Refused) as refused:
        machine(nvidia("NVIDIA GeForce RTX 4080 Laptop GPU", 12282), "nvidia-smi")
    text = str(refused.value)
    assert text.startswith(
        "error: this machine's GPU is not in the catalogue: NVIDIA GeForce RTX 4080 Laptop GPU (11.99 GiB)\n"
        "  near  NVIDIA GeForce RTX 4080"
    )
    assert text.endswith("help  --gpu NAME, from `vramcast list gpus`")


def test_cards_that_differ():
    with pytest.raises(Refused) as refused:
        machine(parse_nvidia(MIXED), "nvidia-smi")
    assert str(refused.value) == (
        "error: the GPUs of this machine differ\n"
        "  found   1 × NVIDIA A100-SXM4-80GB (80.00 GiB), 1 × NVIDIA A100-SXM4-40GB (40.00 GiB), "
        "1 × NVIDIA T400 4GB (4.00 GiB)\n"
        "  choose  CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER=PCI_BUS_ID, or --gpu NAME"
    )


def test_the_busiest_card_counts():
    found = machine(parse_nvidia(A100), "nvidia-smi")
    assert (found.gpu.id, found.count, found.busy_bytes, found.warnings) == ("a100-sxm-80gb", 4, 2211 * MIB, [])


def test_memory_that_ecc_takes_is_as_good_as_busy():
    found = machine(nvidia("NVIDIA RTX A6000", 46068, used=100), "nvidia-smi")
    assert found.busy_bytes == 100 * MIB + (48676 - 46068) * MIB
    assert found.warnings == [
        "nvidia-smi reports 2.55 GiB less than a rtx-a6000-48gb has (ECC?): counted in busy_bytes"
    ]


def test_memory_shared_with_the_cpu_is_not_reported():
    found = machine(parse_nvidia(SPARK), "nvidia-smi")
    assert (found.gpu.id, found.busy_bytes) == ("gb10-dgx-spark-128gb", 0)
    assert found.warnings == ["nvidia-smi does not say how much of NVIDIA GB10 is in use: busy_bytes is taken as 0"]


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_this_machine_by_nvidia_smi(tool: Tool):
    tool("nvidia-smi", A100)
    found = this_machine()
    assert isinstance(found, Machine)
    assert (found.gpu.id, found.count, found.tool) == ("a100-sxm-80gb", 4, "nvidia-smi")


def test_this_machine_by_rocm_smi(tool: Tool):
    tool("rocm-smi", json.dumps(MI300X))
    found = this_machine()
    assert (found.gpu.id, found.count, found.busy_bytes, found.tool) == ("mi300x-192gb", 8, 297291783, "rocm-smi")


def test_a_broken_nvidia_smi_does_not_hide_rocm_smi(tool: Tool):
    tool("nvidia-smi", "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.", code=9)
    tool("rocm-smi", json.dumps(MI300X))
    assert this_machine().gpu.id == "mi300x-192gb"


def test_no_tool(tool: Tool):
    with pytest.raises(Refused, match="no GPU found: neither nvidia-smi nor rocm-smi is here"):
        this_machine()


def test_no_card(tool: Tool):
    tool("nvidia-smi")
    with pytest.raises(Refused, match="no GPU found on this machine"):
        this_machine()


def test_a_tool_that_fails(tool: Tool):
    tool("nvidia-smi", "No devices were found", code=6)
    with pytest.raises(Refused, match="nvidia-smi failed: No devices were found"):
        this_machine()
    tool("nvidia-smi", errors="Failed to initialize NVML: Driver/library version mismatch", code=18)
    with pytest.raises(Refused, match="nvidia-smi failed: Failed to initialize NVML"):
        this_machine()


def test_a_tool_that_hangs(tool: Tool, monkeypatch: pytest.MonkeyPatch):
    tool("nvidia-smi", sleep=True)
    monkeypatch.setattr(cards, "_TIMEOUT_S", 0.2)
    with pytest.raises(Refused, match=r"nvidia-smi did not answer within 0\.2 seconds"):
        this_machine()


def test_a_tool_that_does_not_run(tool: Tool, tmp_path: Path):
    (tmp_path / "nvidia-smi").write_text("#!/no/such/interpreter\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(Refused, match="nvidia-smi does not run"):
        this_machine()


# --- the flag ---------------------------------------------------------------------------------------------------------

SFT = ["--model", "Qwen/Qwen2.5-7B", "--set", "algorithm=sft", "--set", "tuning=lora"]


def read(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[object, str]]:
    """path → (value, origin)"""
    assert main(["read", *SFT, *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {path: (value, found["origins"].get(path)) for path, value in found["job"].items()}


def test_the_flag_gives_card_count_and_busy_memory(tool: Tool, capsys: pytest.CaptureFixture[str]):
    tool("nvidia-smi", A100)
    values = read(capsys, "--gpu", "auto")
    assert values["gpu"] == ("a100-sxm-80gb", "nvidia-smi")
    assert values["gpus"] == (4, "nvidia-smi")
    assert values["busy_bytes"] == ("2211MiB", "nvidia-smi")


def test_what_the_user_says_beats_the_machine(tool: Tool, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    tool("nvidia-smi", A100)
    values = read(capsys, "--gpu", "auto", "--gpus", "2", "--set", "busy_bytes=1GiB")
    assert values["gpus"] == (2, "--gpus")
    assert values["busy_bytes"] == ("1GiB", "--set")
    (tmp_path / "job.toml").write_text('gpus = 3\ngpu = "t4"\n')
    values = read(capsys, str(tmp_path / "job.toml"), "--gpu", "auto")
    assert values["gpus"][0] == 3
    assert values["gpu"] == ("a100-sxm-80gb", "nvidia-smi")


def test_busy_memory_lowers_the_capacity(tool: Tool, capsys: pytest.CaptureFixture[str]):
    tool("nvidia-smi", A100)
    assert main(["check", *SFT, "--gpu", "auto", "--gpus", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"][0]["gpu"] == "a100-sxm-80gb"
    assert found["peak"]["capacity_bytes"] == 84987713946 - 2211 * MIB


def test_a_machine_without_a_card_is_one_mistake_of_many(tool: Tool, capsys: pytest.CaptureFixture[str]):
    assert main(["check", *SFT, "--gpu", "auto", "--gpus", "0"]) == 2
    errors = capsys.readouterr().err
    assert "error: no GPU found: neither nvidia-smi nor rocm-smi is here\n  help  --gpu NAME" in errors
    assert "error: gpus: must be >= 1, not 0" in errors
