"""After what a prefill prepares, no answer captures anything, whatever its planners choose and wherever it ends.

Graphs are emulated. Planners choose at random instead of by the clock, so that all their choices come up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.caches import buffer_of
from support.emulated_graphs import captured_pair, emulate, prefill_in_chunks
from support.labs import SMALL_BUDGET, spell

from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.quantization import INT4, INT8
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cuda_graph import Graph, captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.executor import FEW_SIZES, GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import StackOptions, largest_forward
from triforce_chat.engine.speculation.tree_plan import TreeOptions, TreePlan
from triforce_chat.storage.kv.cache_directory import CacheDirectory
from triforce_chat.storage.kv.disk_cache import KVDiskCache

Pair = tuple[Runner, Runner]
WARM = Sampling(0.6, repetition_penalty=1.1, seed=3)
PROMPT = [int(token) for token in torch.randint(1, 48, (300,), generator=torch.Generator().manual_seed(3))]
ANSWERS = (60, 8, 3, 1)  # tokens
STORES = {"on the device": storage_for, "in host memory": OffloadedKV}


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    emulate(monkeypatch)
    prefill_in_chunks(16, monkeypatch)
    return captured_pair("cpu", monkeypatch)


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planners and trees choose at random among what they may choose from."""
    drawn = random.Random(5)

    def best(_: Planner, arm: Any, rates: dict[int, float], single: bool = False) -> int:  # noqa: ARG001
        return drawn.choice(sorted(rates)) if rates else 0

    def fastest(self: TreePlan, accepted: torch.Tensor, costs: Any) -> tuple[int, int]:  # noqa: ARG001
        depth, size = accepted.shape[0] - 1, accepted.shape[1] - 1
        return drawn.choice([*self._sizes(size)]), drawn.choice([*self._depths(depth)])

    monkeypatch.setattr(Planner, "best", best)
    monkeypatch.setattr(Planner, "_appeal", lambda _, plan: drawn.random())  # noqa: ARG005
    monkeypatch.setattr(TreePlan, "_fastest", fastest)


def engine_of(
    pair: Pair, stack: str, storage: Any = storage_for, kept: KVDiskCache | None = None, **options: Any
) -> Engine:
    streams = storage is OffloadedKV
    made = StackOptions(stack, budget=SMALL_BUDGET, streams=streams, **options)
    engine = Engine(pair[0], 500, TextCodec(spell), pair[1], made, kept, storage)
    engine.executor = GraphExecutor(FEW_SIZES) if streams else GraphExecutor()
    return engine


@contextmanager
def nothing_captured(engine: Engine) -> Iterator[None]:
    """Fail if anything is captured meanwhile, and name it."""
    found: list[str] = []
    prepare: Callable[..., None] = Graph.prepare

    def noted(self: Graph[Any], work: Any) -> None:
        if self.captured is None:
            owner = work.__self__
            sizes = {name: value for name, value in vars(owner).items() if isinstance(value, int)}
            given = getattr(owner.inputs, "ids", None)
            rows = owner.inputs.logits.shape[1] if given is None else given.shape[-1]
            found.append(f"{type(owner).__name__} {sizes} of {rows} rows")
        prepare(self, work)

    before = captures_on(engine.target.device).count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "prepare", noted)
        yield
    assert found == []
    assert captures_on(engine.target.device).count == before


def prepare(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> None:
    """Read a prompt; then do what it left no time for."""
    for _ in engine.prefill(prompt, (), sampling):
        pass
    engine.prepare(Request(prompt, 1, sampling))


def converse(engine: Engine, sampling: Sampling) -> None:
    """Answers that end after few or many tokens, and a second turn."""
    for most in ANSWERS:
        said = tokens_of(engine, Request([*PROMPT, 5], most, sampling))
    tokens_of(engine, Request([*PROMPT, 5, *said, *range(7, 20)], ANSWERS[0], sampling))


@pytest.mark.usefixtures("chance")
@pytest.mark.parametrize("fixed", [False, True], ids=["planned", "fixed"])
@pytest.mark.parametrize("where", STORES)
@pytest.mark.parametrize("stack", STACKS)
def test_no_answer_captures_anything(pair: Pair, stack: str, where: str, fixed: bool) -> None:
    sampling = Sampling() if fixed else WARM
    lengths: dict[str, Any] = {"gamma": 5, "draft_gamma": 2} if fixed else {}
    engine = engine_of(pair, stack, STORES[where], **lengths)
    prepare(engine, PROMPT, sampling)
    with nothing_captured(engine):
        converse(engine, sampling)


@pytest.mark.usefixtures("chance")
@pytest.mark.parametrize("where", STORES)
@pytest.mark.parametrize(
    "options",
    [
        {"policy": "attention"},
        {"tree": TreeOptions("sequoia", 12, 4), "gamma": 5},
        {"tree": TreeOptions("sequoia", 12), "gamma": 5},
        {"tree": TreeOptions("specinfer", 12, 4)},
        {"tree": TreeOptions("auto")},
    ],
    ids=["attention", "sequoia", "deep", "specinfer", "auto"],
)
def test_nor_with_trees_and_lists(pair: Pair, options: dict[str, Any], where: str) -> None:
    engine = engine_of(pair, "triforce", STORES[where], **options)
    prepare(engine, PROMPT, WARM)
    with nothing_captured(engine):
        converse(engine, WARM)


@pytest.mark.usefixtures("chance")
@pytest.mark.parametrize("kv", [INT8, INT4], ids=["int8", "int4"])
def test_nor_over_narrow_keys(kv: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    engine = engine_of(captured_pair("cpu", monkeypatch, kv), "auto")
    prepare(engine, PROMPT, WARM)
    with nothing_captured(engine):
        converse(engine, WARM)


@pytest.mark.usefixtures("chance")
@pytest.mark.parametrize("where", STORES)
def test_nor_after_a_kept_book(pair: Pair, where: str, tmp_path: Path) -> None:
    def engine() -> tuple[Engine, KVDiskCache]:
        kept = KVDiskCache(CacheDirectory(tmp_path), b"a model", "tiny")
        return engine_of(pair, "auto", STORES[where], kept), kept

    first, kept = engine()
    prepare(first, PROMPT, WARM)
    kept.writer.finish()
    second, _ = engine()
    assert [*second.prefill(PROMPT, (), WARM)][-1].recalled > len(PROMPT) - 16
    prepare(second, PROMPT, WARM)
    with nothing_captured(second):
        converse(second, WARM)


@pytest.mark.parametrize("where", STORES)
@pytest.mark.parametrize(
    ("stack", "options"),
    [
        ("auto", {}),
        ("triforce", {}),
        ("triforce-int4", {}),
        ("triforce", {"gamma": 20}),
        ("triforce", {"gamma": 15, "draft_gamma": 20}),
        ("triforce", {"draft_gamma": 20}),
        ("triforce", {"tree": TreeOptions("sequoia", 64, 20)}),
        ("triforce", {"tree": TreeOptions("specinfer", 40, 8)}),
        ("triforce", {"tree": TreeOptions("auto")}),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(map(str, given)) or "usual",
)
def test_the_largest_forward_is_known_before_a_stack_is_built(
    pair: Pair, stack: str, options: dict[str, Any], where: str
) -> None:
    """By which its kernels are compiled ahead, while weights are loaded."""
    engine = engine_of(pair, stack, STORES[where], **options)
    prepare(engine, PROMPT, WARM)
    target = engine.target
    rows = {
        size for runner in (target, target.quantized) for made in runner.graphs.made.values() for size in made
    }
    assert max(rows) <= largest_forward(engine.options)


def test_a_level_with_trees_of_one_shape_drafts_no_chains(pair: Pair) -> None:
    """The target is asked about as many tokens as a path has, not as the whole tree."""
    engine = engine_of(pair, "triforce", tree=TreeOptions("specinfer", 40, 8))
    prepare(engine, PROMPT, WARM)
    made = engine.target.graphs.made[buffer_of(engine.full)]
    assert max(made) == 20  # 15 tokens, the one after them, and half a path
