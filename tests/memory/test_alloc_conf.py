"""PYTORCH_ALLOC_CONF, read as PyTorch reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.cli.cases import run

from vramcast.errors import Refused
from vramcast.memory.alloc_words import UNLIMITED
from vramcast.trace.allocator import AllocatorSettings, parse
from vramcast.units import MIB


def divisions(text: str) -> tuple[int, ...]:
    """For sizes from 1 MiB, 2 MiB, 4 MiB ... 32 GiB."""
    return parse(f"roundup_power2_divisions:{text}").roundup_power2_divisions


def test_nothing_said_is_pytorchs_default() -> None:
    assert parse("") == AllocatorSettings()
    assert (AllocatorSettings().max_split_size, AllocatorSettings().large_segment_size) == (UNLIMITED, 20 * MIB)


def test_keys_and_values_with_space_between_them() -> None:
    text = " expandable_segments : True,max_split_size_mb:128 ,\tgarbage_collection_threshold: 0.8,"
    assert parse(text) == AllocatorSettings(
        text=text, expandable_segments=True, max_split_size=128 * MIB, garbage_collection_threshold=0.8
    )


def test_the_last_value_of_a_key_counts() -> None:
    assert not parse("expandable_segments:True,expandable_segments:False").expandable_segments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", (4,) * 16),
        ("[256:1,512:2,1024:4,>:8]", (1,) * 9 + (2, 4, 8, 8, 8, 8, 8)),  # 256 MiB is the ninth size
        ("[4:8,64:2]", (8, 8, 8, 0, 0, 0, 2) + (0,) * 9),  # what is not named keeps none
        ("[>:8]", (0,) + (8,) * 15),  # above the last named one, which is then 1 MiB
        ("[65536:4,>:2]", (4,) * 16),  # 64 GiB and more count as 32 GiB
        ("[]", (0,) * 16),
    ],
)
def test_divisions_by_size(text: str, expected: tuple[int, ...]) -> None:
    assert divisions(text) == expected


def test_the_segment_size_bounds_the_other_sizes_wherever_it_stands() -> None:
    settings = parse("max_split_size_mb:16,large_segment_size_mb:12")
    assert (settings.max_split_size, settings.max_non_split_rounding) == (16 * MIB, 12 * MIB)
    with pytest.raises(Refused, match="from 32"):
        parse("max_split_size_mb:20,large_segment_size_mb:32")


@pytest.mark.parametrize(("word", "size"), [("128MB", 128 * MIB), ("+64", 64 * MIB), ("-1", UNLIMITED - MIB + 1)])
def test_numbers_are_what_stoull_makes_of_them(word: str, size: int) -> None:
    """The digits at the beginning; -1 is the largest number, cut to whole MiB."""
    assert parse(f"max_split_size_mb:{word}").max_split_size == size


def test_settings_of_the_host_and_of_graphs_change_nothing() -> None:
    text = (
        "backend:native,pinned_use_background_threads:True,pinned_num_register_threads:8,"
        "pinned_reserve_segment_size_mb:64,graph_capture_record_stream_reuse:True,release_lock_on_cudamalloc:True,"
        "expandable_segments_reserve_by_class:[nccl:0.5],pinned_max_cached_size_mb:1"
    )
    assert parse(text) == AllocatorSettings(text=text)


def test_a_share_of_the_card() -> None:
    settings = parse("per_process_memory_fraction:0.9")
    assert settings.allowed(1000) == 900
    assert settings.allowed(None) is None
    assert parse("per_process_memory_fraction:1").allowed(1000) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_split_size_mb:19",
            """
error: max_split_size_mb:19 is too small
  in       PYTORCH_ALLOC_CONF
  allowed  MiB, from 20 (large_segment_size_mb) up""",
        ),
        (
            "expandable_segments:true",
            """
error: expandable_segments:true is neither True nor False
  in       PYTORCH_ALLOC_CONF
  allowed  True, False""",
        ),
        (
            "max_split_size_mb=128",
            """
error: ':' is expected where the end stands in 'max_split_size_mb=128'
  in       PYTORCH_ALLOC_CONF
  after    'max_split_size_mb=128'
  allowed  key:value,key:value; a list is [256:1,512:2]""",
        ),
        (
            "backend:cudaMallocAsync",
            """
error: backend:cudaMallocAsync is not modelled: CUDA's own pool decides what it reserves
  in       PYTORCH_ALLOC_CONF
  allowed  native: PyTorch's caching allocator, the default""",
        ),
    ],
)
def test_a_wrong_text_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(text)
    assert str(refused.value) == message.strip()


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb:many",
        "max_split_size_mb:[128]",
        "max_split_size_mb:99999999999999999999",
        "max_split_size_mb,128",
        "max_non_split_rounding_mb:8",
        "large_segment_size_mb:10",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:nan",
        "per_process_memory_fraction:1.1",
        "expandable_segments:True,,",
        ",expandable_segments:True",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:[300:4]",
        "roundup_power2_divisions:[256:3]",
        "roundup_power2_divisions:[256:1,512:2",
        "roundup_power2_divisions:[256]",
        "backend:own",
        "pinned_num_register_threads:256",
        "pinned_reserve_segment_size_mb:0",
        "throw_on_cudamalloc_oom:1",
    ],
)
def test_what_pytorch_refuses_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse(text)


def test_an_unknown_key_has_near_ones() -> None:
    with pytest.raises(Refused) as refused:
        parse("expandable_segment:True")
    (mistake,) = refused.value.mistakes
    assert mistake.fact == "unknown allocator setting 'expandable_segment'"
    assert mistake.context["near"].startswith("expandable_segments")


def test_all_mistakes_of_a_text_are_said_at_once() -> None:
    with pytest.raises(Refused) as refused:
        parse("max_split_size_mb:1,expandable_segments:yes,colour:red", where="run.sh:4")
    assert [mistake.context["in"] for mistake in refused.value.mistakes] == ["run.sh:4"] * 3


_TEXTS = [
    "max_split_size_mb:128",
    "max_split_size_mb:-1",
    "max_split_size_mb:19",
    "max_split_size_mb:0x80",
    "max_split_size_mb:128.7",
    "max_non_split_rounding_mb:64",
    "garbage_collection_threshold:.5",
    "garbage_collection_threshold:1",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,>:8]",
    "roundup_power2_divisions:[256:1,512:2,]",
    "roundup_power2_divisions:[300:4]",
    "roundup_power2_divisions:[256:1",
    "expandable_segments:True,",
    "expandable_segments:True,,",
    "expandable_segments:true",
    " max_split_size_mb : 128 , expandable_segments:False",
    "pinned_use_background_threads:yes",
    "large_segment_size_mb:10",
    "max_split_size_mb:20,large_segment_size_mb:32",
]
_ASK = """
import json, sys, torch
answers = []
for text in json.load(sys.stdin):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except Exception:
        answers.append(False)
    else:
        answers.append(True)
print(json.dumps(answers))
"""


@pytest.mark.trace
def test_pytorch_itself_takes_and_refuses_the_same() -> None:
    """In a process of its own: the settings stay."""
    torch = pytest.importorskip("torch", reason="not compared with PyTorch (extra `trace`)")
    if not hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        pytest.skip(f"torch {torch.__version__} has no such function")
    ran = subprocess.run(
        [sys.executable, "-c", _ASK], input=json.dumps(_TEXTS), capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == [_taken(text) for text in _TEXTS]


def _taken(text: str) -> bool:
    try:
        parse(text)
    except Refused:
        return False
    return True


def test_check_refuses_what_pytorch_would() -> None:
    """Both mistakes, with where they were said; before, any text went for `no expandable segments`."""
    said = "--set allocator=expandable_segment:True,max_split_size_mb:x"
    printed = run(f"check --model Qwen/Qwen2.5-0.5B --set algorithm=sft {said}")
    assert (printed.exit, printed.stdout) == (2, "")
    errors = [line for line in printed.stderr.splitlines() if line.startswith("error")]
    assert errors == [
        "error: unknown allocator setting 'expandable_segment'",
        "error: max_split_size_mb:x is not a whole number",
    ]
    assert "  in       --set  allocator\n  near     expandable_segments" in printed.stderr
