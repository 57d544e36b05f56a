"""Prints, as JSON, the kernels that an engine launched and those that would have been compiled ahead of it.

``python dry_probe.py STACK``: in a process of its own, as tests make Triton interpret its kernels. Graphs are emulated,
and every launch is a dry one beside plain arithmetic. ``python dry_probe.py run`` answers on a GPU and prints nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch

from support import plain_kernels
from support.emulated_graphs import captured_pair, emulate
from support.labs import ARCHITECTURES, SMALL_BUDGET, random_model, spell
from triforce_chat.engine import kernels
from triforce_chat.engine.cache.streaming import HOP, SINKS, WINDOW
from triforce_chat.engine.compile_ahead import Kernels, launch_all
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.kernels import dry
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.speculation.stacks import StackOptions

HOPPER, CONTEXT = 90, 256
LAUNCHED = ("rms_norm", "silu_mul", "rotate_and_store", "decode_attention", "int8_linear")


def needed(models: list[Kernels]) -> dict[Any, dry.Launch]:
    return dry.recorded(partial(launch_all, models))


def kernels_of(config: dict[str, Any]) -> list[Kernels]:
    """Of a target and a draft with the same configuration."""
    capacities = [CONTEXT + SLACK, SMALL_BUDGET.capacity]
    target = Kernels(config, "float32", capacities, asdict(SMALL_BUDGET), True)
    return [target, Kernels(config, "float32", [SINKS + WINDOW + HOP])]


def answered(stack: str, patch: pytest.MonkeyPatch) -> tuple[set[Any], set[Any]]:
    """What an engine launches in an answer, and what is compiled ahead for it."""
    originals = {name: getattr(kernels, name) for name in LAUNCHED}
    emulate(patch)
    target, draft = captured_pair("cpu", patch)
    launched: set[Any] = set()
    for name, launch in originals.items():
        plain = getattr(plain_kernels, name)

        def both(*given: Any, plain: Any = plain, launch: Any = launch, **named: Any) -> Any:
            launched.update(dry.recorded(lambda: launch(*given, **named)))
            return plain(*given, **named)

        patch.setattr(kernels, name, both)
    options = StackOptions(stack, budget=SMALL_BUDGET, middle="int8")
    engine = Engine(target, CONTEXT, TextCodec(spell), draft, options)
    engine.executor = GraphExecutor()
    prompt = torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    tokens_of(engine, Request(prompt, 60))
    for name, launch in originals.items():
        patch.setattr(kernels, name, launch)
    return launched, {*needed(kernels_of(target.model.config.to_dict()))}


def run() -> None:
    """Answer on a GPU, plainly and by all levels."""
    with pytest.MonkeyPatch.context() as patch:
        target, draft = captured_pair("cuda", patch)
        for middle in ("full", "int8"):
            options = StackOptions("triforce", budget=SMALL_BUDGET, middle=middle)
            engine = Engine(target, CONTEXT, TextCodec(spell), draft, options)
            prompt = torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3)).tolist()
            tokens_of(engine, Request(prompt, 120))
            tokens_of(engine, Request(prompt, 60), True)


def main() -> None:
    found: dict[str, Any] = {}
    with dry.without_gpu(HOPPER), pytest.MonkeyPatch.context() as patch:
        launched, ahead = answered(sys.argv[1], patch)
        found["launched"], found["ahead"] = ([key[0] for key in keys] for keys in (launched, ahead))
        found["missed"] = [str(key) for key in launched - ahead]
    with dry.without_gpu(HOPPER):
        for name in ARCHITECTURES:
            config = random_model(name, head_dim=16).config.to_dict()
            found[name] = [key[0] for key in needed([Kernels(config, "bfloat16", [128])])]
    print(json.dumps(found))


if __name__ == "__main__":
    run() if sys.argv[1] == "run" else main()
