"""Engines over quantized weights that stay as they are: answers, dtypes, memory plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import VOCABULARY, save_model, write_quantized_gguf
from torch import nn
from typer.testing import CliRunner

from triforce_chat.chat.events import Tally
from triforce_chat.cli.app import app
from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import judge
from triforce_chat.engine.forward.quantized import QuantizedLayer
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.loading import device
from triforce_chat.loading import load_engine as module
from triforce_chat.loading.calibration_file import about
from triforce_chat.loading.device import may_keep_format
from triforce_chat.loading.gpu import Gpu
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.planning import memory_plan, plan_for, shortened_to_fit
from triforce_chat.loading.prepare import format_in_use, prepare
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.messages import weights_line
from triforce_chat.memory_plan.plan import SPARE, Memory, MemoryPlan
from triforce_chat.memory_plan.rounded import file_in_4_bits
from triforce_chat.models.describe import Description, describe
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.models.packed import QWEN_CODER_0_5B
from triforce_chat.models.placement import OnCpu, OnGpu
from triforce_chat.models.progress import ignore_progress
from triforce_chat.models.registry import resolve
from triforce_chat.models.shapes import find_shape
from triforce_chat.models.stored_weights import stored_weights
from triforce_chat.settings.settings import Settings

BUDGET = 104  # tokens
PROMPT = torch.randint(
    3, len(VOCABULARY), (BUDGET + 20,), generator=torch.Generator().manual_seed(0)
).tolist()

pytestmark = pytest.mark.usefixtures("kernels", "empty_cache")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_quantized_gguf(tmp_path / "tiny.gguf", context=512)


def settings(file: Path, **changes: Any) -> Settings:
    given = {"model": str(file), "draft": "none", "device": "cpu", "context": 512, **changes}
    return Settings(**given)


def engine(settings: Settings) -> tuple[Engine, LoadedModel]:
    return load_engine(EngineSpec(settings), LoadHooks(note=lambda text: pytest.fail(text)))


def answer(made: Engine, plain: bool = False) -> list[int]:
    result = Tally()
    for event in made.answer(Request(PROMPT, 40, past_end=True), plain):
        result.add(event)
    return result.token_ids


def load(file: Path, keep: bool = True) -> LoadedModel:
    return load_model(str(file), attention="sdpa", keep_format=keep)


@pytest.mark.parametrize("stack", STACKS)
def test_greedy_answers_of_all_stacks(file: Path, stack: str) -> None:
    draft = write_quantized_gguf(file.parent / "draft.gguf", seed=3, context=512)
    made, loaded = engine(settings(file, draft=str(draft), stack=stack, budget=BUDGET))
    assert loaded.stored is not None
    assert made.draft is not None
    assert layers_of(made.draft.model)
    assert layers_of(made.target.model)
    plain = answer(made, plain=True)
    assert len(plain) == 40
    assert answer(made) == plain


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if isinstance(each, QuantizedLayer)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_expands(file: Path, dtype: str) -> None:
    made, loaded = engine(settings(file, dtype=dtype))
    assert (loaded.stored, loaded.format) == (None, dtype)
    assert layers_of(made.target.model) == []
    assert made.target.dtype == getattr(torch, dtype)


def test_everything_else_is_in_fp32(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "bfloat16_pays", lambda: True)
    draft = save_model(file.parent / "draft", max_position_embeddings=512)
    made, _ = engine(settings(file, draft=str(draft)))
    assert made.draft is not None
    assert made.target.dtype == made.draft.dtype == torch.float32


def test_a_draft_stays_as_it_is_beside_another_target(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "bfloat16_pays", lambda: True)
    target = save_model(file.parent / "target", max_position_embeddings=512)
    made, loaded = engine(settings(target, draft=str(file)))
    assert loaded.format == "bfloat16"
    assert made.draft is not None
    assert layers_of(made.draft.model)
    assert answer(made) == answer(made, plain=True)


def test_the_plan_counts_their_bytes(file: Path) -> None:
    stored = stored_weights(resolve(str(file)), OnCpu())
    assert stored is not None
    free = 10**9
    machine = torch.device("cpu"), torch.float32, Memory(free, free, is_host=True)
    target, draft = describe(str(file)), describe(str(file))

    def planned(**changes: Any) -> MemoryPlan:
        return plan_for(settings(file, **changes), target, draft, 100, machine, 1)

    kept, expanded = planned(), planned(dtype="float32")
    assert (kept.workload.stored, expanded.workload.stored) == (stored, None)
    assert kept.parts["weights"] == stored.bytes < expanded.parts["weights"] / 2
    saved = expanded.parts["weights"] - stored.bytes
    assert expanded.parts["draft"] - kept.parts["draft"] == saved
    assert kept.parts["kv"] < expanded.parts["kv"]  # in 16 bits, as nothing else is asked for
    assert planned(kv="float32").parts["kv"] == expanded.parts["kv"]


def test_the_plan_for_a_gpu_counts_what_lies_there(file: Path) -> None:
    def planned(**changes: Any) -> MemoryPlan:
        machine = torch.device("cuda"), torch.bfloat16, Memory(10**9, 10**9)
        given = settings(file, device="auto", **changes)
        return plan_for(given, describe(str(file)), None, 100, machine, given.tp)

    place = OnGpu(torch.device("cuda"), torch.bfloat16)
    kept, expanded, shared = planned(dtype="stored"), planned(), planned(tp=2, dtype="stored")
    assert kept.workload.stored == stored_weights(resolve(str(file)), place)
    assert (expanded.workload.stored, shared.workload.stored) == (None, None)
    assert kept.parts["weights"] < 0.6 * expanded.parts["weights"]
    assert kept.parts["kv"] == expanded.parts["kv"]


def test_a_gpu_keeps_the_format_where_expanded_weights_do_not_fit(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(memory: Memory, **changes: Any) -> MemoryPlan:
        machine = torch.device("cuda"), torch.bfloat16, memory
        given = settings(file, device="auto", **changes)
        return plan_for(given, describe(str(file)), None, 100, machine, given.tp)

    need = planned(Memory(10**9, 10**9)).device
    enough, tight = (Memory(int(need / (1 - SPARE)) + spare, 10**9) for spare in (8, -10_000))
    assert planned(enough).workload.stored is None
    assert planned(enough, offload=True).workload.stored is None
    kept = planned(tight)
    assert kept.workload.stored is not None
    assert (kept.fits, kept.offloaded) == (True, False)
    assert planned(tight, dtype="bfloat16").verdict != "fits"
    monkeypatch.setattr(device, "QUICKER_ON_GPU", True)
    assert planned(enough).workload.stored is not None
    assert planned(enough, dtype="bfloat16").workload.stored is None


def test_a_shorter_context_comes_before_expanded_weights_in_host_memory() -> None:
    """As nobody asked for a longer one: what crosses the bus in every forward would take much longer."""
    fields = describe("llama-3.1-8b").fields
    model = Description("m", fields, 131_072, {}, stored=file_in_4_bits(Dimensions.of(fields)))
    machine = torch.device("cuda"), torch.bfloat16, Memory(9 * 10**9, 64 * 10**9)

    def planned(context: int | None) -> MemoryPlan:
        given = Settings(model="m", draft="none", context=context)
        return plan_for(given, model, None, context or 131_072, machine, 1)

    usual, asked = planned(None), planned(131_072)
    assert (usual.workload.stored, usual.workload.streamable) == (model.stored, False)
    notes: list[str] = []
    short = shortened_to_fit(usual, Settings(model="m", draft="none"), notes.append)
    assert (short.fits, short.workload.streamed_layers) == (True, 0)
    assert (asked.fits, asked.workload.stored) == (True, model.stored)


def test_a_gpu_streams_the_format_where_not_even_that_fits(file: Path) -> None:
    """It is fewer bytes than expanded weights, whether the memory or the user has some of them in host memory."""

    def planned(memory: Memory, context: int = 20, **changes: Any) -> MemoryPlan:
        machine = torch.device("cuda"), torch.bfloat16, memory
        given = settings(file, device="auto", context=context, stack="lookup", **changes)
        return plan_for(given, describe(str(file)), None, context, machine, 1)

    plenty = Memory(10**9, 10**9)
    place = OnGpu(torch.device("cuda"), torch.bfloat16)
    stored = stored_weights(resolve(str(file)), place)
    assert stored is not None
    for dtype in ("auto", "stored"):
        asked = planned(plenty, gpu_layers=1, dtype=dtype)
        assert asked.workload.stored == stored
        assert asked.workload.streamed_weights == stored.blocks[1] == asked.copied()
        assert weights_line(asked).startswith("weights of 1 of 2 layers in host memory (")
        assert ", layer 2 in Q4_K_M): " in weights_line(asked)
    expanded = planned(plenty, gpu_layers=1, dtype="bfloat16")
    assert expanded.workload.stored is None
    assert expanded.copied() > 1.5 * stored.blocks[1]
    assert planned(plenty, gpu_layers=2).workload.stored is None  # they all fit


def test_old_gpus_expand(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, keeps in (
        ((7, 5), False),
        ((8, 0), True),
        ((8, 6), True),
        ((8, 9), True),
        ((12, 0), True),
    ):
        monkeypatch.setattr(device, "find_gpu", lambda _, own=capability: Gpu(own, 10**9, 101_376))
        assert may_keep_format(settings(file), "cuda") == keeps


def test_plan_names_the_format(file: Path) -> None:
    result = CliRunner().invoke(
        app, ["plan", "--model", str(file), "--device", "cpu", "--dtype", "auto", "--json"]
    )
    told = json.loads(result.stdout)
    assert (told["dtype"], told["weights"]) == ("float32", "Q4_K_M")


@pytest.mark.parametrize(("dtype", "format"), [("auto", "Q4_K_M"), ("float32", None)])
def test_verify_tests_what_answers_and_a_dtype_expands(file: Path, dtype: str, format: str | None) -> None:
    text = file.with_name("a.txt")
    text.write_text("ab" * 150)
    given = ("--model", file, "--draft", "none", "--stack", "lookup", "--device", "cpu", "--dtype", dtype)
    asked = ("verify", text, *given, "--context", "400", "--tokens", "8", "--json")
    result = CliRunner().invoke(app, list(map(str, asked)))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told.get("weights"), told["passed"]) == (format, True)


def test_a_compiler_that_fails_leaves_a_plan_for_expanded_weights(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    plans: list[MemoryPlan] = []

    def noted(*given: Any) -> MemoryPlan:
        plans.append(memory_plan(*given))
        return plans[-1]

    monkeypatch.setattr(module, "memory_plan", noted)
    monkeypatch.setenv("CC", "false")
    monkeypatch.setattr(compiled, "library_file", lambda: file.with_name("no library"))
    compiled.library.cache_clear()
    try:
        assert stored_weights(resolve(str(file)), OnCpu()) is not None  # nobody knows yet
        _, loaded = load_engine(EngineSpec(settings(file)), LoadHooks(note=notes.append))
    finally:
        compiled.library.cache_clear()
    assert (loaded.stored, loaded.format) == (None, "float32")
    assert [plan.workload.stored for plan in plans] == [None]
    assert notes == [
        "compiling the CPU kernels, once: about 10 seconds",
        "tiny.gguf is expanded, which takes more memory and time: the C compiler false fails: exit code 1",
    ]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_formats_are_expanded() -> None:
    machine = torch.device("cpu"), torch.float32, Memory(10**9, 10**9, is_host=True)
    plan = plan_for(Settings(model="medium", device="cpu"), describe("medium"), None, 100, machine, 1)
    assert plan.workload.stored is None
    packed = QWEN_CODER_0_5B
    assert format_in_use(packed, Settings(dtype="auto", device="cpu")) == (
        "Q4_K_M, expanded to float32: there is no C compiler (cc, gcc, clang); install one, or name it in CC"
    )


@pytest.fixture
def no_compiler(
    kernels: None,  # noqa: ARG001 (loads them before)
    empty_cache: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[None]:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    compiled.library.cache_clear()
    yield
    compiled.library.cache_clear()


def test_models_that_are_not_here_are_planned_in_their_format() -> None:
    machine = torch.device("cpu"), torch.float32, Memory(10**9, 10**9, is_host=True)
    plan = plan_for(Settings(model="medium", device="cpu"), describe("medium"), None, 100, machine, 1)
    beside = 2 * 8_841_928  # in bf16 in its file, apart from names
    assert plan.workload.stored is not None
    assert plan.parts["weights"] == pytest.approx(QWEN_CODER_0_5B.stored.bytes + beside, rel=1e-3)
    assert plan.workload.stored.format == "Q4_K_M"
    cpu = Settings(device="cpu")
    assert format_in_use(QWEN_CODER_0_5B, cpu) == "Q4_K_M, as they are"
    for changed in (replace(cpu, dtype="float32"), replace(cpu, tp=2)):
        assert format_in_use(QWEN_CODER_0_5B, changed) == "Q4_K_M, expanded to float32"


def test_preparing_compiles_or_expands(
    file: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "will_compile", lambda: True)
    notes: list[str] = []
    prepare(settings(file), ignore_progress, notes.append)
    assert notes == ["compiling the CPU kernels, once: about 10 seconds"]
    assert not (empty_cache / "models" / "gguf").exists()
    prepare(settings(file, dtype="float32"), ignore_progress, pytest.fail)
    (folder,) = (each for each in (empty_cache / "models" / "gguf").iterdir() if each.is_dir())
    assert folder.name.endswith("-float32")


def test_what_was_measured_counts_for_the_format(file: Path) -> None:
    kept, expanded = load(file), load(file, keep=False)
    formats = [about(target, draft, 1) for target in (kept, expanded) for draft in (kept, expanded)]
    assert len({json.dumps(each) for each in formats}) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("stack", STACKS)
def test_greedy_answers_on_a_gpu(file: Path, stack: str) -> None:
    draft = write_quantized_gguf(file.parent / "draft.gguf", seed=3, context=512)
    made, loaded = engine(
        settings(file, draft=str(draft), stack=stack, budget=BUDGET, device="cuda", dtype="stored")
    )
    assert loaded.stored is not None
    assert made.draft is not None
    assert layers_of(made.draft.model)
    assert made.target.decoder is not None
    assert made.target.decoder.keeps_format
    assert made.target.quantized is made.target
    plain = answer(made, plain=True)
    assert len(plain) == 40
    # The kernel depends on the number of rows: where rounding decides, the answers may differ.
    assert judge(made, Request(PROMPT, 40, past_end=True), answer(made), plain).mismatches == 0


@pytest.mark.gpu
@pytest.mark.parametrize("stack", ["naive", "lookup"])
def test_layers_that_pass_through_a_gpu_answer_the_same(file: Path, stack: str) -> None:
    draft = write_quantized_gguf(file.parent / "draft.gguf", seed=3, context=512)
    given = {"draft": str(draft), "stack": stack, "device": "cuda", "dtype": "stored", "gamma": 4}
    spec, notes = EngineSpec(settings(file, **given, gpu_layers=1)), list[str]()
    passing, loaded = load_engine(spec, LoadHooks(note=notes.append))
    there, _ = engine(settings(file, **given))
    assert loaded.stored is not None
    assert loaded.streamed is not None
    assert loaded.streamed.nbytes == sum(loaded.stored.blocks[1:])
    assert any(note.startswith("weights of 1 of 2 layers in host memory (") for note in notes)
    assert any("layer 2 in Q4_K_M): " in note for note in notes)
    plain = answer(there, plain=True)
    assert answer(passing, plain=True) == plain
    assert judge(there, Request(PROMPT, 40, past_end=True), answer(passing), plain).mismatches == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama-2-7b", "llama-2-7b:8bit"])
def test_an_inflated_model_s_rounded_layers_pass_through_a_gpu(tmp_path: Path, name: str) -> None:
    small = save_model(tmp_path / "small", max_position_embeddings=512, initializer_range=0.3)
    shape = replace(find_shape(name), hidden=128, layers=4, heads=8, kv_heads=4, head_dim=32, mlp=320)
    given = {"stack": "autoregressive", "device": "cuda", "dtype": "stored"}
    made = []
    for resident in (4, 1):
        chosen = settings(small, **given, gpu_layers=resident)
        made.append(load_engine(EngineSpec(chosen, 400, shape), LoadHooks()))
    (there, whole), (passing, loaded) = made
    assert whole.streamed is None
    assert loaded.streamed is not None
    assert loaded.stored is not None
    assert loaded.format == ("Q8_0" if name.endswith("8bit") else "Q4_0")
    assert loaded.streamed.nbytes == 3 * loaded.stored.blocks[0]
    assert answer(passing) == answer(there)


@pytest.mark.gpu
def test_on_a_gpu_no_expanded_copy_is_made(file: Path) -> None:
    before = torch.cuda.memory_allocated()
    loaded = load_model(str(file), attention="sdpa", keep_format=True, device="cuda", dtype=torch.bfloat16)
    assert loaded.stored is not None
    taken = torch.cuda.memory_allocated() - before
    assert taken < 1.2 * loaded.stored.bytes + (1 << 20)
