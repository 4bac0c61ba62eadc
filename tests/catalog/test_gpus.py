"""Cards: the rows are sound, and every spelling finds its row or says why not."""

import pytest

from vramcast.catalog.gpus import find_gpu, gpus
from vramcast.errors import Refused
from vramcast.units import GIB, MIB


def test_rows_are_sound():
    ids = [gpu.id for gpu in gpus()]
    assert len(ids) == len(set(ids)) >= 10
    for gpu in gpus():
        assert 0 < gpu.total_bytes.value < gpu.smi_bytes.value, gpu.id
        assert gpu.context_bytes.low <= gpu.context_bytes.point <= gpu.context_bytes.high < GIB, gpu.id
        for figure in (gpu.total_bytes, gpu.smi_bytes, gpu.vendor_bytes, gpu.cublas_workspace_bytes):
            assert figure.source or figure.mark == "unsourced", gpu.id
        assert gpu.context_bytes.source, gpu.id


def test_workspace_follows_the_architecture():
    for gpu in gpus():
        hopper = gpu.compute_capability == "9.0"
        assert gpu.cublas_workspace_bytes.value == (32 * MIB if hopper else 8519680), gpu.id


def test_measured_figures():
    assert find_gpu("t4").context_bytes.point == 147718144  # 140.875 MiB
    assert find_gpu("h100 sxm").total_bytes.value == 81090 * MIB
    assert find_gpu("a100-sxm-80gb").context_bytes.high == 942 * MIB
    assert find_gpu("rtx 4090").context_bytes.mark == "assumed"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100 SXM", "h100-sxm-80gb"),
        ("h100-sxm5", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("H200", "h200-sxm-141gb"),
        ("a100-sxm-80gb", "a100-sxm-80gb"),
        ("A100 80 GB", "a100-sxm-80gb"),
        ("A100-80G", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("rtx4090", "rtx-4090-24gb"),
        ("RTX 4090", "rtx-4090-24gb"),
        ("4090", "rtx-4090-24gb"),
        ("geforce rtx 4090", "rtx-4090-24gb"),
        ("t4", "t4-16gb"),
        ("Tesla T4", "t4-16gb"),
        ("l40s", "l40s-48gb"),
        ("L4", "l4-24gb"),
        ("A10G", "a10g-24gb"),
    ],
)
def test_names_that_people_write(name: str, found: str):
    assert find_gpu(name).id == found


def test_every_id_driver_name_and_alias_finds_its_row():
    for gpu in gpus():
        for name in (gpu.id, gpu.driver_name, *gpu.aliases):
            assert find_gpu(name) is gpu, name


def test_ambiguous_name_lists_the_variants():
    with pytest.raises(Refused) as refused:
        find_gpu("H100")
    assert str(refused.value) == "error: gpu 'H100' is ambiguous\n  one of  h100-sxm-80gb, h100-nvl-94gb"


@pytest.mark.parametrize("name", ["xyz", "A10", "", "  ", "l40", "h100 sxm 40gb"])
def test_unknown_name(name: str):
    with pytest.raises(Refused) as refused:
        find_gpu(name)
    text = str(refused.value)
    assert text.startswith(f"error: unknown GPU {name!r}")
    assert "help  `vramcast list gpus` shows every card" in text


def test_unknown_name_offers_near_ones():
    with pytest.raises(Refused, match=r"near +a10g"):
        find_gpu("A10")
