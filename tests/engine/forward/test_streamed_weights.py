"""Weights that pass through the device: the same numbers as with all of them there, wherever forwards break off."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from support import plain_kernels
from support.caches import answer_of
from support.emulated_graphs import emulate
from support.labs import ARCHITECTURES, SMALL_BUDGET, Lab, perturbed, random_model, spell
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.forward import runner as runner_module
from triforce_chat.engine.forward.fused import stacked
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.forward.streamed_weights import StreamedWeights, matrices_of
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.stacks import STREAMED_GAMMA, StackOptions
from triforce_chat.engine.speculation.tree_plan import LARGEST_PLANNED, TreeOptions
from triforce_chat.errors import UsageError

LAYERS = 5
RESIDENT = (0, 1, 2, 3, 4)
PLACES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PROMPT = [int(token) for token in torch.randint(1, 48, (70,), generator=torch.Generator().manual_seed(3))]


def streaming(model: Any, resident: int, device: str = "cpu") -> Runner:
    """A runner whose first layers stay on the device; the others come there for each forward."""
    model = copy.deepcopy(model)
    weights = StreamedWeights(torch.device(device), resident)
    for number, layer in enumerate(model.base_model.layers):
        weights.take(number, layer)
    for name, part in model.base_model.named_children():
        if name != "layers":
            part.to(device)
    model.lm_head.to(device)
    return Runner(model, streamed=weights)


@pytest.fixture(scope="module")
def deep() -> Lab:
    return Lab.of(seed=4, num_hidden_layers=LAYERS)


@pytest.fixture(params=PLACES)
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device where blocks are fused and their forwards are captured, on a CPU by torch's own arithmetic."""
    pytest.importorskip("triton")
    if request.param == "cpu":
        plain_kernels.replace(monkeypatch)
        emulate(monkeypatch)
    monkeypatch.setattr(runner_module, "fusible", lambda _: True)
    device: str = request.param
    return device


def logits_of(runner: Runner, parts: tuple[int, ...] = (30, 1, 5, 1, 20, 2)) -> list[Tensor]:
    """Of a prefill and forwards of some sizes after it."""
    cache = FullCache(runner.shape, 128)
    ids = torch.tensor(PROMPT, device=runner.device)
    first, *others = ids.split([*parts, len(ids) - sum(parts)])
    runner.prefill(first, cache)
    return [runner(part[None], cache, len(part))[0].clone() for part in others]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("resident", RESIDENT)
def test_the_logits_are_the_same_bit_by_bit(architecture: str, resident: int) -> None:
    torch.manual_seed(5)
    model = random_model(architecture, num_hidden_layers=LAYERS)
    expected = logits_of(streaming(model, LAYERS))
    for mine, theirs in zip(logits_of(streaming(model, resident)), expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("resident", RESIDENT)
def test_captured_forwards_contain_their_copies(fused: str, resident: int) -> None:
    torch.manual_seed(6)
    model = random_model("qwen2", num_hidden_layers=LAYERS, head_dim=16)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_(0, 0.3)
    there, made = Runner(copy.deepcopy(model).to(fused)), streaming(model, resident, fused)
    assert made.captures
    for _ in range(2):  # graphs are captured, and then replayed
        for mine, theirs in zip(logits_of(made), logits_of(there), strict=True):
            assert torch.equal(mine, theirs)


def test_nothing_but_two_layers_is_on_the_device() -> None:
    runner = streaming(random_model(num_hidden_layers=LAYERS), 1)
    homes = runner.streamed.homes if runner.streamed else []
    places = [
        matrix.weight.untyped_storage().data_ptr() for layer in far(runner) for matrix in matrices_of(layer)
    ]
    assert len({*places}) == 2
    assert len(homes) == LAYERS - 1
    size = sum(
        weight.nbytes for weight in runner.model.base_model.layers[0].parameters() if weight.dim() == 2
    )
    assert [home.nbytes for home in homes] == 4 * [size]


def test_each_forward_copies_each_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two for the next forward already."""
    runner, fetched, fetch = (
        streaming(random_model(num_hidden_layers=LAYERS), 1),
        list[int](),
        StreamedWeights._fetch,
    )

    def counted(weights: StreamedWeights, at: int) -> None:
        fetched.append(at)
        fetch(weights, at)

    monkeypatch.setattr(StreamedWeights, "_fetch", counted)
    assert len(logits_of(runner)) == 6
    assert fetched == [0, 1, *7 * [2, 3, 0, 1]]


def far(runner: Runner) -> list[Any]:
    return list(runner.model.base_model.layers[1:])


def test_weights_that_follow_one_another_are_merged_where_they_are() -> None:
    whole = torch.arange(60.0)
    first, second = whole[:20].view(5, 4), whole[20:48].view(7, 4)
    both = stacked([first, second])
    assert both.data_ptr() == whole.data_ptr()
    assert torch.equal(both, whole[:48].view(12, 4))
    for parts in ([second, first], [first, whole[24:48].view(6, 4)], [first, second.clone()]):
        apart = stacked(parts)
        assert apart.data_ptr() != parts[0].data_ptr()
        assert torch.equal(apart, torch.cat(parts))


# Whole engines


def engine_of(lab: Lab, target: Runner, stack: str, storage: Any = KVBuffer, **more: Any) -> Engine:
    options = {"gamma": 4, "draft_gamma": 2, "budget": SMALL_BUDGET, **more}
    return Engine(target, 400, TextCodec(spell), lab.draft, StackOptions(stack, **options), storage=storage)


def told(engine: Engine, prompt: list[int], sampling: Sampling) -> list[Any]:
    events = engine.answer(Request(prompt, 24, sampling))
    return [event for event in events if isinstance(event, Text | Verified)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("storage", [KVBuffer, OffloadedKV])
@pytest.mark.parametrize("stack", ["naive", "lookup", "autoregressive"])
def test_every_stack_says_and_does_the_same(deep: Lab, stack: str, storage: Any, temperature: float) -> None:
    there, away = (
        engine_of(deep, streaming(deep.stock, resident), stack, storage) for resident in (LAYERS, 1)
    )
    prompt = deep.text(70)
    for turn in range(2):
        sampling = Sampling(temperature, seed=turn)
        assert told(away, prompt, sampling) == told(there, prompt, sampling)
        prompt = [*there.cached, *deep.text(9, seed=turn)]


@pytest.mark.parametrize("kind", ["sequoia", "specinfer", "auto"])
def test_trees_are_verified_as_ever(deep: Lab, kind: str) -> None:
    tree = TreeOptions(kind, 10, 4)
    engine = engine_of(deep, streaming(deep.stock, 2), "naive", tree=tree)
    prompt = deep.text(60)
    assert answer_of(engine, prompt, 40) == deep.greedy(prompt, 40)


@pytest.mark.parametrize("kind", ["sequoia", "auto"])
def test_captured_trees_are_verified_as_ever(fused: str, kind: str) -> None:
    torch.manual_seed(11)
    model = random_model(num_hidden_layers=LAYERS, head_dim=16)
    draft = Runner(perturbed(copy.deepcopy(model), 0.1).to(fused))
    whole = Runner(copy.deepcopy(model).to(fused))
    tree = TreeOptions(kind, 10, 4)
    plain = Engine(whole, 400, TextCodec(spell), None, StackOptions("autoregressive"))
    for resident in (0, 3):
        target = streaming(model, resident, fused)
        engine = Engine(target, 400, TextCodec(spell), draft, StackOptions("naive", tree=tree))
        engine.executor = GraphExecutor()
        for n in (40, 25):
            assert answer_of(engine, PROMPT[:n], 60) == answer_of(plain, PROMPT[:n], 60)


def test_auto_drafts_longer_and_without_a_middle_level(deep: Lab) -> None:
    engine = engine_of(deep, streaming(deep.stock, 0), "auto", gamma=None, draft_gamma=None)
    assert engine.top.planner.most == STREAMED_GAMMA
    assert [arm.drafter.name for arm in engine.top.planner.arms] == ["draft"]
    prompt = deep.text(50)
    assert answer_of(engine, prompt, 40) == deep.greedy(prompt, 40)


@pytest.mark.parametrize(("resident", "most"), [(0, MAX_TREE), (None, LARGEST_PLANNED)])
def test_planned_trees_may_be_larger(deep: Lab, resident: int | None, most: int) -> None:
    target = deep.target if resident is None else streaming(deep.stock, resident)
    engine = engine_of(deep, target, "naive", gamma=None, tree=TreeOptions("auto"))
    assert engine.top.planner.trees is not None
    assert engine.top.planner.trees.options.most == most


@pytest.mark.parametrize("stack", ["triforce", "triforce-int4", "retrieval", "streaming"])
def test_a_level_that_would_read_the_same_weights_is_refused(deep: Lab, stack: str) -> None:
    with pytest.raises(
        UsageError, match=f"the stack '{stack}' has a level below the target with the same weights"
    ):
        engine_of(deep, streaming(deep.stock, 0), stack)


@pytest.mark.parametrize("resident", [0, 2])
def test_an_interrupt_at_any_layer(deep: Lab, resident: int, monkeypatch: pytest.MonkeyPatch) -> None:
    luck, prompt = random.Random(7), deep.text(40)
    engine = engine_of(deep, streaming(deep.stock, resident), "auto")
    for turn in range(9):
        with monkeypatch.context() as patch:
            break_off(patch, luck.randrange(1, 60), late=turn % 2 == 1)
            with pytest.raises(KeyboardInterrupt):
                answer_of(engine, prompt, 100)
        prompt = [*engine.cached[: luck.choice([30, 200])], *deep.text(luck.choice([1, 12]), seed=turn)]
        assert answer_of(engine, prompt, 12) == deep.greedy(prompt, 12)


def break_off(patch: pytest.MonkeyPatch, call: int, late: bool) -> None:
    """Press Ctrl-C before or after the weights of a layer are brought: that of the given call from now on."""
    bring, calls = StreamedWeights.bring, iter(range(1, 10_000))

    def broken(weights: StreamedWeights, layer: int) -> None:
        now = next(calls) == call
        if now and not late:
            raise KeyboardInterrupt
        bring(weights, layer)
        if now:
            raise KeyboardInterrupt

    patch.setattr(StreamedWeights, "bring", broken)


# On a GPU


@pytest.mark.gpu
def test_a_forward_that_broke_off_leaves_no_copy_that_spoils_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replays come right after eager forwards whose copies were on their way."""
    torch.manual_seed(8)
    model = random_model(num_hidden_layers=LAYERS, hidden_size=1024, intermediate_size=4096, head_dim=64)
    there, made = Runner(copy.deepcopy(model).to("cuda")), streaming(model, 0, "cuda")
    if not made.captures:
        pytest.skip("no fused blocks here")
    ids = torch.tensor(PROMPT, device="cuda")
    caches = [FullCache(runner.shape, 128) for runner in (there, made)]
    for runner, cache in zip((there, made), caches, strict=True):
        runner.prefill(ids[:30], cache)
        runner(ids[None, 30:31], cache, 1)  # captures
    for call in range(1, LAYERS + 1):
        with monkeypatch.context() as patch:
            break_off(patch, call, late=True)
            with pytest.raises(KeyboardInterrupt):
                made.prefill(ids, FullCache(made.shape, 128))
        here = slice(30 + call, 31 + call)
        mine, theirs = (
            runner(ids[None, here], cache, 1)
            for runner, cache in zip((made, there), caches[::-1], strict=True)
        )
        assert torch.equal(mine, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("storage", [KVBuffer, OffloadedKV])
@pytest.mark.parametrize("stack", ["auto", "naive", "lookup"])
def test_answers_on_a_gpu_are_those_of_plain_decoding_there(stack: str, storage: Any) -> None:
    torch.manual_seed(11)
    model = random_model(num_hidden_layers=LAYERS, head_dim=16).to("cuda")
    draft, whole = Runner(perturbed(model, 0.02)), Runner(copy.deepcopy(model))
    plain = Engine(whole, 512, TextCodec(spell), None, StackOptions("autoregressive"), storage=storage)
    target = streaming(model, 1, "cuda")
    engine = Engine(target, 512, TextCodec(spell), draft, StackOptions(stack), storage=storage)
    for n in (70, 30):
        assert answer_of(engine, PROMPT[:n], 100) == answer_of(plain, PROMPT[:n], 100)
