"""Text that the target itself generates after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.lab.generation import Generator, SequenceSampling
from triforce_chat.models.assemble import as_transformers

LONGEST = 1 << 18  # tokens of a prefix that is read in one forward, whose activations take memory


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    """What follows a shared prefix, at least one token, and how its answer is sampled."""

    suffix: Sequence[int]
    sampling: Sampling


def continuations(
    engine: Engine,
    prefix: Sequence[int],
    asked: Sequence[ContinuationRequest],
    tokens: int,
    stop: Sequence[str] = (),
) -> list[list[int]]:
    """One answer for each suffix after ``prefix``, of at most ``tokens`` tokens and up to its end token.

    A GPU makes all of them at once where it can: in 16 bit, without stop strings and truncation, after a prefix that
    is not too long, and over keys and values in the format of the weights.
    """
    shape = engine.target.shape
    batched = shape.device.type == "cuda" and shape.dtype.itemsize == 2 and shape.kv_format == shape.dtype
    if stop or not batched or len(prefix) > LONGEST or any(truncates(each.sampling) for each in asked):
        return one_by_one(engine, prefix, asked, tokens, stop)
    return at_once(engine, prefix, asked, tokens)


def truncates(sampling: Sampling) -> bool:
    return bool(sampling.top_k or sampling.min_p or sampling.top_p < 1)


def one_by_one(
    engine: Engine,
    prefix: Sequence[int],
    asked: Sequence[ContinuationRequest],
    tokens: int,
    stop: Sequence[str],
) -> list[list[int]]:
    """Continuations by plain decoding with the engine's own cache."""
    made = []
    for each in asked:
        request = Request([*prefix, *each.suffix], tokens, each.sampling, stop)
        events = engine.answer(request, plain=True)
        made.append([token for event in events if isinstance(event, Text) for token in event.token_ids])
    return made


def at_once(
    engine: Engine, prefix: Sequence[int], asked: Sequence[ContinuationRequest], tokens: int
) -> list[list[int]]:
    """Continuations in one batch; the first sampling's seed is the seed of all."""
    device = engine.target.device
    sampling = SequenceSampling(
        torch.tensor([each.sampling.temperature for each in asked], device=device),
        torch.tensor([each.sampling.repetition_penalty for each in asked], device=device),
    )
    torch.manual_seed(asked[0].sampling.seed or 0)
    generator = Generator(as_transformers(engine.target.model), engine.eos_ids)
    suffixes = [each.suffix for each in asked]
    made = generator.run(torch.tensor([list(prefix)], device=device), suffixes, sampling, tokens)
    return [row[:n] for row, n in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True)]
