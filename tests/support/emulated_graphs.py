"""Graphs without a GPU: replays that write over what earlier ones made, and inputs that do not outlast them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support import plain_kernels
from support.labs import perturbed, random_model
from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache import quantized
from triforce_chat.engine.cuda_graph import USUAL_CAPTURE, Graph, captures_on
from triforce_chat.engine.forward import runner, streamed_weights
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.host_copy import HostCopy
from triforce_chat.engine.sampling.executor import StaticVerification
from triforce_chat.engine.speculation import speculative


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a graph gives out the same tensors at every call, and a message is on its way at once.

    What the graphs of one owner made is spoiled by the next of their replays, and what is given by its own.
    """
    made: dict[int, list[tuple[Tensor, ...]]] = {}
    run = StaticVerification.__call__

    def owned(self: Graph[Any]) -> list[tuple[Tensor, ...]]:
        return made.setdefault(id(self.pool.__self__), [])  # type: ignore[attr-defined]

    def prepare(self: Graph[Any], work: Callable[[], Any]) -> None:
        """Capturing runs the work once, in memory of its own, and what other graphs gave out stays."""
        if self.captured is None:
            with monkeypatch.context() as patch:
                patch.setattr(streamed_weights, "rehearses", lambda _: True)
                fresh = work()
            self.captured = self, fresh  # type: ignore[assignment]
            captures_on(self.device).add(USUAL_CAPTURE)
            owned(self).append(tensors_of(fresh))

    def replay(self: Graph[Any], work: Callable[[], Any]) -> Any:
        self.prepare(work)
        assert self.captured
        fresh = work()
        spoil(*(tensor for tensors in owned(self) for tensor in tensors))
        with torch.inference_mode():
            for mine, new in zip(tensors_of(self.captured[1]), tensors_of(fresh), strict=True):
                mine.copy_(new)
        return self.captured[1]

    def leave(self: StaticVerification) -> Any:
        drawn = run(self)
        given = self.inputs
        spoil(given.logits, given.draft.probs, *self.uniforms)
        for ids in (given.draft.tokens, *(given.penalty or ())):
            ids.fill_(1)
        if given.forced is not None:
            given.forced.fill_(1)
        return drawn

    class Sent(HostCopy):
        def __init__(self, numbers: Tensor) -> None:
            super().__init__(numbers.clone())

    monkeypatch.setattr(Graph, "__call__", replay)
    monkeypatch.setattr(Graph, "prepare", prepare)
    monkeypatch.setattr(StaticVerification, "__call__", leave)
    monkeypatch.setattr(speculative, "HostCopy", Sent)


def prefill_in_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read in chunks of so many tokens on any device."""
    for name in ("PREFILL_CHUNK", "GPU_PREFILL_CHUNK"):
        monkeypatch.setattr(prefix_cache, name, size)


def captured_pair(
    device: str, monkeypatch: pytest.MonkeyPatch, kv: torch.dtype | None = None
) -> tuple[Runner, Runner]:
    """A target and its draft, whose forwards are captured; on a CPU with kernels of torch's."""
    pytest.importorskip("triton")
    if device == "cpu":
        plain_kernels.replace(monkeypatch)
    monkeypatch.setattr(runner, "fusible", lambda _: True)
    monkeypatch.setattr(quantized, "kernels_run", lambda _: True)
    torch.manual_seed(11)
    model = random_model(head_dim=16).to(device)
    return Runner(model, kv=kv), Runner(perturbed(copy.deepcopy(model), 0.1))


def tensors_of(made: Any) -> tuple[Tensor, ...]:
    return (made,) if isinstance(made, Tensor) else tuple(each for each in made if each is not None)


def spoil(*tensors: Tensor) -> None:
    with torch.inference_mode():
        for each in tensors:
            each.fill_(float("nan") if each.is_floating_point() else -(10**6))
