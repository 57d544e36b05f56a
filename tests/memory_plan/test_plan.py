"""Memory plans against real tensors: weights and caches take what was planned, to the byte."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support import emulated_graphs
from support.caches import buffer_of
from support.labs import ARCHITECTURES, Lab, random_model
from torch import nn

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.in_place import InPlaceCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.quantization import BITS, FP8, INT4, INT8
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.forward.onednn import PackedLinear
from triforce_chat.engine.forward.quantized import QuantizedLayer
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.forward.streamed_weights import StreamedWeights
from triforce_chat.engine.gathered import Gathered
from triforce_chat.engine.prefix_cache import PREFILL_CHUNK
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.speculation import stacks
from triforce_chat.engine.speculation.stack_specs import LARGEST_STREAMED, STACKS
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import LARGEST_PLANNED, TreeOptions
from triforce_chat.engine.together import Places
from triforce_chat.errors import UsageError
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan.batch import plan_batch
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.inputs import (
    CPU,
    GPU,
    of_several,
    small_caches,
    workload_of,
)
from triforce_chat.memory_plan.messages import plan_line, rows, verdict, weights_line
from triforce_chat.memory_plan.plan import (
    CONTEXT_STEP,
    DRAFT,
    MIDDLE_LEVEL,
    SPARE,
    Memory,
    MemoryPlan,
    largest_context,
    other_way,
    place_kv,
    resident_layers,
    with_resident_weights,
)
from triforce_chat.memory_plan.rounded import stored_of
from triforce_chat.memory_plan.workload import TREE_COPIES, Workload
from triforce_chat.models import published
from triforce_chat.models.describe import Description
from triforce_chat.models.presets import PRESETS
from triforce_chat.models.registry import resolve
from triforce_chat.models.shapes import find_shape
from triforce_chat.models.stored_format import StoredWeights
from triforce_chat.settings.settings import Settings
from triforce_chat.settings.sizes import readable

GB = 10**9
# Whole numbers of the blocks that oneDNN packs weights in, so that packing pads nothing.
TREES_OF_100 = TreeOptions("sequoia", 100)
EVEN: dict[str, Any] = {
    "vocabulary": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def kv_bytes(cache: FullCache) -> int:
    buffer = buffer_of(cache)
    return bytes_of(buffer.keys, buffer.values)


def held(model: nn.Module) -> int:
    """Bytes of a model's weights, including packed copies and quantized blocks."""
    tensors = (
        tensor
        for module in model.modules()
        if isinstance(module, QuantizedLayer)
        for _, tensor in module.matrix.tensors()
    )
    blocks = {tensor.data_ptr(): tensor for tensor in tensors}
    packed = [module.packed for module in model.modules() if isinstance(module, PackedLinear)]
    return bytes_of(*model.parameters(), *blocks.values()) + sum(
        int(torch.ops.mkldnn._nbytes(weight)) for weight in packed
    )


def description(model: Any, context: int = 1024) -> Description:
    return Description("tiny", model.config.to_dict(), context, {})


def workload(
    fields: Mapping[str, Any],
    context: int = 131_072,
    device: torch.device = GPU,
    dtype: torch.dtype = torch.bfloat16,
    gpus: int = 1,
    stack: str = "auto",
) -> Workload:
    return workload_of(
        Description("m", fields, context, {}), None, context, StackOptions(stack), device, dtype, gpus
    )


# Weights


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}, {"mlp_bias": True}], ids=str
)
def test_parameters_are_counted_as_transformers_makes_them(
    architecture: str, changes: dict[str, Any]
) -> None:
    model = random_model(architecture, **changes)
    real = sum(weight.numel() for weight in model.parameters())
    assert Dimensions.of(model.config.to_dict()).parameters() == real


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_gpu_holds_its_share_of_what_transformers_divides(architecture: str, gpus: int) -> None:
    model = random_model(architecture)
    divided = {name.rpartition(".")[2] for name in model.base_model._tp_plan} - {"q_norm", "k_norm"}

    def share(name: str, weight: torch.Tensor) -> int:
        part = name.split(".")[-2]
        whole = part not in {*divided, "lm_head"} or (
            name.endswith("bias") and part in ("o_proj", "down_proj")
        )
        return weight.numel() // (1 if whole else gpus)

    real = sum(share(name, weight) for name, weight in model.named_parameters())
    assert Dimensions.of(model.config.to_dict()).parameters(gpus) == real


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        (published.SMOLLM2_135M, 134_515_008),
        (published.LLAMA_2_7B, 6_738_415_616),
        (published.LLAMA_2_13B, 13_015_864_320),
        (published.LLAMA_3_1_8B, 8_030_261_248),
        (published.CODELLAMA_34B, 33_743_970_304),
        (published.LLAMA_2_70B, 68_976_648_192),
        (published.LLAMA_3_2_1B, 1_235_814_400),
        (published.QWEN2_5_7B, 7_615_616_512),
        (published.QWEN2_5_0_5B, 494_032_768),
        (published.QWEN3_8B, 8_190_735_360),
        (published.MISTRAL_7B, 7_248_023_552),
    ],
)
def test_published_models_have_as_many_parameters_as_their_authors_say(
    fields: Mapping[str, Any], numbers: int
) -> None:
    assert Dimensions.of(fields).parameters() == numbers


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_every_preset_is_counted_as_transformers_makes_it(preset: Any) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {**preset.sizes, "num_hidden_layers": 2}
    del fields["model_type"]
    config = AutoConfig.for_model(preset.sizes["model_type"], **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    real = sum(weight.numel() for weight in model.parameters())
    assert Dimensions.of({**preset.sizes, "num_hidden_layers": 2}).parameters() == real
    size = float(preset.parameters[:-1]) * {"B": 1e9, "M": 1e6}[preset.parameters[-1]]
    assert Dimensions.of(preset.sizes).parameters() == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_8_bit_copies_have_a_byte_for_each_number_of_a_matrix(architecture: str) -> None:
    model = random_model(architecture)
    work = workload(model.config.to_dict(), 100)
    numbers = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear))
    assert work.int8_copies == numbers


def test_8_bit_copies_are_made_where_there_is_room() -> None:
    def planned(gigabytes: int, middle: str = "auto", stack: str = "auto", **changes: Any) -> MemoryPlan:
        options = replace(StackOptions(stack), middle=middle)
        described = Description("m", published.LLAMA_3_1_8B, 8192, {})
        work = workload_of(described, None, 8192, options, GPU, torch.bfloat16)
        return MemoryPlan(replace(work, **changes), Memory(gigabytes * GB, GB), 32)

    copies = planned(80).workload.int8_copies
    assert planned(80).optional_copies == copies > 7 * GB
    remarks = {name: remark for name, _, remark in rows(planned(80), None)}
    assert remarks["total"].endswith("; 7.5 GB more for 8-bit copies of the weights, as there is room")
    without = [
        planned(24),
        planned(80, "full"),
        planned(80, stack="lookup"),
        planned(80, gpu_layers=30),
        planned(80, stored=stored_of(Dimensions.of(published.LLAMA_3_1_8B), 2, Kind.Q4_0)),
    ]
    assert [each.optional_copies for each in without] == [0] * 5
    asked = planned(24, "int8")
    assert (asked.optional_copies, asked.device) == (0, planned(24).device + copies)
    assert not asked.fits
    assert planned(24).fits
    (remark,) = (remark for name, _, remark in rows(asked, None) if name == "weights")
    assert remark == "7.5 GB of them 8-bit copies for the middle level"


# Real engines


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_engine_takes_what_was_planned(dtype: torch.dtype, tied: bool) -> None:
    model = random_model(**EVEN, tie_word_embeddings=tied).to(dtype)
    small = random_model(**{**EVEN, "num_hidden_layers": 1}).to(dtype)
    options = StackOptions("triforce", gamma=4, draft_gamma=2)
    plan = workload_of(description(model), description(small), 700, options, CPU, dtype)
    engine = Engine(Runner(model), 700, TextCodec(str), Runner(small), options)
    middle: Any = engine.top.planner.arms[0].drafter
    assert plan.weights == held(model)
    full = engine.full
    assert plan.layer_kv * 2 == kv_bytes(full)
    assert plan.latest_queries == bytes_of(full.queries.data)
    buffer, streaming = middle.cache.storage, middle.planner.arms[0].drafter.cache.storage
    assert plan.draft_bytes == held(small) + bytes_of(streaming.keys, streaming.values)
    assert plan.retrieval > bytes_of(buffer.keys, buffer.values)
    assert MemoryPlan(plan, Memory(None, None), 2).kv == plan.layer_kv * 2 + plan.latest_queries


@pytest.mark.parametrize("shared", [0, 512])
@pytest.mark.parametrize(
    ("stack", "tree"), [("auto", None), ("naive", None), ("naive", TREES_OF_100), ("triforce", None)]
)
def test_sequences_of_a_batch_take_what_was_planned(
    monkeypatch: pytest.MonkeyPatch, stack: str, tree: TreeOptions | None, shared: int
) -> None:
    """And nothing stands beside them: no cache of the engine's own that none of them reads."""
    monkeypatch.setattr(Runner, "places_on_device", True)  # so that auto drafts
    target, draft = Runner(random_model(**EVEN)), Runner(random_model(**{**EVEN, "num_hidden_layers": 1}))
    options = StackOptions(stack, gamma=4, draft_gamma=2, tree=tree)
    origin = Engine(target, 1024, TextCodec(str), draft, options)
    origin.give_way(shared)
    for _ in origin.prefill(shared * [1]) if shared else ():
        pass
    places = Places.of(origin, [Request(900 * [1], 100)] * 3, 3, shared=shared)
    forks = [places.fork(number, Gathered()) for number in range(3)]
    alone = workload_of(
        description(target.model), description(draft.model), 1024, options, CPU, torch.float32
    )
    made = of_several(alone, options, 3, apart=not shared)
    plan = plan_batch(MemoryPlan(alone, Memory(None, None), 2), made, 3, places.context, shared)
    sizes = {
        "full": sum(bytes_of(fork.full.queries.data) for fork in forks),
        "draft": 0,
        "retrieval": 0,
    }
    for role, pool in origin.pools.items():
        kind = "full" if role == "full" else "draft" if pool.shape is draft.shape else "retrieval"
        sizes[kind] += bytes_of(pool.keys, pool.values)
    assert 3 * plan.own_parts["kv"] == sizes["full"]
    assert 3 * plan.own_parts["draft"] == sizes["draft"] > 0
    assert 3 * plan.own_parts["retrieval"] >= sizes["retrieval"]
    assert (sizes["retrieval"] > 0) is (stack == "triforce")
    gc.collect()
    beside = [
        each
        for each in gc.get_objects()
        if type(each) is KVBuffer and each.pool is None and each.shape in (target.shape, draft.shape)
    ]
    kept = bytes_of(*(part for each in beside for part in (each.keys, each.values)))
    assert kept == (kv_bytes(origin.full) if shared else 0)


@pytest.mark.parametrize(
    ("stack", "sequences", "shared"),
    [("naive", 8, 0), ("auto", 8, 0), ("triforce", 8, 0), ("triforce", 16, 512)],
)
def test_graphs_that_verify_chains_are_planned_for_each_sequence(
    monkeypatch: pytest.MonkeyPatch, stack: str, sequences: int, shared: int
) -> None:
    emulated_graphs.emulate(monkeypatch)
    target, draft = emulated_graphs.captured_pair("cpu", monkeypatch)
    options = StackOptions(stack)
    origin = Engine(target, 1024, TextCodec(str), draft, options)
    origin.give_way(shared)
    origin.executor = graphs = GraphExecutor()
    for _ in origin.prefill(shared * [1]) if shared else ():
        pass
    requests = [Request(900 * [1], 100)] * sequences
    for prepare in Places.of(origin, requests, sequences, shared=shared).preparations(requests[:1]):
        prepare()
    taken = sum(each.nbytes for sizes in graphs.made.values() for each in sizes.values())
    own, small = description(target.model), description(draft.model)
    alone = workload_of(own, small, 1024, options, GPU, torch.float32)
    made = of_several(alone, options, sequences, apart=not shared)
    row = target.vocabulary * (4 + 4 + 4)
    assert 0.7 < taken / (made.layout.graph_rows * row) < 1
    assert made.layout.graph_rows > alone.layout.graph_rows
    assert made.activations - alone.activations == (made.layout.graph_rows - alone.layout.graph_rows) * row


def test_sequences_without_drafts_verify_one_row_each() -> None:
    own = Description("m", published.LLAMA_2_7B, 4096, {})
    for stack in ("auto", "autoregressive"):
        options = StackOptions(stack)
        made = workload_of(own, None, 4096, options, GPU, torch.bfloat16)
        assert of_several(made, options, 400, apart=True).layout.graph_rows == 400
        on_cpu = workload_of(own, None, 4096, options, CPU, torch.float32)
        assert of_several(on_cpu, options, 400, apart=True).layout.graph_rows == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lists_of_slots_take_what_was_planned_and_no_second_cache(dtype: torch.dtype) -> None:
    model, copies = random_model(**EVEN).to(dtype), StackOptions("triforce", gamma=4, draft_gamma=2)
    options = replace(copies, policy="attention")
    plan, other = (
        workload_of(description(model), None, 4096, each, CPU, dtype) for each in (options, copies)
    )
    whole = place_kv(plan, Memory(None, None))
    assert whole.lists
    assert not place_kv(other, Memory(None, None)).lists
    assert whole.parts["retrieval"] == plan.lists
    engine = Engine(Runner(model), 4096, TextCodec(str), None, options)
    middle: Any = engine.top.planner.arms[0].drafter
    assert isinstance(middle.cache, InPlaceCache)
    taken = bytes_of(middle.cache.slots, middle.cache.mass)
    assert taken < plan.lists < other.retrieval


@pytest.mark.parametrize(
    ("policy", "chunk", "kv", "in_place"),
    [
        ("mean", 8, None, False),
        ("attention", 8, None, True),
        ("attention", 12, None, False),
        ("attention", 8, torch.int8, False),
    ],
)
def test_a_gpu_needs_no_second_cache_where_forwards_weigh(
    policy: str, chunk: int, kv: torch.dtype | None, in_place: bool
) -> None:
    options = StackOptions("triforce", policy=policy, budget=Budget(tokens=4096, chunk=chunk))
    described = Description("m", published.LLAMA_2_7B, 131_072, {})
    work = workload_of(described, None, 124_928, options, GPU, torch.bfloat16, kv=kv)
    plan = MemoryPlan(work, Memory(None, None), 32)
    second = 2 * 32 * 4096 * 4096 * 2  # keys and values of 4,096 tokens
    assert plan.lists == in_place
    assert (plan.parts["retrieval"] < second / 4) == in_place
    assert (
        MemoryPlan(work, Memory(None, None), 31).parts["retrieval"] > second
    )  # some layers stream: it is copied


@pytest.mark.parametrize(("kv", "share"), [(FP8, 0.5), (INT8, 0.5), (INT4, 0.25)], ids=str)
def test_narrow_keys_take_their_share_on_a_gpu(kv: torch.dtype, share: float) -> None:
    """Of what bfloat16 takes; a chunk of the prefill needs room for the numbers of one layer."""
    described = Description("m", published.LLAMA_2_7B, 131_072, {})
    usual, narrow = (
        workload_of(described, None, 124_928, StackOptions("lookup"), GPU, torch.bfloat16, kv=each)
        for each in (None, kv)
    )
    scales = 0.035 if kv in BITS else 0
    assert share <= narrow.layer_kv / usual.layer_kv <= share + scales
    one_layer = 2 * 124_928 * 4096 * 2
    assert narrow.activations - usual.activations > 0.6 * one_layer


@pytest.mark.parametrize("offload", ["never", "auto", "always"])
def test_quantized_keys_never_go_to_host_memory(offload: Any) -> None:
    described = Description("m", published.LLAMA_2_7B, 131_072, {})
    work = workload_of(described, None, 124_928, StackOptions("lookup"), GPU, torch.bfloat16, kv=INT8)
    plan = place_kv(work, Memory(24 * GB, 512 * GB), offload)
    assert (plan.verdict, plan.offloaded) == ("does not fit", False)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_the_small_model_takes_what_was_planned(dtype: str) -> None:
    from triforce_chat.models.describe import as_stored, describe_source

    engine, loaded = load_engine(EngineSpec(Settings(model="small", device="cpu", context=4096, dtype=dtype)))
    described = describe_source(resolve("small"))
    if loaded.stored:
        described = as_stored(described, CPU, torch.float32)
    assert (dtype == "float32") == (loaded.stored is None)
    plan = workload_of(
        described, None, 4096, StackOptions(), CPU, torch.float32, kv=engine.target.shape.kv_dtype
    )
    assert plan.weights == held(loaded.model)
    assert plan.layer_kv * 30 == kv_bytes(engine.full)


@pytest.mark.parametrize("name", STACKS)
def test_every_stack_has_the_caches_that_are_planned(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made: list[type] = []

    def counted(kind: type) -> Callable[..., Any]:
        def build(*arguments: Any, **more: Any) -> Any:
            made.append(kind)
            return kind(*arguments, **more)

        return build

    for kind in (RetrievalCache, StreamingCache):
        monkeypatch.setattr(stacks, kind.__name__, counted(kind))
    lab.engine(name)
    spec = STACKS[name]
    assert made.count(RetrievalCache) == spec.retrieval_caches
    assert made.count(StreamingCache) == spec.draft_caches


class Meter:
    """The peak of torch's allocations within the block, in bytes."""

    def __enter__(self) -> Meter:
        self.profile = torch.profiler.profile(
            profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
        )
        self.profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.profile.__exit__(*error)
        there = self.most = 0
        profiler: Any = self.profile.profiler
        events = profiler.kineto_results.events()
        for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
            there += event.nbytes()
            self.most = max(self.most, there)


@pytest.mark.parametrize("context", [1024, 16_384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {"intermediate_size": 1024, "hidden_size": 256, "head_dim": 32},
        {"hidden_size": 512, "num_key_value_heads": 8},
    ],
    ids=["grouped", "plain"],
)
def test_a_chunk_of_the_prefill_takes_about_what_is_planned(
    changes: dict[str, Any], dtype: torch.dtype, context: int
) -> None:
    runner = Runner(random_model(**{**EVEN, **changes}).to(dtype))
    cache = FullCache(runner.shape, context + SLACK)
    cache.length = context - PREFILL_CHUNK
    plan = workload_of(description(runner.model), None, context, StackOptions(), CPU, dtype)
    with Meter() as meter:
        runner.prefill(torch.zeros(PREFILL_CHUNK, dtype=torch.long), cache)
    assert 0.9 * meter.most < plan.activations < 1.5 * meter.most


# Verdicts


def enough(plan: MemoryPlan) -> Memory:
    """A device on which ``plan`` just fits."""
    return Memory(int(plan.device / (1 - SPARE)) + 1, 10**15)


@pytest.mark.parametrize(("offload", "verdict"), [("never", "does not fit"), ("auto", "offloaded")])
def test_the_last_byte_decides(offload: Any, verdict: str) -> None:
    all_of_it = place_kv(workload(published.QWEN3_8B), Memory(None, None))
    assert all_of_it.verdict == "fits"
    there = enough(all_of_it)
    assert there.device is not None
    assert place_kv(all_of_it.workload, there, offload).verdict == "fits"
    less = Memory(there.device - 3, there.host)
    assert place_kv(all_of_it.workload, less, offload).verdict == verdict


def test_as_many_layers_as_fit_stay_on_the_device() -> None:
    seven = workload(published.LLAMA_2_7B)
    for gigabytes in (22, 24, 40, 80, 90, 120):
        memory = Memory(gigabytes * GB, 128 * GB)
        n = resident_layers(seven, memory)
        assert n == 0 or MemoryPlan(seven, memory, n).fits_device
        assert n == 32 or not MemoryPlan(seven, memory, n + 1).fits_device
        plan = place_kv(seven, memory)
        assert plan.resident == n
        assert plan.host == (32 - n) * seven.layer_kv
        passing = min(2, 32 - n)
        assert plan.kv == (n + passing) * seven.layer_kv + seven.latest_queries


def test_a_host_that_is_too_small() -> None:
    plan = place_kv(workload(published.LLAMA_2_7B), Memory(24 * GB, 32 * GB))
    assert (plan.verdict, plan.offloaded, plan.fits_device) == ("does not fit", False, False)
    forced = place_kv(plan.workload, plan.memory, "always")
    assert (forced.verdict, forced.fits_device, forced.fits_host) == ("does not fit", True, False)
    assert verdict(forced) == "does not fit: the host has no room for 68.8 GB of KV"


@pytest.mark.parametrize("offload", ["never", "auto", "always"])
def test_a_cpu_has_everything_in_one_memory(offload: Any) -> None:
    small = workload(published.SMOLLM2_135M, device=CPU, dtype=torch.float32)
    plan = place_kv(small, Memory(4 * GB, 4 * GB, is_host=True), offload)
    assert (plan.verdict, plan.offloaded, plan.host) == ("does not fit", False, 0)
    assert place_kv(small, Memory(8 * GB, 8 * GB, is_host=True), offload).verdict == "fits"


def test_unknown_memory_holds_everything() -> None:
    assert place_kv(workload(published.LLAMA_2_13B), Memory(None, None)).fits


@pytest.mark.parametrize("fields", [published.LLAMA_3_1_8B, published.SMOLLM2_135M])
@pytest.mark.parametrize("gigabytes", [2, 16.4, 17, 24, 30])
@pytest.mark.parametrize("offload", ["never", "auto"])
def test_the_largest_context_is_the_largest(
    fields: Mapping[str, Any], gigabytes: float, offload: Any
) -> None:
    all_of_it, memory = workload(fields), Memory(int(gigabytes * GB), 64 * GB)
    found = largest_context(all_of_it, memory, offload, all_of_it.context)
    everything = place_kv(all_of_it, memory, "always")
    assert (everything.resident, everything.host) == (0, all_of_it.target.layers * all_of_it.layer_kv)

    def fits(context: int) -> bool:
        return place_kv(dataclasses.replace(all_of_it, context=context), memory, offload).fits

    assert found == 0 or fits(found)
    assert found == all_of_it.context or not fits(found + CONTEXT_STEP)
    assert found < CONTEXT_STEP or found % CONTEXT_STEP == 0


def test_the_share_of_every_gpu() -> None:
    alone = workload(published.LLAMA_2_7B, stack="autoregressive")
    both = workload(published.LLAMA_2_7B, gpus=2, stack="autoregressive")
    assert both.layer_kv * 2 == alone.layer_kv
    whole = 65 * 4096  # the norms
    assert both.weights == (alone.weights - 2 * whole) // 2 + 2 * whole
    assert both.draft_bytes == alone.draft_bytes
    moved = place_kv(both, Memory(16 * GB, 80 * GB), "always")
    assert moved.host == (32 - moved.resident) * alone.layer_kv


@pytest.mark.parametrize(
    ("fields", "gpus", "said"),
    [
        (published.QWEN2_5_7B, 8, "m has 28 query heads, 4 KV heads, .* 8 GPUs .* --tp takes 1, 2, 4$"),
        (published.LLAMA_2_13B, 5, "13,824 neurons .* which 5 GPUs cannot share; --tp takes 1, 2, 4, 8$"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(fields: Mapping[str, Any], gpus: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        workload(fields, gpus=gpus)


def test_a_plan_that_fits() -> None:
    plan = place_kv(workload(published.SMOLLM2_135M), Memory(24 * GB, 24 * GB))
    assert verdict(plan) == "fits on the GPU"


def test_a_card_of_24_gb_has_room_for_a_quantized_copy() -> None:
    """Attention on it copies no keys for heads that share them, except in fp32."""
    shape = {**find_shape("llama-3.1-8b").fields, "vocab_size": 49_152, "model_type": "llama"}
    plan = place_kv(workload(shape, 131_328, stack="triforce-int4"), Memory(24 * GB, 64 * GB))
    assert plan.verdict == "offloaded"
    narrow, wide = (
        workload(shape, 131_328, dtype=each).activations for each in (torch.bfloat16, torch.float32)
    )
    repeated = 2 * 131_392 * 4096 * 4
    assert narrow < 0.3 * repeated < repeated < wide


def test_the_plan_in_a_line() -> None:
    plan = place_kv(workload(published.MISTRAL_7B, 32_768, stack="lookup"), Memory(16 * GB, None), "never")
    assert plan_line(plan) == (
        "32,768 tokens take 19.8 GB: weights 14.5 GB, KV 4.3 GB, activations 1.0 GB; 16.0 GB free"
    )


def test_slots_are_rounded_as_the_caches_round_them() -> None:
    model = random_model(**EVEN)
    shape = Runner(model).shape
    for context in (1, 63, 64, 65, 1000):
        buffer = KVBuffer(shape, context + SLACK)
        plan = workload_of(description(model), None, context, StackOptions(), CPU, torch.float32)
        assert plan.layer_kv * shape.layers == bytes_of(buffer.keys, buffer.values)


# Weights in host memory


def streamable(fields: Mapping[str, Any], context: int, stack: str = "naive") -> Workload:
    return replace(workload(fields, context, stack=stack), streamable=True)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("resident", [0, 2, 3, 4, 5])
def test_streamed_weights_take_what_was_planned(architecture: str, resident: int) -> None:
    model = random_model(architecture, num_hidden_layers=5)
    planned = workload(model.config.to_dict(), 100, CPU, torch.float32, stack="lookup")
    planned = replace(planned, gpu_layers=resident, layout=replace(planned.layout, packed=False))
    weights = StreamedWeights(CPU, resident)
    for number, layer in enumerate(model.base_model.layers):
        weights.take(number, layer)
    assert planned.streamed_weights == weights.nbytes
    Runner(model, streamed=weights)
    stored = {weight.untyped_storage().data_ptr(): weight.untyped_storage() for weight in model.parameters()}
    assert planned.weights == sum(storage.nbytes() for storage in stored.values())


def test_as_many_layers_as_fit_keep_their_weights_on_the_device() -> None:
    work = streamable(published.LLAMA_2_13B, 4096)
    counts = []
    for gigabytes in (12, 16, 20, 24, 28):
        memory = Memory(gigabytes * GB, 64 * GB)
        plan = place_kv(work, memory)
        count = work.target.layers - plan.workload.streamed_layers
        assert (plan.fits, plan.offloaded) == (True, False)
        more = replace(plan.workload, gpu_layers=count + 1)
        assert not MemoryPlan(more, memory, work.target.layers).fits_device
        assert plan.host == sum(work.layer_weights[count:])
        counts.append(count)
    assert counts == sorted({*counts})
    assert place_kv(work, Memory(32 * GB, 64 * GB)).verdict == "fits"
    assert not place_kv(replace(work, streamable=False), Memory(16 * GB, 64 * GB)).fits


def test_large_trees_have_room_where_weights_are_streamed() -> None:
    def planned(tree: TreeOptions | None, gpu_layers: int | None = 3) -> Workload:
        own, draft = (
            Description("m", each, 4096, {}) for each in (published.CODELLAMA_34B, published.LLAMA_68M)
        )
        made = workload_of(own, draft, 4096, StackOptions("naive", tree=tree), GPU, torch.bfloat16)
        return replace(made, gpu_layers=gpu_layers)

    row = published.CODELLAMA_34B["vocab_size"] * (2 + 4 + 4)
    none, usual = planned(None), planned(TreeOptions("sequoia", 64))
    large, auto = planned(TreeOptions("sequoia", 512)), planned(TreeOptions("auto"))
    assert usual.activations - none.activations == TREE_COPIES * 64 * row
    assert large.activations == none.activations + TREE_COPIES * 512 * row
    assert auto.activations == none.activations + TREE_COPIES * LARGEST_STREAMED * row
    resident = planned(TreeOptions("auto"), None)
    assert resident.activations - none.activations == TREE_COPIES * LARGEST_PLANNED * row
    assert large.draft_caches > usual.draft_caches
    assert (usual.slack, large.slack, auto.slack, resident.slack) == (SLACK, SLACK + 448, SLACK + 192, SLACK)
    fitting, more = (
        place_kv(replace(each, gpu_layers=None, streamable=True), Memory(24 * GB, 128 * GB))
        for each in (usual, large)
    )
    assert more.workload.streamed_layers - fitting.workload.streamed_layers in (0, 1)


def test_trees_of_several_sequences_share_the_rows_of_a_verification() -> None:
    def common(tree: TreeOptions | None, sequences: int, shared: int) -> int:
        own, draft = (
            Description("m", each, 4096, {}) for each in (published.LLAMA_2_7B, published.LLAMA_68M)
        )
        stack = StackOptions("naive", tree=tree)
        made = workload_of(own, draft, 4096, stack, GPU, torch.bfloat16)
        several, plan = (
            of_several(made, stack, sequences, apart=not shared),
            place_kv(made, Memory(None, None)),
        )
        return plan_batch(plan, several, sequences, 2048, shared).common_parts["activations"]

    def tokens(size: int, sequences: int, shared: int = 0) -> int:
        trees = common(TreeOptions("sequoia", size), sequences, shared) - common(None, sequences, shared)
        row: int = TREE_COPIES * published.LLAMA_2_7B["vocab_size"] * (2 + 4 + 4)
        return trees // row

    assert [tokens(15, each) for each in (1, 4, 8)] == [15, 60, 120]
    assert tokens(64, 8) == 8 * 23
    assert tokens(64, 8, shared=1024) == 8 * 7


def test_a_retrieval_cache_has_room_for_large_trees() -> None:
    def slots(tree: TreeOptions | None) -> int:
        return small_caches(StackOptions("triforce", tree=tree), in_place=False).retrieval

    assert slots(None) == slots(TreeOptions("sequoia", 64))
    assert slots(TreeOptions("sequoia", 256)) == slots(None) + 257 - 65


def test_weights_and_keys_and_values_in_host_memory() -> None:
    plan = place_kv(streamable(published.CODELLAMA_34B, 131_072), Memory(24 * GB, 128 * GB))
    assert (plan.verdict, plan.resident) == ("offloaded", 0)
    assert 0 < plan.workload.streamed_layers < 48
    weights = f"the weights of {plan.workload.streamed_layers} of 48 layers"
    assert verdict(plan) == f"fits with {weights} and the KV of 48 of 48 layers in host memory"
    assert not place_kv(plan.workload, plan.memory, "never").fits


def test_keys_and_values_go_first_where_a_middle_level_drafts() -> None:
    """They leave the levels below the target what they read, and that makes up for some more bytes."""
    plan = place_kv(streamable(published.LLAMA_2_7B, 32_768, "auto"), Memory(24 * GB, 64 * GB))
    assert (plan.offloaded, plan.workload.streamed_layers) == (True, 0)
    other = other_way(plan)
    assert other is not None
    assert (other.offloaded, other.workload.streamed_layers > 0) == (False, True)
    assert other.copied() < plan.copied() < MIDDLE_LEVEL * other.copied()
    (remark,) = (text for name, _, text in rows(plan, None) if name == "each forward")
    assert remark.endswith(
        f"; keys and values stream, because streaming weights would copy {readable(other.copied())} and rule out the "
        "middle level, with which a forward confirms about 3 times as many tokens"
    )


@pytest.mark.parametrize(
    ("kind", "context", "gigabytes", "stack", "weights"),
    [
        (None, 16_384, 16, "naive", False),  # two buffers are of 0.4 GB a layer, and of 0.27
        (None, 32_768, 22, "naive", True),  # and of 0.4 GB, and of 0.54
        (Kind.Q8_0, 32_768, 22, "naive", True),
        (
            Kind.Q8_0,
            32_768,
            22,
            "auto",
            False,
        ),  # fewer, but not by so much that they make up for a middle level
        (Kind.Q4_0, 32_768, 24, "auto", True),
    ],
)
def test_what_copies_fewer_bytes_streams(
    kind: Kind | None, context: int, gigabytes: int, stack: str, weights: bool
) -> None:
    """Of keys and values, and of weights in the format that they are kept in."""
    work = streamable(published.LLAMA_2_7B, context, stack)
    work = replace(work, stored=kind and stored_of(work.target, 2, kind))
    plan = place_kv(work, Memory(gigabytes * GB, 128 * GB))
    other = other_way(plan)
    assert plan.fits
    assert other is not None
    assert other.fits
    assert (plan.workload.streamed_layers > 0, plan.offloaded) == (weights, not weights)
    assert (other.workload.streamed_layers > 0, other.offloaded) == (not weights, weights)
    gain = MIDDLE_LEVEL if stack == "auto" else 1
    from_host = plan if weights else other
    assert weights == (from_host.copied() < (other if weights else plan).copied() / gain)
    assert from_host.copied() == from_host.workload.streamed_weights


def test_a_draft_s_keys_and_values_go_home() -> None:
    plan = place_kv(workload(published.LLAMA_2_7B, 65_536), Memory(24 * GB, 64 * GB))
    away = 32 - plan.resident
    assert plan.copied(DRAFT) - plan.copied() == 15 * away * 2 * 4096 * 2
    assert plan.copied() == away * (plan.workload.layer_kv + 2 * 4096 * 2)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_quantized_layers_stream_as_they_are_stored(kind: Kind) -> None:
    work = streamable(published.CODELLAMA_34B, 1024)
    work = replace(work, stored=stored_of(work.target, 2, kind))
    memory = Memory(20 * GB, 128 * GB)
    plan = place_kv(work, memory)
    assert (plan.fits, plan.offloaded) == (True, False)
    assert work.stored is not None
    streamed, each = plan.workload.streamed_layers, work.stored.blocks[0]
    assert plan.host == streamed * each
    assert plan.workload.weights == work.stored.bytes - (streamed - 2) * each
    more = replace(plan.workload, gpu_layers=48 - streamed + 1)
    assert not MemoryPlan(more, memory, 48).fits_device
    remarks = {name: remark for name, _, remark in rows(plan, None)}
    assert f"layers {49 - streamed} to 48 in {kind.name} stream: " in remarks["weights"]
    assert f", layers {49 - streamed} to 48 in {kind.name}): " in weights_line(plan)


def test_of_mixed_formats_a_buffer_holds_the_largest_layer() -> None:
    work = workload(published.LLAMA_2_7B, 1024)
    blocks = tuple(100 + n % 3 for n in range(32))
    made = replace(work, stored=StoredWeights("Q4_K_M", 10_000, 9000, (), blocks), gpu_layers=29)
    assert made.streamed_weights == sum(blocks[29:]) == 102 + 100 + 101
    assert made.weights == 10_000 - made.streamed_weights + 2 * 102
    last = replace(made, gpu_layers=31)
    assert (last.streamed_weights, last.weights) == (101, 10_000)


def test_a_host_without_room_for_weights() -> None:
    plan = place_kv(streamable(published.LLAMA_2_13B, 4096), Memory(12 * GB, 8 * GB))
    assert (plan.fits, plan.workload.streamed_layers) == (False, 0)
    assert verdict(plan) == "does not fit on the GPU"
    asked = place_kv(replace(plan.workload, gpu_layers=4, streamable=False), plan.memory)
    assert verdict(asked).startswith("does not fit: the host has no room for ")


def test_what_streamed_weights_cost() -> None:
    work = replace(streamable(published.LLAMA_2_13B, 4096, "auto"), gpu_layers=20)
    plan = place_kv(work, Memory(24 * GB, 64 * GB))
    of = {name: remark for name, _, remark in rows(plan, None)}
    assert (
        of["weights"] == "of 20 layers, and of 2 at a time of the others, which are in host memory; "
        "layers 21 to 40 in 16 bits stream: copying them takes 231 ms per forward, at 55 GB/s"
    )
    assert of["activations"].endswith(", each of which copies the streamed weights once")
    whole = MemoryPlan(replace(work, gpu_layers=None), plan.memory, 40)
    assert plan.parts["retrieval"] == 0 < whole.parts["retrieval"]


def test_weights_that_do_not_stay_on_the_device() -> None:
    plan = place_kv(streamable(published.LLAMA_2_13B, 4096), Memory(24 * GB, 64 * GB))
    assert not with_resident_weights(plan, "auto").fits
