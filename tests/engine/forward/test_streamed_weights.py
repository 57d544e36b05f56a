"""Weights that pass through the device: the same numbers as with all of them there, wherever forwards break off."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support import plain_kernels
from support.caches import answer_of
from support.emulated_graphs import emulate
from support.labs import ARCHITECTURES, SMALL_BUDGET, Lab, perturbed, random_model, spell
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.forward import runner as runner_module
from triforce_chat.engine.forward.grouped_matrix import GroupedMatrix
from triforce_chat.engine.forward.quantized import QuantizedLinear
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.forward.streamed_weights import (
    StreamedWeights,
    matrices_of,
    tensors_of,
    views,
)
from triforce_chat.engine.kernels.quantized_weight import Codes, pack, stacked
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation import speculative
from triforce_chat.engine.speculation.stack_specs import LARGEST_STREAMED
from triforce_chat.engine.speculation.stacks import STREAMED_GAMMA, StackOptions
from triforce_chat.engine.speculation.tree_draft import grafted
from triforce_chat.engine.speculation.tree_plan import LARGEST_PLANNED, TreeOptions
from triforce_chat.errors import UsageError
from triforce_chat.models.rounding import ROLES, rounded

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


# Quantized ones


def in_few_bits(model: Any, mixed: bool) -> Any:
    """The model with quantized matrices; ``mixed``: in every other layer of several formats, and so of another size."""
    for number, layer in enumerate(model.base_model.layers):
        for path in ROLES.values():
            role = path.rpartition(".")[2]
            form = OTHERWISE[role] if mixed and number % 2 == 0 else partial(rounded, kind=Kind.Q4_0)
            layer.set_submodule(path, form(layer.get_submodule(path)))
    return model


def with_minimum(linear: Any) -> QuantizedLinear:
    """A layer of 4-bit integers whose groups have a minimum."""
    groups = linear.weight.detach().unflatten(1, (-1, 32))
    least, most = groups.amin(2), groups.amax(2)
    scale = (most - least) / 15
    numbers = ((groups - least[..., None]) / scale[..., None]).round().flatten(1)
    return QuantizedLinear(
        GroupedMatrix(pack(Codes.BITS_4, numbers.to(torch.int16), scale, least), torch.float32), linear.bias
    )


OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "q_proj": with_minimum,
    "k_proj": with_minimum,
    "v_proj": partial(rounded, kind=Kind.Q8_0),
    "o_proj": lambda linear: linear,
    "gate_proj": with_minimum,
    "up_proj": with_minimum,
    "down_proj": partial(rounded, kind=Kind.Q8_0),
}


def few_bits_model(mixed: bool, architecture: str = "qwen2") -> Any:
    torch.manual_seed(7)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    return in_few_bits(random_model(architecture, num_hidden_layers=LAYERS, **sizes), mixed)


@pytest.mark.parametrize("mixed", [False, True])
def test_quantized_matrices_lie_in_host_memory_byte_for_byte(mixed: bool) -> None:
    layers, weights = few_bits_model(mixed).base_model.layers, StreamedWeights(torch.device("cpu"), 1)
    expected = [[each.clone() for each in tensors_of(matrices_of(layer))] for layer in layers]
    for number, layer in enumerate(layers):
        weights.take(number, layer)
    for home, layer, own in zip(weights.homes, layers[1:], expected[1:], strict=True):
        assert home.nbytes == sum(each.nbytes for each in own)
        for found in (views(own, home), tensors_of(matrices_of(layer))):
            assert all(mine.dtype == theirs.dtype for mine, theirs in zip(found, own, strict=True))
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, own, strict=True))
    assert len({home.nbytes for home in weights.homes}) == 1 + mixed
    weights.attach(layers)
    assert {each.nbytes for each in weights.buffers} == {max(home.nbytes for home in weights.homes)}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("resident", RESIDENT)
def test_captured_forwards_copy_quantized_layers(fused: str, resident: int, mixed: bool) -> None:
    model = few_bits_model(mixed)
    there, made = (streaming(model, layers, fused) for layers in (LAYERS, resident))
    assert made.captures
    for _ in range(2):  # graphs are captured, and then replayed
        for mine, theirs in zip(logits_of(made), logits_of(there), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("resident", [0, 3])
def test_modules_multiply_quantized_layers_that_pass(resident: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_kernels.replace(monkeypatch)
    model = few_bits_model(mixed=True, architecture="llama")
    there, made = (streaming(model, layers) for layers in (LAYERS, resident))
    for mine, theirs in zip(logits_of(made), logits_of(there), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("mixed", [False, True])
def test_what_is_multiplied_at_once_is_no_copy_of_the_buffers(fused: str, mixed: bool) -> None:
    runner = streaming(few_bits_model(mixed), 1, fused)
    assert runner.decoder is not None
    assert runner.streamed is not None
    buffers = {each.untyped_storage().data_ptr() for each in runner.streamed.buffers}
    for block in runner.decoder.blocks:
        multiplied = [block.qkv_proj, block.o_proj, block.gate_up_proj, block.down_proj]
        tensors = [tensor for each in multiplied for tensor in multiplied_by(each)]
        (place,) = {each.untyped_storage().data_ptr() for each in tensors}
        assert (place in buffers) == (block.number > 0)
        assert mixed or len(tensors) == 2 * len(multiplied)


def multiplied_by(linear: Any) -> list[Tensor]:
    """The tensors of a fused linear layer."""
    if hasattr(linear, "parts"):
        return [tensor for part in linear.parts for tensor in multiplied_by(part)]
    weight = linear.weight
    return [weight] if isinstance(weight, Tensor) else [weight.data, weight.scale]


@pytest.mark.parametrize("tree", ["chain", "sequoia"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_over_quantized_layers_that_pass(fused: str, temperature: float, tree: str) -> None:
    model, told_by = few_bits_model(mixed=True, architecture="llama"), []
    for resident in (LAYERS, 2):
        torch.manual_seed(12)
        draft = Runner(random_model(num_hidden_layers=1, head_dim=16).to(fused))
        options = StackOptions("naive", gamma=4, tree=TreeOptions(tree, 10, 4) if tree != "chain" else None)
        engine = Engine(streaming(model, resident, fused), 400, TextCodec(spell), draft, options)
        engine.executor = GraphExecutor()
        told_by.append([told(engine, PROMPT[:n], Sampling(temperature, seed=n)) for n in (40, 25)])
    assert told_by[0] == told_by[1]


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


@pytest.mark.parametrize(("size", "depth"), [(20, 4), (150, 8)])
def test_what_lookup_finds_joins_captured_trees(
    fused: str, size: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(11)
    model = random_model(num_hidden_layers=LAYERS, head_dim=16)
    draft, joined = Runner(perturbed(copy.deepcopy(model), 0.5).to(fused)), []

    def noted(draft: Draft, branch: Tensor) -> Draft:
        made = grafted(draft, branch)
        joined.append((len(draft), len(made)))
        return made

    monkeypatch.setattr(speculative, "grafted", noted)
    tree = TreeOptions("sequoia", size, depth)
    target = streaming(model, 0, fused)
    engine = Engine(target, 600, TextCodec(spell), draft, StackOptions("naive", tree=tree))
    engine.executor = GraphExecutor()
    plain = Engine(Runner(model.to(fused)), 600, TextCodec(spell), None, StackOptions("autoregressive"))
    prompt = [*PROMPT[:40], *PROMPT[:40], *PROMPT[:30]]
    for n in (200, 60):
        assert answer_of(engine, prompt, n) == answer_of(plain, prompt, n)
    assert any(before < after <= size for before, after in joined)


def test_auto_drafts_longer_and_without_a_middle_level(deep: Lab) -> None:
    engine = engine_of(deep, streaming(deep.stock, 0), "auto", gamma=None, draft_gamma=None)
    assert engine.top.planner.most == STREAMED_GAMMA
    assert [arm.drafter.name for arm in engine.top.planner.arms] == ["draft"]
    prompt = deep.text(50)
    assert answer_of(engine, prompt, 40) == deep.greedy(prompt, 40)


@pytest.mark.parametrize(("resident", "most"), [(0, LARGEST_STREAMED), (None, LARGEST_PLANNED)])
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
