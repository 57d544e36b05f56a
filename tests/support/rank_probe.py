"""A program of several ranks that decodes and records the state of every rank after every call.

``python probe.py SIZE FOLDER MODEL...``: each model in one process, then the same on SIZE ranks of which
this process starts the others. The results go to FOLDER/found.json, the states of rank n to FOLDER/n.jsonl.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triforce_chat.loading.spec import EngineSpec

FOLDER = "PROBE_FOLDER"
DEVICE, OFFLOAD = "PROBE_DEVICE", "PROBE_OFFLOAD"  # environment variables; by default on the CPU
OTHER_CACHE = "PROBE_OTHER_CACHE"  # environment variable: the cache folder of all ranks but the first
FUSED = "PROBE_FUSED"  # environment variable: with fused blocks and captured forwards, as on a GPU
BIG = ".big"
# Models for which every stack is tried: others differ in what a forward does, which all stacks share.
STACKED = ("llama", "qwen3", "biased", "target")
ROOM, TOKENS, PROMPT = 400, 8, 110
INTERRUPTS = (("triforce", 9), ("auto", 4), ("naive", 5))  # a stack, and the event at which it is closed


def held(engine: Any) -> dict[str, Any]:
    """The state that must be equal on all ranks."""
    levels: list[int] = []
    level = engine.top
    while hasattr(level, "cache"):
        levels.append(level.cache.length)
        planner = getattr(level, "planner", None)
        level = planner.arms[0].drafter if planner and planner.arms else None
    tokens = hashlib.sha256(repr(engine.cached).encode()).hexdigest()
    return {
        "cached": len(engine.cached),
        "tokens": tokens,
        "levels": levels,
        "read": len(engine.prefix.chunks),
        "captured": captured(engine),
    }


def captured(engine: Any) -> list[int]:
    """The numbers of tokens of the forwards that are captured over the full cache."""
    runner = engine.target
    return list(runner.graphs.made.get(engine.full.storage, ())) if runner.decoder else []


def fuse() -> None:
    """Emulate fused blocks by plain arithmetic, and captured forwards whose replays overwrite their outputs."""
    import pytest

    from support import plain_kernels
    from support.emulated_graphs import emulate
    from triforce_chat.engine.forward import runner

    patch = pytest.MonkeyPatch()
    plain_kernels.replace(patch)
    emulate(patch)
    patch.setattr(runner, "fusible", lambda _: True)


def logits(engine: Any, ids: Sequence[int]) -> dict[str, list[list[float]]]:
    """Logits for ``ids``, in small and large parts, of fused blocks, of 8-bit copies and of transformers' blocks."""
    from copy import copy

    import torch

    from triforce_chat.engine.cache.full import FullCache

    target, given, found = engine.target, torch.tensor(ids, device=engine.target.device), {}
    stock = copy(target)
    stock.decoder = None
    for name, model in (("dense", target), ("int8", target.quantized), ("stock", stock)):
        cache = FullCache(target.shape, len(ids) + 64)
        model.prefill(given[:30], cache)
        parts = (given[30:33], given[33:34], given[34:])
        found[name] = [row for part in parts for row in model(part[None], cache, len(part))[0].tolist()]
    return found


def note(rank: int, engine: Any) -> None:
    with (Path(os.environ[FOLDER]) / f"{rank}.jsonl").open("a") as file:
        print(json.dumps(held(engine)), file=file)


def run_started(descriptor: int, rank: int, size: int) -> None:
    """``worker.run_started``, with notes."""
    from triforce_chat.cache_folder import CACHE_VARIABLE
    from triforce_chat.parallel import worker

    execute = worker.execute
    if FUSED in os.environ:
        fuse()
    if OTHER_CACHE in os.environ:
        os.environ[CACHE_VARIABLE] = os.environ[OTHER_CACHE]

    def noted(engine: Any, call: Any, inbox: Any) -> None:
        if call.method == "logits":
            logits(engine, *call.arguments)
        else:
            execute(engine, call, inbox)
        note(rank, engine)

    worker.execute = noted
    worker.run_started(descriptor, rank, size)


class Trial:
    """Questions for an engine of one process or of several; ``each`` is called after every call of the engine."""

    def __init__(self, answering: Any, each: Callable[[], None]) -> None:
        import torch

        self.answering, self.each = answering, each
        generator = torch.Generator().manual_seed(5)
        self.prompt: list[int] = torch.randint(3, 90, (PROMPT,), generator=generator).tolist()
        self.prompt[60:80] = self.prompt[20:40]  # something to look up

    def restack(self, name: str, middle: str = "auto") -> None:
        from triforce_chat.engine.cache.layout import Budget
        from triforce_chat.engine.speculation.stacks import StackOptions

        budget = Budget(tokens=48, chunk=4, sinks=4, tail=8, stride=16, scratch=32, queries=4)
        self.answering.restack(StackOptions(name, 6, 2, budget=budget, middle=middle))
        self.each()

    def repeatable(self) -> list[list[int]]:
        """The tokens of answers with a seed, planned by what is measured before the first of them."""
        from triforce_chat.engine.cache.layout import Budget
        from triforce_chat.engine.speculation.stacks import StackOptions

        budget = Budget(tokens=48, chunk=4, sinks=4, tail=8, stride=16, scratch=32, queries=4)
        self.answering.restack(StackOptions("auto", budget=budget, middle="full", repeatable=True))
        self.each()
        return [self.tokens(temperature=0.7, seed=11) for _ in range(3)]

    def tokens(
        self, plain: bool = False, cut: int = 0, forced: Sequence[int] = (), **sampling: Any
    ) -> list[int]:
        from triforce_chat.engine.exactness import tokens_of

        made = tokens_of(self.answering, self.request(cut, forced, **sampling), plain)
        self.each()
        return made

    def request(self, cut: int = 0, forced: Sequence[int] = (), **sampling: Any) -> Any:
        from triforce_chat.engine.engine import Request
        from triforce_chat.engine.sampling.options import Sampling

        return Request(self.prompt[cut:], TOKENS, Sampling(**sampling), forced=forced)

    def basics(self) -> dict[str, Any]:
        """Plain tokens and their scores, a sampled answer, one along a given text, and attention weights."""
        plain = self.tokens(plain=True)
        blocks = self.answering.rescore(self.request(), plain)
        scores = [row.tolist() for rows, _ in blocks for row in rows]
        self.each()
        self.restack("triforce")
        seeded = self.tokens(temperature=0.7, seed=11)
        forced = self.tokens(forced=plain[::-1], temperature=0.7)
        attended = value_of(self.answering.attribute(self.request(), plain))
        self.each()
        return {"plain": plain, "scores": scores, "seeded": seeded, "forced": forced, "attended": attended}

    def stacks(self, names: Sequence[str]) -> dict[str, list[int]]:
        found = {}
        for name in names:
            self.restack(name)
            found[name] = self.tokens()
        return found

    def int8(self) -> list[int]:
        """Tokens with a middle level in 8 bits."""
        self.restack("triforce", middle="int8")
        return self.tokens()

    def interrupts(self) -> list[list[int]]:
        """The tokens up to each interrupt, and of an answer to a question that shares only the prompt's middle."""
        found = []
        for name, events in INTERRUPTS:
            self.restack(name)
            found.append(interrupted(self.answering, self.request(), events))
            self.each()
            found.append(self.tokens(temperature=1.0) and self.tokens(cut=30))
        return found


def interrupted(answering: Any, request: Any, events: int) -> list[int]:
    """The tokens of an answer that is closed after ``events`` events."""
    answer = answering.answer(request)
    said: list[int] = []
    for _ in range(events):
        said += getattr(next(answer), "token_ids", ())
    answer.close()
    return said


def value_of(events: Any) -> Any:
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


def spec_of(model: str, size: int) -> EngineSpec:
    """The spec for a model; the suffix .big asks for a resized one."""
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.models.shapes import BigShape
    from triforce_chat.settings.settings import Settings

    name, big = model.removesuffix(BIG), model.endswith(BIG)
    draft = str(Path(model).parent / "draft")
    settings = Settings(
        name,
        draft if Path(draft).is_dir() else "none",
        device=os.environ.get(DEVICE, "cpu"),
        dtype="float32",
        offload=OFFLOAD in os.environ,
        tp=size,
    )
    shape = BigShape("big", hidden=48, layers=3, heads=8, kv_heads=4, head_dim=16, mlp=96) if big else None
    return EngineSpec(settings, ROOM, shape)


def numbers(model: Any, ranks: int) -> tuple[int, int]:
    """(parameters of this rank, planned parameters)."""
    from torch.distributed.tensor import DTensor

    from triforce_chat.memory_plan.dimensions import Dimensions

    parts = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
    return sum(part.numel() for part in parts), Dimensions.of(model.config.to_dict()).parameters(ranks)


def together_logits(together: Any, ids: Sequence[int]) -> dict[str, list[list[float]]]:
    """``logits``, called on all ranks together."""
    from triforce_chat.parallel.commands import Call

    together.workers.send(Call("logits", (ids,)))
    found = logits(together.engine, ids)
    note(0, together.engine)
    return found


def nothing() -> None:
    """With one process there is no state to compare."""


def probe(size: int, models: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    from triforce_chat.loading.garbage import no_garbage_collection

    with no_garbage_collection():
        import torch

        from triforce_chat.loading.load_engine import load_engine
        from triforce_chat.parallel import rendezvous
        from triforce_chat.parallel.launcher import Launcher
        from triforce_chat.parallel.rank_info import RankInfo
        from triforce_chat.settings.settings import STACKS

    torch.set_num_threads(1)
    if FUSED in os.environ:
        fuse()
    program = rendezvous._WORKER_PROGRAM
    rendezvous._WORKER_PROGRAM = program.replace("triforce_chat.parallel.worker", "support.rank_probe")
    info = RankInfo(0, 0, size, size)
    launcher = Launcher(info, *rendezvous.connect_workers(info))
    for model in models:
        engine, _ = load_engine(spec_of(model, 1))
        alone = Trial(engine, nothing)
        found: dict[str, Any] = {"alone": alone.basics()}
        together, _ = launcher.load(spec_of(model, size))
        shared = Trial(together, partial(note, 0, together.engine))
        found["shared"] = shared.basics()
        if Path(model).name in STACKED:
            found["stacks"] = shared.stacks(STACKS)
        if Path(model).name == "llama":
            found["interrupts"] = [alone.interrupts(), shared.interrupts()]
            found["repeatable"] = shared.repeatable()
        if together.target.decoder:
            found["int8"] = shared.int8()
            found["logits"] = [logits(engine, alone.prompt), together_logits(together, alone.prompt)]
            found["captured"] = captured(together.engine)
        found["heads"] = [together.target.shape.query_heads, together.target.shape.kv_heads]
        found["numbers"] = numbers(together.target.model, size)
        yield Path(model).name, found


if __name__ == "__main__":
    size, folder, *models = sys.argv[1:]
    os.environ[FOLDER] = folder
    found = dict(probe(int(size), models))
    (Path(folder) / "found.json").write_text(json.dumps(found))
