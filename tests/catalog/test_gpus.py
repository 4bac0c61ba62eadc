"""Cards: the rows are sound, plausible and sourced, and every spelling finds its row or says why not."""

import json
import re
from pathlib import Path

import msgspec
import pytest

import vramcast.catalog
from vramcast.catalog.gpus import Figure, Gpu, find_gpu, gpus, named, typical_gpu, usual_gpus
from vramcast.catalog.overheads import measurements
from vramcast.cli import main
from vramcast.errors import Refused
from vramcast.units import GIB, MIB

FILE = Path(vramcast.catalog.__file__).with_name("gpus.json")
GPUS = gpus()
VENDORS = {"NVIDIA": 100, "AMD": 13, "Intel": 5}
"""at least so many rows of each"""
GB, TFLOPS = 10**9, 10**12
PLAUSIBLE = {
    "bandwidth_bytes_per_s": (50 * GB, 20_000 * GB),
    "bf16_flops_per_s": (10 * TFLOPS, 5_000 * TFLOPS),
    "fp8_flops_per_s": (50 * TFLOPS, 10_000 * TFLOPS),
    "link_bytes_per_s": (50 * GB, 4_000 * GB),
}
RATES = tuple(PLAUSIBLE)


def unsound(gpu: Gpu) -> list[str]:
    """What is wrong with a row, in words."""
    figures = {
        name: getattr(gpu, name)
        for name in (*RATES, "total_bytes", "smi_bytes", "vendor_bytes", "cublas_workspace_bytes")
    }
    wrong = [f"{name}: no source" for name, figure in figures.items() if figure and len(figure.source) < 5]
    for name, (least, most) in PLAUSIBLE.items():
        if figures[name] and not least <= figures[name].value <= most:
            wrong.append(f"{name}: {figures[name].value} is not plausible")
    total, smi, box = gpu.total_bytes.value, (gpu.smi_bytes or gpu.total_bytes).value, gpu.vendor_bytes.value
    if not 0.8 * box < total <= smi <= 1.08 * box:
        wrong.append(f"total {total}, nvidia-smi {smi}, box {box}")
    if gpu.seen_bytes and not 0.98 * total < gpu.seen_bytes[0] <= total <= gpu.seen_bytes[1] < min(
        1.02 * total, box * 1.08
    ):
        wrong.append(f"seen {gpu.seen_bytes}, total {total}")
    context = gpu.context_bytes
    if not 50 * MIB <= context.low <= context.point <= context.high < 2 * GIB or not context.source:
        wrong.append(f"context {context}")
    if (gpu.compute_capability is None) == (gpu.arch is None) or (gpu.vendor == "NVIDIA") != (gpu.arch is None):
        wrong.append("one of compute_capability (NVIDIA) and arch (others)")
    if re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)+", gpu.id) is None or gpu.id != gpu.id.lower():
        wrong.append("an id is words in small letters, joined by hyphens")
    if gpu.fp8_flops_per_s and not (gpu.bf16_flops_per_s and gpu.bf16_flops_per_s.value <= gpu.fp8_flops_per_s.value):
        wrong.append("fp8 is slower than bf16")
    return wrong


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.id for gpu in GPUS])
def test_row_is_sound(gpu: Gpu):
    assert unsound(gpu) == []


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"total_bytes": {"value": 85029027840, "mark": "measured", "source": ""}}, "no source"),
        ({"total_bytes": {"value": 85029027, "mark": "measured", "source": "public log"}}, "total"),
        ({"bandwidth_bytes_per_s": {"value": 3350, "mark": "vendor", "source": "in GB/s"}}, "not plausible"),
        ({"bf16_flops_per_s": {"value": 989 * GB, "mark": "vendor", "source": "a thousandth"}}, "not plausible"),
        ({"seen_bytes": [1, 2]}, "seen"),
        ({"arch": "gfx942"}, "one of"),
        ({"id": "H100 SXM"}, "id"),
    ],
)
def test_a_wrong_row_is_found(edit: dict[str, object], reason: str):
    row = msgspec.convert({**msgspec.to_builtins(find_gpu("h100-sxm-80gb")), **edit}, Gpu)
    assert any(reason in text for text in unsound(row))


@pytest.mark.parametrize(
    "edit",
    [
        {"colour": "green"},
        {"total_bytes": {"value": 1, "mark": "measured"}},
        {"total_bytes": {"value": 1, "mark": "guessed", "source": "nobody"}},
        {"total_bytes": {"value": 1.5, "mark": "measured", "source": "public log"}},
        {"total_bytes": None},
    ],
)
def test_a_row_of_another_shape_is_refused(edit: dict[str, object]):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(find_gpu("h100-sxm-80gb")), **edit}, Gpu)


def test_the_catalogue_is_whole():
    assert len({gpu.id for gpu in GPUS}) == len(GPUS) >= 124
    assert sum(gpu.mig for gpu in GPUS) >= 23
    for vendor, least in VENDORS.items():
        assert sum(gpu.vendor == vendor for gpu in GPUS) >= least, vendor
    assert {gpu.vendor for gpu in GPUS} == set(VENDORS)


def test_one_row_a_line():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", len(GPUS) + 2)
    assert all(json.loads(line.rstrip(","))["id"] == gpu.id for line, gpu in zip(lines[1:-1], GPUS, strict=True))


def test_a_figure_that_is_not_measured_says_why():
    for gpu in GPUS:
        for figure in (gpu.total_bytes, gpu.smi_bytes):
            if figure and figure.mark in ("derived", "unsourced"):
                assert len(figure.source) > 15, gpu.id
        assert (
            gpu.context_bytes.mark == "measured"
            or ":" in gpu.context_bytes.source
            or "no reading" in gpu.context_bytes.source
        )


def test_no_source_is_a_path_or_an_address():
    assert re.findall(r"https?:|\"/\w|\\\\", FILE.read_text(encoding="utf-8")) == []


def test_workspace_follows_the_architecture():
    """pytorch, CublasHandlePool.cpp: 32 MiB from Hopper on; ROCm 32 MiB, 128 on gfx942 and gfx950."""
    for gpu in GPUS:
        if gpu.vendor == "NVIDIA":
            expected = 32 * MIB if gpu.generation >= 9 else 8519680
        else:
            expected = {"gfx942": 128 * MIB, "gfx950": 128 * MIB}.get(
                gpu.arch or "", 32 * MIB if gpu.vendor == "AMD" else 0
            )
        assert gpu.cublas_workspace_bytes.value == expected, gpu.id


@pytest.mark.parametrize(
    ("name", "generation", "before_hopper", "has_bf16"),
    [
        ("t4", 7.5, True, False),
        ("a100-sxm-80gb", 8.0, True, True),
        ("h100-sxm-80gb", 9.0, False, True),
        ("b200", 10.0, False, True),
        ("rtx 5090", 12.0, False, True),
        ("mi100", 0, False, False),
        ("mi210", 0, False, True),
        ("mi300x", 0, False, True),
        ("rx 7900 xtx", 0, False, True),
        ("max 1550", 0, False, True),
        ("gaudi 3", 0, False, True),
    ],
)
def test_what_an_architecture_has(name: str, generation: float, before_hopper: bool, has_bf16: bool):
    gpu = find_gpu(name)
    assert (gpu.generation, gpu.before_hopper, gpu.has_bf16) == (generation, before_hopper, has_bf16)


def test_rdna_2_has_no_bf16():
    assert not msgspec.structs.replace(find_gpu("rx 7900 xtx"), arch="gfx1030").has_bf16


def test_measured_figures():
    assert find_gpu("t4").context_bytes.point == 147718144  # 140.875 MiB
    assert find_gpu("h100 sxm").total_bytes.value == 81090 * MIB
    assert find_gpu("a100-sxm-80gb").context_bytes.high == 942 * MIB
    assert find_gpu("rtx 4090").context_bytes.mark == "assumed"
    assert find_gpu("b200").context_bytes.point == 612 * MIB
    assert find_gpu("gh200-144gb").total_bytes == Figure(
        153008209920, "measured", find_gpu("gh200-144gb").total_bytes.source
    )
    assert find_gpu("mi300x").total_bytes.value == find_gpu("mi300x").smi_bytes.value == 206141652992
    assert find_gpu("h100 sxm").link_bytes_per_s.value == 900 * GB  # both directions


def test_the_reserve_of_the_driver_is_what_was_measured():
    """nvidia-smi's total less torch's, of every card for which the overheads have it."""
    rows = measurements("driver_reserve")
    assert len(rows) >= 20
    for row in rows:
        gpu = find_gpu({"RTX PRO 6000": "rtx-pro-6000-ws-96gb", "H200 SXM": "h200"}.get(row.gpu, row.gpu))
        assert gpu.smi_bytes is not None
        assert abs(gpu.smi_bytes.value - gpu.total_bytes.value - row.bytes) < 2 * MIB, row.gpu


def test_the_typical_card_is_made_of_the_usual_ones():
    assert "h100-sxm-80gb" in {gpu.id for gpu in usual_gpus()}
    assert not any(gpu.mig or gpu.modded for gpu in usual_gpus())
    typical = typical_gpu()
    assert typical.id == ""
    assert typical.context_bytes.low == find_gpu("t4").context_bytes.low
    assert typical.context_bytes.high == 942 * MIB


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100 SXM", "h100-sxm-80gb"),
        ("h100-sxm5", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("H200", "h200-sxm-141gb"),
        ("a100-sxm-80gb", "a100-sxm-80gb"),
        ("A100 80 GB", "a100-sxm-80gb"),
        ("A100-80G", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("rtx4090", "rtx-4090-24gb"),
        ("RTX 4090", "rtx-4090-24gb"),
        ("4090", "rtx-4090-24gb"),
        ("geforce rtx 4090", "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24gb"),
        ("RTX 4090 48GB", "rtx-4090-48gb-modded"),
        ("RTX 4090 D", "rtx-4090-d-24gb"),
        ("GeForce RTX 3090", "rtx-3090-24gb"),
        ("RTX 3080 12GB", "rtx-3080-12gb"),
        ("RTX 3080 Ti", "rtx-3080-ti-12gb"),
        ("4060 Ti 16 GB", "rtx-4060-ti-16gb"),
        ("rtx4060ti-8gb", "rtx-4060-ti-8gb"),
        ("4070", "rtx-4070-12gb"),
        ("4070 Ti SUPER", "rtx-4070-ti-super-16gb"),
        ("RTX 6000 Ada", "rtx-6000-ada-48gb"),
        ("A6000", "rtx-a6000-48gb"),
        ("t4", "t4-16gb"),
        ("Tesla T4", "t4-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("l40s", "l40s-48gb"),
        ("l40", "l40-48gb"),
        ("L4", "l4-24gb"),
        ("A10G", "a10g-24gb"),
        ("A10", "a10-24gb"),
        ("B200", "b200-180gb"),
        ("GB200", "gb200-186gb"),
        ("B300", "b300-288gb"),
        ("DGX Spark", "gb10-dgx-spark-128gb"),
        ("MI300X", "mi300x-192gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
        ("7900 XTX", "rx-7900-xtx-24gb"),
        ("Gaudi2", "gaudi2-96gb"),
        ("Arc B580", "arc-b580-12gb"),
        ("MIG 1g.10gb", "mig-a100-80gb-1g.10gb"),
        ("a100-sxm-80gb-1g.10gb", "mig-a100-80gb-1g.10gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "mig-a100-80gb-1g.10gb"),
        ("h100 1g.20gb", "mig-h100-80gb-1g.20gb"),
    ],
)
def test_names_that_people_write(name: str, found: str):
    assert find_gpu(name).id == found


def test_every_name_in_full_finds_its_row():
    """Boards that share a driver name are found by it together, and by id and alias each."""
    for gpu in GPUS:
        assert find_gpu(gpu.id) is gpu
        assert all(find_gpu(alias) is gpu for alias in gpu.aliases), gpu.id
        assert gpu in named(gpu.driver_name)


def test_names_that_two_rows_share_are_refused_with_a_way_out():
    shared = [gpu for gpu in GPUS if len([other for other in named(gpu.driver_name) if not other.modded]) > 1]
    assert {gpu.id.rpartition("-")[0] for gpu in shared} == {"rtx-3080", "rtx-4060-ti", "rtx-5060-ti"}
    for gpu in shared:
        memory = gpu.vendor_bytes.value // GB
        assert find_gpu(f"{gpu.driver_name} {memory}GB") is gpu
        with pytest.raises(Refused, match=f"write the id, or add the memory: {gpu.driver_name} "):
            find_gpu(gpu.driver_name)


def test_ambiguous_name_lists_the_variants():
    with pytest.raises(Refused) as refused:
        find_gpu("H100")
    assert str(refused.value) == (
        "error: gpu 'H100' is ambiguous\n"
        "  one of  h100-pcie-80gb (79.11 GiB), h100-sxm-80gb (79.19 GiB), h100-nvl-94gb (93.09 GiB)\n"
        "  help    "
    ).removesuffix("\n  help    ")


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("A100", "a100-pcie-40gb a100-sxm-40gb a100-pcie-80gb a100-sxm-80gb"),
        ("V100 32GB", "v100-sxm2-32gb v100-pcie-32gb"),
        ("GH200", "gh200-96gb gh200-144gb"),
        ("RTX PRO 6000", "rtx-pro-6000-ws-96gb rtx-pro-6000-server-96gb rtx-pro-6000-maxq-96gb"),
        ("MIG 1g.20gb", "mig-a100-80gb-1g.20gb mig-h100-80gb-1g.20gb"),
    ],
)
def test_ambiguous_names(name: str, variants: str):
    with pytest.raises(Refused) as refused:
        find_gpu(name)
    assert re.findall(r"(\S+) \(", str(refused.value)) == variants.split()


def test_many_variants_are_counted():
    with pytest.raises(Refused, match="and 15 more"):
        find_gpu("mig")


@pytest.mark.parametrize("name", ["xyz", "A1", "", "  ", "l400", "h100 sxm 40gb", "a100 8g.80gb"])
def test_unknown_name(name: str):
    with pytest.raises(Refused) as refused:
        find_gpu(name)
    text = str(refused.value)
    assert text.startswith(f"error: unknown GPU {name!r}")
    assert "help  `vramcast list gpus` shows every card" in text


def test_unknown_name_offers_near_ones():
    with pytest.raises(Refused, match=r"near +l40"):
        find_gpu("L40X")


def test_auto_is_for_the_flag():
    with pytest.raises(Refused, match="--gpu auto"):
        find_gpu("auto")


# --- the list ---------------------------------------------------------------------------------------------------------


def test_list_shows_every_card_with_marks_and_sources(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "gpus"]) == 0
    table, _, legend = capsys.readouterr().out.partition("\n\n")
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert set(lines) == {"gpu", *(gpu.id for gpu in GPUS)}
    columns = ["gpu", "total GiB", "nvidia-smi", "vendor GB", "GB/s", "bf16 TFLOP/s", "context GiB"]
    assert re.split(r" {2,}", lines["gpu"]) == columns
    shown = re.split(r" {2,}", lines["h100-sxm-80gb"])
    assert shown == ["h100-sxm-80gb", "79.19 m", "79.65 m", "80 v", "3,350 v", "989 v", "0.51 m"]
    assert re.split(r" {2,}", lines["b100-192gb"])[1:3] == ["178.35 u", "-"]
    assert legend == "m measured, v vendor, d derived, a assumed, u unsourced; sources: --json\n"


def test_list_in_json_has_everything(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "gpus", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert msgspec.convert([row["row"] for row in found], tuple[Gpu, ...]) == GPUS
    h100 = next(row for row in found if row["gpu"] == "h100-sxm-80gb")
    low, high = h100["row"]["seen_bytes"]
    assert low < h100["row"]["total_bytes"]["value"] < high
