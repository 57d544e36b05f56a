"""Keys and values in 16 bits on a CPU: where they are kept so, what says so, and what stays exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import save_model, write_quantized_gguf
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Prefilled
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.errors import UsageError
from triforce_chat.loading.device import kv_dtype
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.settings import Settings
from triforce_chat.storage.kv.disk_cache import KVDiskCache

pytestmark = pytest.mark.usefixtures("kernels", "empty_cache")

HALF, WHOLE, BRAIN = torch.float16, torch.float32, torch.bfloat16
PROMPT = [3 + at * at % 91 for at in range(150)]
STACKS = ("auto", "lookup", "naive", "retrieval", "triforce", "streaming")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_quantized_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", context=512))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("dense"), max_position_embeddings=512))


def loaded(model: str, kv: str = "auto", hooks: LoadHooks | None = None, **changes: Any) -> Engine:
    given = {"draft": "none", "context": 512, "budget": 104, **changes}
    return load_engine(EngineSpec(Settings(model=model, kv=kv, device="cpu", **given)), hooks or LoadHooks())[
        0
    ]


@pytest.mark.parametrize(
    ("kv", "kind", "dtype", "quantized", "kept"),
    [
        ("auto", "cpu", WHOLE, True, HALF),
        ("auto", "cpu", WHOLE, False, WHOLE),
        ("auto", "cpu", BRAIN, False, BRAIN),
        ("auto", "cuda", BRAIN, True, BRAIN),
        ("float16", "cpu", WHOLE, False, HALF),
        ("float32", "cpu", WHOLE, True, WHOLE),
        ("float16", "cuda", WHOLE, False, WHOLE),
    ],
)
def test_the_dtype_of_keys_and_values(
    kv: str, kind: str, dtype: torch.dtype, quantized: bool, kept: torch.dtype
) -> None:
    assert kv_dtype(Settings(kv=kv), kind, dtype, quantized) == kept


def test_the_cache_takes_half_the_memory(quantized: str) -> None:
    whole, half = loaded(quantized, "float32"), loaded(quantized)
    assert (whole.target.shape.kv_dtype, half.target.shape.kv_dtype) == (WHOLE, HALF)
    assert half.target.shape.bytes_per_token == whole.target.shape.bytes_per_token // 2


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", ["quantized", "dense"])
def test_greedy_answers_are_those_of_plain_decoding(
    request: pytest.FixtureRequest, kind: str, stack: str
) -> None:
    model: str = request.getfixturevalue(kind)
    engine = loaded(
        model, "float16", stack=stack, dtype="auto" if kind == "quantized" else "float32", draft=model
    )
    assert engine.target.shape.kv_dtype == HALF
    asked = Request(PROMPT, 24)
    assert tokens_of(engine, asked) == tokens_of(engine, asked, plain=True)


def test_scores_differ_from_those_of_fp32_by_rounding_alone(dense: str) -> None:
    def scores(kv: str) -> torch.Tensor:
        return torch.cat(
            [
                each.clone()
                for each, _ in loaded(dense, kv, dtype="float32").rescore(Request(PROMPT, 1), PROMPT)
            ]
        )

    whole, half = scores("float32"), scores("float16")
    assert not torch.equal(whole, half)
    torch.testing.assert_close(half, whole, atol=5e-3 * float(whole.abs().max()), rtol=0)


@pytest.mark.parametrize(("kv", "dtype"), [("float16", "bfloat16"), ("float32", "bfloat16")])
def test_a_format_that_is_not_offered_is_one_line(dense: str, kv: str, dtype: str) -> None:
    with pytest.raises(UsageError, match=rf"--kv {kv} .* bfloat16"):
        loaded(dense, kv, dtype=dtype)


def test_plan_counts_and_names_it(dense: str) -> None:
    def planned(kv: str) -> dict[str, Any]:
        given = ("--model", dense, "--dtype", "float32", "--kv", kv, "--device", "cpu", "--json")
        record: dict[str, Any] = json.loads(CliRunner().invoke(app, ["plan", *given]).stdout)
        return record

    whole, half = planned("auto"), planned("float16")
    assert (whole.get("kv"), half["kv"]) == (None, "float16")
    queries = 2 * 32 * 64 * 4  # of two layers, which stay in fp32
    assert half["bytes"]["kv"] - queries == (whole["bytes"]["kv"] - queries) // 2


def test_verify_says_it(quantized: str, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("ab" * 150)
    given = (
        "--model",
        quantized,
        "--draft",
        "none",
        "--stack",
        "lookup",
        "--device",
        "cpu",
        "--context",
        "400",
    )
    asked = ["verify", str(text), *given, "--dtype", "auto", "--tokens", "8"]
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert (told["kv"], told["passed"]) == ("float16", True)


def test_another_format_reads_the_book_again_and_says_so_once(quantized: str) -> None:
    notes: list[str] = []
    stores: list[KVDiskCache] = []

    def store(target: LoadedModel) -> KVDiskCache:
        stores.append(KVDiskCache.of(target, notify=notes.append))
        return stores[-1]

    def recalled(kv: str, answers: int = 1) -> int:
        engine = loaded(quantized, kv, LoadHooks(prefix_store=store))
        asked = Request(PROMPT, 1, spans=(DocumentSpan(100),))
        events = [event for _ in range(answers) for event in engine.answer(asked)]
        stores[-1].writer.finish()
        return max(event.recalled for event in events if isinstance(event, Prefilled))

    assert (recalled("float32"), notes) == (0, [])
    assert recalled("float16", answers=2) == 0
    assert notes == ["read again, because the stored keys and values are in float32, other than now"]
    assert (recalled("float16"), recalled("float32"), len(notes)) == (100, 100, 1)
