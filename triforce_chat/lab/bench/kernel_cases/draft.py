"""Drafts of a small model: a token of a chain, and all tokens of one depth of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.eviction import SINKS, WINDOW
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.streaming import HOP, LONG_HOP
from triforce_chat.engine.cuda_graph import ForwardInputs
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.graphs import ForwardGraphs
from triforce_chat.engine.forward.small_decoder import small_decoder
from triforce_chat.engine.sampling.executor import SamplerInputs, Verification
from triforce_chat.engine.sampling.ops import CANDIDATES, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.tree_draft import Draws, Growth, by_kernels, by_operations, growth
from triforce_chat.engine.tree import ROOT
from triforce_chat.lab.bench.kernel_cases.case import DEVICE, DTYPE, VOCABULARY, Case

DRAFTED_AT = 300  # tokens in a draft model's cache
DRAFTS: dict[str, dict[str, int]] = {
    "small": {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    },
    "llama-68m": {
        "vocab_size": 32_000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
    },
    "tiny": {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
}
WIDTHS = (1, 2, 4, 8, 16)  # tokens of one depth of a tree
CHILDREN = 2  # of each of its tokens


class Drafted(NamedTuple):
    ids: Tensor
    place: Tensor
    numbers: Tensor
    tokens: Tensor
    probs: Tensor


def draft_cases(name: str, n: int, temperature: float) -> Iterator[Case]:
    """A token of a draft: a forward of the last n tokens and the draw, by kernels of its own and by the usual ones."""
    model = LlamaForCausalLM(LlamaConfig(**DRAFTS[name])).to(DEVICE, DTYPE)
    shape, vocabulary = Shape.of(model.config, DTYPE, DEVICE), model.config.vocab_size
    decoder, storage = Decoder(model, shape), KVBuffer(shape, SINKS + WINDOW + HOP)
    quick, usual = small_decoder(decoder, storage), ForwardGraphs(decoder, DEVICE).forward(storage.slot(0))
    op, nothing = Verification(Sampling(temperature), CANDIDATES), Draft.empty(vocabulary, DEVICE)
    steps = torch.arange(n, device=DEVICE)

    def made() -> Drafted:
        ids, place = (
            torch.randint(vocabulary, (n,), device=DEVICE),
            torch.full((2,), DRAFTED_AT, device=DEVICE),
        )
        numbers = torch.rand(1, 1, dtype=torch.float64, device=DEVICE)
        probs = torch.empty(1, 1, vocabulary, device=DEVICE)
        return Drafted(ids, place, numbers, ids[:1, None].clone(), probs)

    def run(each: Drafted) -> Tensor:
        assert quick
        logits = quick(each.ids, each.place, 0)
        kernels.draw_token(logits, kernels.Drawing(temperature, each.numbers), 0, each.tokens, each.probs)
        return each.probs

    def plain(each: Drafted) -> Tensor:
        logits = usual(ForwardInputs(each.ids, each.place[:1], each.place[1:], steps))[0][-1:]
        random = op.randomness(Uniforms(each.numbers[:, :0].float(), each.numbers))
        return op(SamplerInputs(logits[None], nothing, None), random).probs

    size = decoder.matrix_numbers * DTYPE.itemsize + DRAFTED_AT * shape.bytes_per_token
    label, copies = f"{name} n={n} T={temperature:g}", [made() for _ in range(2)]
    if quick:
        yield Case("drafted token", label, size, copies, run, plain if temperature else None)
    yield Case("drafted token: usual", label, size, copies, plain)


def tree_cases(name: str, width: int, temperature: float) -> Iterator[Case]:
    """The tokens of one depth of a drafted tree: their forward, and the draw of their children; as ``draft_cases``."""
    model = LlamaForCausalLM(LlamaConfig(**DRAFTS[name])).to(DEVICE, DTYPE)
    shape, vocabulary = Shape.of(model.config, DTYPE, DEVICE), model.config.vocab_size
    decoder, storage = Decoder(model, shape), KVBuffer(shape, SINKS + WINDOW + LONG_HOP)
    quick, usual = small_decoder(decoder, storage), ForwardGraphs(decoder, DEVICE).forward(storage.slot(0))
    parents = (*width * (ROOT,), *(node for node in range(width) for _ in range(CHILDREN)))
    n, rows = len(parents), slice(1, 1 + width)
    how = Growth(*(each.to(DEVICE) for each in growth(parents, (1, width), n)))
    numbers = Uniforms(torch.empty(1, 0, device=DEVICE), torch.rand(1, n, dtype=torch.float64, device=DEVICE))
    by = Draws(Verification(Sampling(temperature), CANDIDATES), None, numbers, False, None, vocabulary)
    few, many, tree_rows = (
        by_kernels(how, by),
        by_operations(how, by),
        kernels.TreeRows(how.masks[0, rows], 0, 1),
    )
    steps = torch.zeros(width, dtype=torch.long, device=DEVICE)

    def made() -> Drafted:
        ids, tokens = torch.randint(vocabulary, (2, n), device=DEVICE)
        place = torch.full((2,), DRAFTED_AT, device=DEVICE)
        probs = torch.empty(1, n, vocabulary, device=DEVICE)
        return Drafted(ids[:width], place, numbers.last, tokens[None], probs)

    def run(each: Drafted) -> Tensor:
        assert quick
        few(1, rows, quick(each.ids, each.place, 1, None, tree_rows)[None], each.tokens, each.probs)
        return each.probs

    def plain(each: Drafted) -> Tensor:
        place = each.place + 1
        inputs = ForwardInputs(each.ids, place[:1], place[1:], steps, masks=tree_rows.masks, origin=place[:1])
        many(1, rows, usual(inputs)[0][None], each.tokens, each.probs)
        return each.probs

    size = decoder.matrix_numbers * DTYPE.itemsize + DRAFTED_AT * shape.bytes_per_token
    label, copies = f"{name} width={width} T={temperature:g}", [made() for _ in range(2)]
    if quick:
        yield Case("level of a tree", label, size, copies, run)
    yield Case("level of a tree: usual", label, size, copies, plain)
