"""Text that the target itself makes behind a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.options import Sampling
from triforce_chat.training.generate import Generator, Temper


def continuations(
    engine: Engine,
    prompt: Sequence[int],
    samplings: Sequence[Sampling],
    tokens: int,
    stop: Sequence[str] = (),
) -> list[list[int]]:
    """One answer for each way of sampling, of at most ``tokens`` tokens and up to its end token.

    A GPU makes all of them at once where it can: in 16 bit, without stop strings and truncation.
    """
    batched = engine.target.device.type == "cuda" and engine.target.shape.dtype.itemsize == 2
    if stop or not batched or any(map(truncates, samplings)):
        return one_by_one(engine, prompt, samplings, tokens, stop)
    return at_once(engine, prompt, samplings, tokens)


def truncates(sampling: Sampling) -> bool:
    return bool(sampling.top_k or sampling.min_p or sampling.top_p < 1)


def one_by_one(
    engine: Engine, prompt: Sequence[int], samplings: Sequence[Sampling], tokens: int, stop: Sequence[str]
) -> list[list[int]]:
    """By plain decoding with the engine's own cache."""
    made = []
    for sampling in samplings:
        events = engine.answer(Request(prompt, tokens, sampling, stop), plain=True)
        made.append([token for event in events if isinstance(event, Text) for token in event.token_ids])
    return made


def at_once(
    engine: Engine, prompt: Sequence[int], samplings: Sequence[Sampling], tokens: int
) -> list[list[int]]:
    """In one batch over a prefix that all share; the first way's seed is the seed of all."""
    device = engine.target.device
    temper = Temper(
        torch.tensor([each.temperature for each in samplings], device=device),
        torch.tensor([each.repetition_penalty for each in samplings], device=device),
    )
    torch.manual_seed(samplings[0].seed or 0)
    prefix = torch.tensor([prompt[:-1]], device=device)
    generator = Generator(engine.target.model, engine.eos_ids)
    made = generator.run(prefix, [prompt[-1:]] * len(samplings), temper, tokens)
    return [row[:n] for row, n in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True)]
