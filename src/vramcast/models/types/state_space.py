"""State spaces: the mixers of Mamba 1 and Mamba 2, which hold no keys and values but a state of fixed size."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from vramcast.models.fields import Fields
from vramcast.models.layout import Axis, Weight, axis
from vramcast.models.ops import Forward, Operators, Scan, Tensor
from vramcast.models.parts import Flag, Part, hidden, linear, norm, tensor
from vramcast.models.types.convolution import short_convolution
from vramcast.num import Size, whole


class Names(Struct, frozen=True):
    """How a model type spells the sizes of its mixers."""

    at: str = "mamba"
    state: str = "mamba_d_state"
    conv: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    inner: str = "mamba_intermediate_size"
    rank: str = "mamba_dt_rank"
    heads: str = "mamba_n_heads"
    width: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    conv_bias: Flag = "mamba_conv_bias"
    bias: Flag = "mamba_proj_bias"
    out_bias: Flag = ""
    """where it is another field than `bias`"""
    norm: Flag = True
    chunk: str = "mamba_chunk_size"
    activation: str = "hidden_act"
    multiplies: bool = False
    """constants multiply what the first projection is given, and all that it gives"""


class Mixer(Struct, frozen=True):
    """The forward of `BambaMixer` and `Mamba2Mixer` where mamba-ssm and causal-conv1d are not installed: the scan in
    PyTorch, whose scores of every two positions of a chunk are by far the largest tensors. Batches are counted with
    padding, which is masked before the projection and behind the convolution.
    """

    at: str
    scan: Scan
    taps: Size
    activation: str
    multiplies: bool = False

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        how, at = self.scan, self.at
        inner, shared = how.heads * how.width, how.groups * how.state
        ops.scope(at)
        given = ops.times(x)
        if self.multiplies:
            masked, given = given, ops.times(given)
            ops.drop(masked)
        projected = ops.linear(f"{at}.in_proj", given)
        ops.scope(at)
        if self.multiplies:
            plain, projected = projected, ops.by_buffer(projected)
            ops.drop(plain)
        gate, mixed, step = ops.split(projected, inner, inner + shared + shared, how.heads)
        active = short_convolution(ops, f"{at}.conv1d", mixed, self.taps, self.activation)
        ops.drop(mixed)
        masked = ops.times(active)
        ops.drop(active)
        values, b, c = ops.split(masked, inner, shared, shared)
        ops.drop(given)
        scanned = ops.chunk_scan(at, values, step, b, c, how)
        if ops.has(f"{at}.norm.weight"):
            normed = ops.norm_of_gated(f"{at}.norm", scanned, gate, whole(inner, how.groups))
        else:
            opened = ops.activate("silu", gate)
            normed = ops.multiply(scanned, opened)
            ops.drop(opened)
        ops.drop(scanned)
        low = ops.cast(normed, x.dtype)
        out = ops.linear(f"{at}.out_proj", low)
        ops.drop(low, normed, values, b, c, masked, gate, step, projected)
        return out


class TokenMixer(Struct, frozen=True):
    """The forward of `MambaMixer`, `FalconMambaMixer` and `JambaMambaMixer` where mamba-ssm, causal-conv1d and mambapy
    are not installed."""

    at: str
    inner: Size
    rank: Size
    state: Size
    taps: Size
    activation: str
    norm: str
    """the kind of the norms of what is selected"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at = self.at
        ops.scope(at)
        given = ops.times(x)
        projected = ops.linear(f"{at}.in_proj", given)
        ops.scope(at)
        mixed, gate = ops.split(projected, self.inner, self.inner)
        active = short_convolution(ops, f"{at}.conv1d", mixed, self.taps, self.activation)
        ops.drop(mixed)
        masked = ops.times(active)
        ops.drop(active)
        rows = ops.copied(ops.cast(masked, masked.dtype))  # it lies by channel
        selected = ops.linear(f"{at}.x_proj", rows)
        ops.drop(rows)
        sides = ops.split(selected, self.rank, self.state, self.state)
        ops.drop(selected)
        if self.norm:
            plain, sides = sides, tuple([ops.norm(self.norm, f"{at}.{name}_layernorm", one)
                                         for name, one in zip(("dt", "b", "c"), sides, strict=True)])  # fmt: skip
            ops.drop(*plain)
        step, b, c = sides
        lengths = ops.step_lengths(f"{at}.dt_proj", step, unpacks=bool(self.norm))
        ops.drop(step)
        scanned = ops.token_scan(at, masked, lengths, b, c, gate, self.state)
        rows = ops.copied(ops.cast(scanned, x.dtype))
        out = ops.linear(f"{at}.out_proj", rows)
        ops.drop(rows, scanned, lengths, b, c, masked, gate, projected, given)
        return out


def mamba1(names: Names, inner_norm: str = "") -> Part:
    """Selective state space: in, convolution, x and dt projections, out. `inner_norm`: the kind of the norms of what is
    selected; "l2" has no weights."""

    def part(c: Fields, _: int) -> list[Weight]:
        inner = axis(c.count(names.inner, c.count(names.expand) * hidden(c)))
        state, at = c.count(names.state), names.at
        rank = -(-hidden(c) // 16) if c.get(names.rank) == "auto" else c.count(names.rank)
        conv_bias, bias = c.flag(names.conv_bias), c.flag(names.bias)
        found = [
            tensor(f"{at}.A_log", inner, state),
            tensor(f"{at}.D", inner),
            *_conv(f"{at}.conv1d", inner, c.count(names.conv), conv_bias),
            *linear(f"{at}.in_proj", hidden(c), inner + inner, bias),
            *linear(f"{at}.x_proj", inner, rank + 2 * state),
            *linear(f"{at}.dt_proj", rank, inner, True),
            *linear(f"{at}.out_proj", inner, hidden(c), bias),
        ]
        sizes = {"dt": rank, "b": state, "c": state} if inner_norm == "rms" else {}
        return [*found, *(one for key, size in sizes.items() for one in norm(f"{at}.{key}_layernorm", size))]

    def forward(c: Fields, _: int) -> Forward:
        inner = c.count(names.inner, c.count(names.expand) * hidden(c))
        rank = -(-hidden(c) // 16) if c.get(names.rank) == "auto" else c.count(names.rank)
        activation = c.word(names.activation, "silu")
        return TokenMixer(names.at, inner, rank, c.count(names.state), c.count(names.conv), activation, inner_norm)

    return Part(part, forward)


def _conv(name: str, channels: Axis, kernel: Size, bias: bool) -> list[Weight]:
    """A depthwise convolution along the tokens."""
    found = [tensor(f"{name}.weight", channels, 1, kernel)]
    return [*found, tensor(f"{name}.bias", channels)] if bias else found


def mamba2(names: Names, inner: Callable[[Fields], Size | None] = lambda c: None) -> Part:
    """State space in heads: z, x, B, C and dt in one projection; B and C are shared by groups of heads."""

    def part(c: Fields, _: int) -> list[Weight]:
        count, at = c.count(names.heads), names.at
        expected = inner(c)
        width = c.get(names.width)
        width = (expected or 0) // count if width == "auto" else c.count(names.width)
        if expected is not None and expected != count * width:
            c.wrong(f"{c.path(names.heads)} × {c.path(names.width)} = {count * width} must be {expected}")
        x = axis(count, width)
        shares = axis(c.count(names.groups), c.count(names.state), "kv")
        mixed = x + shares + shares
        bias = c.flag(names.bias)
        found = [
            *(tensor(f"{at}.{name}", axis(count)) for name in ("dt_bias", "A_log", "D")),
            *_conv(f"{at}.conv1d", mixed, c.count(names.conv), c.flag(names.conv_bias)),
            *linear(f"{at}.in_proj", hidden(c), x + mixed + axis(count), bias),
            *linear(f"{at}.out_proj", x, hidden(c), c.flag(names.out_bias or names.bias)),
        ]
        return [*found, *norm(f"{at}.norm", x)] if c.flag(names.norm) else found

    def forward(c: Fields, _: int) -> Forward:
        count = c.count(names.heads)
        width = c.get(names.width)
        width = (inner(c) or 0) // count if width == "auto" else c.count(names.width)
        shape = Scan(count, width, c.count(names.groups), c.count(names.state), c.count(names.chunk, 256))
        return Mixer(names.at, shape, c.count(names.conv), c.word(names.activation, "silu"), names.multiplies)

    return Part(part, forward)


def expanded(field: str = "mamba_expand") -> Callable[[Fields], Size]:
    """The inner width as a multiple of the hidden size."""
    return lambda c: c.count(field) * hidden(c)
