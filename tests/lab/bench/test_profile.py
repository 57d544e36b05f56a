"""Where a round's time goes: timelines that are made up, and a real one on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.labs import SMALL_BUDGET, Lab
from support.schemas import schema_errors, schema_validator
from support.tiny_models import save_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.engine import Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward import runner
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.lab.bench import floor, measure
from triforce_chat.lab.bench.cases import cases
from triforce_chat.lab.bench.floor import Step, steps, weights_of
from triforce_chat.lab.bench.marks import levels_of, marked
from triforce_chat.lab.bench.measure import Bench
from triforce_chat.lab.bench.profile import ROUNDS, profiles
from triforce_chat.lab.bench.timeline import Overlap, common, group_of, own_times, timeline, union
from triforce_chat.settings.settings import Settings

LOADED: Any = SimpleNamespace(context=400, sampling={}, streamed=None)
MAIN = 7


def event(category: str, name: str, start: float, duration: float, **more: Any) -> dict[str, Any]:
    numbers = {"args": {"correlation": more.pop("launch")}} if "launch" in more else {}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": duration,
        "tid": MAIN,
        **numbers,
        **more,
    }


def mark(name: str, start: float, duration: float) -> dict[str, Any]:
    return event("user_annotation", name, start, duration)


ON_DEVICE = [
    mark("level:target", 0, 1000),
    mark("level:retrieval", 100, 300),
    mark("part:attention", 150, 50),
    mark("part:attention", 600, 100),
    event("cuda_runtime", "cudaLaunchKernel", 160, 5, launch=1),
    event("cuda_runtime", "cudaGraphLaunch", 300, 5, launch=2),
    event("cuda_runtime", "cudaLaunchKernel", 650, 5, launch=3),
    event("cuda_runtime", "cudaMemcpyAsync", 700, 5, launch=4),
    event("cuda_runtime", "cudaLaunchKernel", 1500, 5, launch=5),
    event("kernel", "some_elementwise", 2000, 1000, launch=1, tid=20),
    event("kernel", "nvjet_tst_128", 3000, 4000, launch=2, tid=20),
    event("kernel", "topk_kernel", 7000, 500, launch=2, tid=20),
    event("kernel", "gemv_as_attention", 7500, 2500, launch=3, tid=20),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 6500, 1500, launch=4, tid=21),
    event("kernel", "lost", 11000, 100, launch=99, tid=20),
    event("kernel", "late", 11100, 100, launch=5, tid=20),
    {"ph": "M", "name": "process_name"},
]


def test_kernels_belong_to_who_launched_them() -> None:
    found = timeline(ON_DEVICE)
    assert found.on_device
    assert found.ms == {
        "retrieval": {"attention": 1.0, "matmul": 4.0, "sampling": 0.5},
        "target": {"attention": 2.5, "host-device copies": 1.5},
        "elsewhere": {"other": 0.2},
    }
    assert found.busy_ms == pytest.approx(8.2)  # what runs at the same time counts once
    assert found.overlap == Overlap(1.5, 8.2, 1.5)
    assert [(kernel.name, kernel.runs) for kernel in found.heaviest(2)] == [
        ("nvjet_tst_128", 1),
        ("gemv_as_attention", 1),
    ]


def test_without_a_device_operators_count_for_themselves() -> None:
    found = timeline(
        [
            mark("level:target", 0, 1000),
            mark("level:draft", 100, 200),
            event("cpu_op", "aten::linear", 110, 100),
            event("cpu_op", "aten::addmm", 120, 80),
            event("cpu_op", "aten::add", 500, 40),
            event("cpu_op", "aten::mm", 600, 40, tid=8),  # somebody else's thread
        ]
    )
    assert not found.on_device
    assert found.ms == {"draft": {"matmul": pytest.approx(0.1)}, "target": {"other": pytest.approx(0.04)}}
    assert found.busy_ms == pytest.approx(0.14)


def test_own_times() -> None:
    outer, inner, innermost, later = (
        event("cpu_op", name, start, duration)
        for name, start, duration in (("a", 0, 10), ("b", 2, 5), ("c", 3, 1), ("d", 10, 4))
    )
    told = {each["name"]: own for each, own in own_times([later, innermost, outer, inner])}
    assert told == {"a": 5, "b": 4, "c": 1, "d": 4}


@pytest.mark.parametrize(
    ("name", "part", "group"),
    [
        ("void flash_fwd_splitkv_kernel<cutlass::half_t>", None, "attention"),
        ("_split_attention_kernel", None, "attention"),
        ("ampere_bf16_s16816gemm_bf16_128x64", None, "matmul"),
        ("nvjet_hsh_64x8", "sampling", "sampling"),
        ("cunn_SoftMaxForward", None, "sampling"),
        ("cunn_SoftMaxForward", "attention", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "attention", "between GPUs"),
        ("vectorized_elementwise_kernel", None, "other"),
        ("vectorized_elementwise_kernel", "retrieval cache", "retrieval cache"),
    ],
)
def test_kinds_of_work(name: str, part: str | None, group: str) -> None:
    assert group_of(name, "kernel", part) == group


def test_copies_on_the_device_are_none_between_host_and_device() -> None:
    assert group_of("Memcpy DtoD (Device -> Device)", "gpu_memcpy", None) == "other"
    assert group_of("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", "sampling") == "host-device copies"


def test_time_in_common() -> None:
    one, other = union([(5, 7), (0, 2), (1, 3)]), union([(2, 6)])
    assert one == [(0, 3), (5, 7)]
    assert common(one, other) == [(2, 3), (5, 6)]
    assert common(one, []) == []


def test_the_levels_of_stacks(lab: Lab) -> None:
    def names(stack: str) -> list[str]:
        return [name for name, _ in levels_of(lab.engine(stack).top)]

    assert names("autoregressive") == ["target"]
    assert names("triforce") == ["target", "retrieval", "draft"]
    assert names("auto") == ["target", "planner", "lookup", "retrieval", "draft", "draft"]


def test_marks_count_forwards_change_nothing_and_come_off(lab: Lab) -> None:
    engine, request = lab.engine("triforce"), Request(lab.text(90), 30)
    expected = tokens_of(engine, request)
    before = [Sampler.run, Speculative.round, RetrievalCache.on_layer]
    with marked() as forwards:
        assert Speculative.round is not before[1]
        assert tokens_of(engine, request) == expected
    assert [Sampler.run, Speculative.round, RetrievalCache.on_layer] == before
    assert forwards["draft"] >= forwards["retrieval"] >= forwards["target"] > 0


def test_the_bytes_of_a_step(lab: Lab) -> None:
    engine = lab.engine("triforce")
    tokens_of(engine, Request(lab.text(90), 5))
    model = engine.target.model
    rows = model.get_input_embeddings().weight.nbytes
    tied = model.config.tie_word_embeddings
    every = sum(weight.nbytes for weight in lab.stock.parameters())
    assert weights_of(engine.target, 1) == every - (0 if tied else rows)
    known = steps(engine)
    token = engine.target.shape.bytes_per_token
    assert known["target"].kv == engine.full.length * token
    assert known["retrieval"].kv == SMALL_BUDGET.tokens * token
    assert 0 < known["draft"].kv <= engine.full.length * token
    assert known["target"].streamed == 0
    assert 0 < known["int4"].kv < known["target"].kv / 4


@pytest.mark.parametrize("tied", [False, True])
def test_matrices_in_8_bits_are_a_byte_for_each_number(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(runner, "fusible", lambda _: True)
    lab = Lab.of(head_dim=16, tie_word_embeddings=tied)
    embedding = lab.stock.get_input_embeddings().weight
    read = [weight for weight in lab.stock.parameters() if tied or weight is not embedding]
    widths = {
        middle: sum(weight.numel() * (size if weight.dim() == 2 else 4) for weight in read)
        for middle, size in (("full", 4), ("int8", 1))
    }
    for middle, width in widths.items():
        known = steps(lab.engine("triforce", middle=middle))
        assert known["retrieval"].weights == width
        assert known["target"].weights == widths["full"]


def test_what_streams_from_the_host_bounds_a_step() -> None:
    assert Step(6, 4).ms(1000, None) == 10
    assert Step(6, 4, streamed=3).ms(1000, 100) == 30
    assert Step(6, 4, streamed=3).ms(1000, 1000) == 10


@pytest.mark.parametrize("stack", ["triforce", "autoregressive", "auto"])
def test_a_profile_on_the_cpu(lab: Lab, stack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        measure, "stack_for", lambda settings, _: StackOptions(settings.stack, 4, 2, "mean", SMALL_BUDGET)
    )
    monkeypatch.setitem(floor.SIZE, "cpu", 1 << 20)
    bench = Bench(lab.engine(), LOADED, 1, 4)
    ids = lab.text(150)
    monkeypatch.setitem(floor.MATRIX, "cpu", 64)
    [found] = profiles(bench, ids, cases(Settings(temperature=0.5), [stack], [], []), tmp_path / "trace.json")
    assert (found.rounds, found.case, found.temperature) == (ROUNDS, stack, 0.5)
    assert found.forwards["target"] == 1
    assert found.ms["target"]["matmul"] > 0
    assert found.ms["target"]["attention"] > 0
    assert found.ms["target"]["sampling"] > 0
    if stack == "triforce":
        assert found.ms["draft"]["matmul"] > 0
        assert found.forwards["draft"] > found.forwards["retrieval"] > 0
    assert found.floor_total_ms == pytest.approx(sum(found.floor_ms.values()))
    assert 0 < found.floor_total_ms < found.ms_per_round
    assert found.ms_per_token == pytest.approx(found.ms_per_round / found.tokens_per_round)
    assert found.overlap is None
    assert found.prefill.tokens_per_s > 0
    assert 0 < found.prefill.share < 1
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert torch.is_inference_mode_enabled() is False


def test_the_command(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny", max_position_embeddings=8192)
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = [
        "bench",
        str(book),
        "--model",
        str(folder),
        "--device",
        "cpu",
        "--profile",
        "--contexts",
        "400",
    ]
    flags = ["--stacks", "retrieval", "--budget", "128", "--trace", str(tmp_path / "trace.json")]
    done = CliRunner().invoke(app, [*command, *flags, "--json"])
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert schema_errors("bench", record) == []
    assert [one["trace"] for one in record["profiles"]] == [str(tmp_path / "trace.json")]
    assert schema_validator("bench", "profile").is_valid(record["profiles"][0])
    shown = CliRunner().invoke(app, [*command, "--stacks", "autoregressive,lookup"])
    assert shown.exit_code == 0, shown.stderr
    assert "byte floor" in shown.stdout
    assert "lookup at 400 tokens" in shown.stdout
    for wrong in (
        ["--trace", "a", "--stacks", "lookup,retrieval"],
        ["--trace", "a", "--temperatures", "0,1"],
    ):
        assert CliRunner().invoke(app, [*command, *wrong]).exit_code == 2
    assert CliRunner().invoke(app, [*command[:-3], "--trace", "a"]).exit_code == 2
