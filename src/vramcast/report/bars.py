"""The timeline: phases in order, what every role does, and a bar whose letters say what fills the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.types.result import Forecast, Group, PhaseBytes
from vramcast.units import GIB

_BAR = 28
_SHORTEST = 8
_LETTERS = (
    ("w", "weights", ("weights", "adapters", "autocast.weights", "fsdp.gathered")),
    ("g", "gradients", ("gradients", "gradients.unsharded", "ddp.buckets", "fsdp.reduce")),
    ("o", "optimizer", ("optimizer.state", "optimizer.step")),
    ("a", "activations", ("activations.saved", "activations.block", "inputs")),
    ("l", "logits", ("logits", "outputs")),
    ("k", "cache", ("kv_cache", "kv_cache.grow", "engine.kv")),
    ("e", "engine", ("engine.weights", "engine.activation", "engine.graphs", "engine.runtime")),
)
_OTHER = "."
_TITLES = {"first": "first step", "steady": "every later step"}


def show_timeline(answer: Forecast) -> Iterator[str]:
    """All phases of all groups."""
    for group in answer.groups:
        yield from _group(answer, group)


def _group(answer: Forecast, group: Group) -> Iterator[str]:
    top = max(phase.bytes for phase in group.phases)
    used = {letter for phase in group.phases for letter in bar(phase, top)}
    legend = [f"{letter} {name}" for letter, name, _ in _LETTERS if letter in used]
    yield f"{'phase':<30}{'GiB':>9}"
    yield f"  {', '.join([*legend, f'{_OTHER} other'])}"
    for when, title in _TITLES.items():
        phases = [phase for phase in group.phases if phase.when == when]
        if phases:
            yield f"  {title}"
        previous = ""
        for phase in phases:
            if len(group.roles) > 1 and phase.name != previous:
                yield f"    {phase.name}: {states(phase, group)}"
            name = phase.instant if len(group.roles) > 1 else f"{phase.name} · {phase.instant}"
            indent = 6 if len(group.roles) > 1 else 4
            mark = "  peak" if _is_peak(answer, phase) else ""
            yield f"{' ' * indent}{name:<{30 - indent}}{phase.bytes / GIB:>9,.2f}  {bar(phase, top)}{mark}"
            previous = phase.name


def bar(phase: PhaseBytes, top: int) -> str:
    """A bar as long as the phase is full, a letter for every share of it."""
    length = max(round(_BAR * phase.bytes / top), 1)
    amounts = [(letter, sum(term.bytes for term in phase.terms if term.name in names)) for letter, _, names in _LETTERS]
    amounts.append((_OTHER, phase.bytes - sum(amount for _, amount in amounts)))
    text, total = "", 0
    for letter, amount in amounts:
        total += amount
        text += letter * (round(length * total / phase.bytes) - len(text))
    return text


def meter(size: int, capacity: int | None, top: int, length: int) -> str:
    """How full the card is: filled, free, and beyond its end."""
    length = min(max(length, _SHORTEST), _BAR)
    scale = max(capacity or 0, top)
    filled, card = round(length * size / scale), round(length * (capacity or top) / scale)
    return "█" * min(filled, card) + "░" * (card - filled) + "▓" * (filled - card) + " " * (length - max(filled, card))


def states(phase: PhaseBytes, group: Group) -> str:
    """What every role does: `policy rests, rollout asleep`."""
    resident = {term.role for term in phase.terms if term.name in ("weights", "engine.weights")}
    return ", ".join(f"{role} {_does(role, phase.states[role], role in resident)}" for role in group.roles)


def _does(role: str, state: str, resident: bool) -> str:
    if state == "rest":
        return "rests" if resident else ("asleep" if role == "rollout" else "on the host")
    return {
        "absent": "not there yet",
        "held": "takes new weights",
        "infer": "is profiled" if role == "rollout" else "scores",
        "generate": "generates",
        "forward": "learns",
        "loss": "learns",
        "backward": "learns",
        "step": "learns",
    }[state]


def _is_peak(answer: Forecast, phase: PhaseBytes) -> bool:
    peak = answer.peak
    return (phase.name, phase.instant, phase.when) == (peak.phase, peak.instant, peak.when)
