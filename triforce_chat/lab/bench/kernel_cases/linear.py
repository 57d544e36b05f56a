"""Products with quantized weights, and tiles that may be faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from triforce_chat.engine import kernels
from triforce_chat.engine.kernels.blocking import Blocking, GroupedBlocking
from triforce_chat.engine.kernels.quantized_weight import Codes, WeightFormat
from triforce_chat.lab.bench.kernel_cases.case import DEVICE, DTYPE, VOCABULARY, Case, Model, noise, rounds

QUANTIZED_VOCABULARY = 128_256
# The most promising first. Of a gated layer each tile is two of half the height.
BLOCKINGS = tuple(
    Blocking(*each)
    for each in (
        (32, 64, 6, 4),
        (16, 128, 7, 4),
        (32, 128, 4, 4),
        (32, 128, 4, 8),
        (16, 128, 5, 4),
        (64, 64, 6, 4),
        (32, 64, 8, 4),
        (16, 128, 4, 8),
        (64, 64, 4, 4),
        (32, 128, 6, 2),
        (16, 64, 8, 4),
        (64, 128, 6, 4),
        (32, 128, 3, 8),
        (32, 128, 5, 4),
        (16, 128, 10, 2),
        (64, 64, 4, 8),
        (16, 128, 4, 4),
        (32, 64, 6, 8),
        (64, 128, 3, 4),
        (16, 128, 7, 2),
        (32, 128, 5, 8),
    )
)
# Of grouped weights on tensor cores.
GROUPED_BLOCKINGS = tuple(
    GroupedBlocking(rows, stages, warps, shares)
    for rows, warps in ((128, 8), (64, 4), (64, 8))
    for stages in (3, 4, 5)
    for shares in (1, 2, 4, 8)
)
FORMATS = {
    "4 bit, minimum": WeightFormat(Codes.BITS_4, 32, True),  # Q4_K, Q4_1
    "4 bit": WeightFormat(Codes.BITS_4, 32, False),  # Q4_0
    "4 bit, groups of 128": WeightFormat(Codes.BITS_4, 128, True),
    "8 bit, groups of 16": WeightFormat(Codes.BITS_8, 16, False),  # Q6_K
    "8 bit": WeightFormat(Codes.BITS_8, 32, False),  # Q8_0
}
LARGEST = {Codes.BITS_4: 255, Codes.BITS_8: 127}  # byte
MIDDLE = {Codes.BITS_4: 8, Codes.BITS_8: 64}  # integer


def random_weight(format: WeightFormat, outputs: int, inputs: int) -> kernels.QuantizedWeight:
    """Random integers with scales of a size at which products are about as large as their inputs."""
    made, most = format.empty(outputs, inputs, DEVICE), LARGEST[format.codes]
    words = torch.randint(0, most + 1, made.data.shape, device=DEVICE, dtype=torch.int32)
    made.data.copy_(words & most)
    scale = torch.rand(made.scale.shape, device=DEVICE) / (MIDDLE[format.codes] * inputs**0.5)
    if format.sided:
        scale = torch.stack((scale, -8 * scale), 2).half().view(torch.int32)[..., 0]
    made.scale.copy_(scale)
    return made


class Layer(NamedTuple):
    x: Tensor
    weight: kernels.QuantizedWeight
    dense: Tensor
    norm: kernels.Norm | None
    residual: Tensor | None


class Form(NamedTuple):
    """A linear layer's size, and what belongs to it: a norm before it, a residual or a gate after it."""

    name: str
    outputs: int  # rows of the weight
    inputs: int
    norm: bool = False
    residual: bool = False
    gated: bool = False

    def shape(self, model: Model, n: int) -> str:
        return f"{model.name} {self.name} {self.outputs}x{self.inputs} n={n}"

    def layers(self, n: int, dense: bool) -> list[Layer]:
        """Enough layers to exceed the GPU's cache."""

        def made() -> Layer:
            data = torch.randint(-127, 128, (self.outputs, self.inputs), device=DEVICE, dtype=torch.int8)
            scale = torch.full((self.outputs,), 0.01 / self.inputs**0.5, device=DEVICE)
            return Layer(
                noise(n, self.inputs),
                kernels.QuantizedWeight(data, scale[:, None], self.inputs, self.inputs),
                (data * scale[:, None]).to(DTYPE) if dense else noise(0),
                kernels.Norm(noise(self.inputs), 1e-5) if self.norm else None,
                noise(n, self.outputs) if self.residual else None,
            )

        return rounds(self.outputs * self.inputs, made)

    def quantized(self, n: int, format: WeightFormat) -> list[Layer]:
        """Enough quantized weights to exceed the GPU's cache, without dense ones."""

        def made() -> Layer:
            return Layer(
                noise(n, self.inputs),
                random_weight(format, self.outputs, self.inputs),
                noise(0),
                kernels.Norm(noise(self.inputs), 1e-5) if self.norm else None,
                noise(n, self.outputs) if self.residual else None,
            )

        return rounds(self.outputs * self.inputs // 2, made)

    def expanded(self, each: Layer) -> Tensor:
        """The product with the numbers that the weights stand for."""
        dense = torch.empty(self.outputs, self.inputs, device=DEVICE, dtype=DTYPE)
        kernels.expand(each.weight, dense)
        return self.dense(each._replace(dense=dense))

    def fused(self, each: Layer, tiles: Blocking | GroupedBlocking | None = None) -> Tensor:
        return kernels.quantized_linear(each.x, each.weight, each.residual, each.norm, self.gated, tiles)

    def dense(self, each: Layer) -> Tensor:
        x = each.x if each.norm is None else rms_norm(each.x, (self.inputs,), *each.norm)
        out = linear(x, each.dense)
        if self.gated:
            gate, up = out.chunk(2, -1)
            return silu(gate) * up
        return out if each.residual is None else out + each.residual


def forms(model: Model, vocabulary: int = VOCABULARY) -> tuple[Form, ...]:
    heads = (model.heads + 2 * model.kv_heads) * model.dim
    return (
        Form("norm+qkv", heads, model.hidden, norm=True),
        Form("o+residual", model.hidden, model.heads * model.dim, residual=True),
        Form("norm+gate+up", 2 * model.inner, model.hidden, norm=True, gated=True),
        Form("down+residual", model.hidden, model.inner, residual=True),
        Form("head", vocabulary, model.hidden),
    )


def linear_cases(model: Model, n: int) -> Iterator[Case]:
    """The layers of a model by kernel and by torch, whose weights are twice as large."""
    for form in forms(model)[:4]:
        size, copies, shape = form.outputs * form.inputs, form.layers(n, dense=True), form.shape(model, n)
        yield Case("quantized_linear", shape, size, copies, form.fused, form.dense)
        yield Case("quantized_linear: torch 16 bit", shape, 2 * size, copies, form.dense)


def linear_sweep(model: Model, tokens: Sequence[int]) -> Iterator[Case]:
    """Tiles for every layer, the most promising for all of them before the next."""
    known = [(form, n, form.layers(n, dense=False)) for form in forms(model) for n in tokens]
    for tiles in BLOCKINGS:
        for form, n, copies in known:
            chosen = tiles._replace(outputs=tiles.outputs // 2) if form.gated else tiles
            if chosen.outputs < 16 or (form.outputs > 16_384 and tiles.outputs == 16):
                continue
            name = f"quantized_linear {'x'.join(map(str, chosen))}"
            size = form.outputs * form.inputs
            yield Case(name, form.shape(model, n), size, copies, partial(form.fused, tiles=chosen))


def quantized_cases(model: Model, n: int, vocabulary: int) -> Iterator[Case]:
    """The layers of a model in the formats of files, beside 8 bits with a scale for each row and 16 bits."""
    for form in forms(model, vocabulary):
        shape, size = form.shape(model, n), form.outputs * form.inputs
        copies = form.layers(n, dense=True)
        yield Case("quantized_linear: torch 16 bit", shape, 2 * size, copies, form.dense)
        yield Case("quantized_linear: 8 bit rows", shape, size, copies, form.fused, form.dense)
        for label, format in FORMATS.items():
            if form.inputs % format.group == 0:
                copies = form.quantized(n, format)
                name, size_of = f"quantized_linear: {label}", copies[0].weight.nbytes
                yield Case(name, shape, size_of, copies, form.fused, form.expanded)


def quantized_sweep(model: Model, n: int) -> Iterator[Case]:
    """Tiles for 4-bit weights of every layer."""
    known = [
        (form, form.quantized(n, FORMATS["4 bit, minimum"])) for form in forms(model, QUANTIZED_VOCABULARY)
    ]
    for tiles in GROUPED_BLOCKINGS:
        for form, copies in known:
            name, size = f"quantized_linear {'x'.join(map(str, tiles))}", copies[0].weight.nbytes
            yield Case(name, form.shape(model, n), size, copies, partial(form.fused, tiles=tiles))
