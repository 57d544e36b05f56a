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
from triforce_chat.engine.cache.quantization import FP8, INT4, INT8
from triforce_chat.engine.cache.quantized import QuantizedKV
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.errors import UsageError
from triforce_chat.loading import device
from triforce_chat.loading.device import kv_dtype, require_kv
from triforce_chat.loading.gpu import Gpu
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.settings import QUANTIZED, Settings
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
        ("int8", "cpu", WHOLE, False, INT8),
        ("int4", "cpu", BRAIN, True, INT4),
        ("int8", "cuda", BRAIN, True, INT8),
        ("fp8", "cpu", WHOLE, False, FP8),
        ("fp8", "cuda", BRAIN, False, FP8),
    ],
)
def test_the_dtype_of_keys_and_values(
    kv: str, kind: str, dtype: torch.dtype, quantized: bool, kept: torch.dtype
) -> None:
    assert kv_dtype(Settings(kv=kv), kind, dtype, quantized) == kept


@pytest.mark.parametrize("kv", QUANTIZED)
@pytest.mark.parametrize(
    ("refused", "given"),
    [("--offload", {"offload": True}), ("--tp 2", {"tp": 2})],
)
def test_what_goes_with_no_quantized_cache_is_one_line(kv: str, refused: str, given: dict[str, Any]) -> None:
    settings = Settings(kv=kv, **{"device": "cpu", **given})
    with pytest.raises(UsageError, match=rf"--kv {kv} .*{refused}"):
        require_kv(settings, kv_dtype(settings, settings.device, BRAIN, True))


@pytest.mark.parametrize(
    ("capability", "offered"), [((8, 0), False), ((8, 9), True), ((9, 0), True), (None, True)]
)
def test_a_gpu_must_convert_fp8(
    capability: tuple[int, int] | None, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "find_gpu", lambda _: capability and Gpu(capability, 80 << 30, 101_376))
    settings = Settings(kv="fp8", device="cuda")
    kept = kv_dtype(settings, "cuda", BRAIN, False)
    assert kept == (FP8 if offered else BRAIN)
    if not offered:
        with pytest.raises(UsageError, match=r"--kv fp8 needs a GPU of the Ada or Hopper generation"):
            require_kv(settings, kept)


@pytest.mark.parametrize("kv", ["fp8", *QUANTIZED])
def test_an_endless_conversation_moves_no_narrow_keys(kv: str) -> None:
    with pytest.raises(UsageError, match=rf"--endless streaming moves .*--kv {kv}"):
        Settings(kv=kv, endless="streaming")


@pytest.mark.parametrize("kind", ["quantized", "dense"])
@pytest.mark.parametrize("stack", ["auto", "triforce", "naive"])
def test_greedy_answers_over_fp8(request: pytest.FixtureRequest, kind: str, stack: str) -> None:
    model: str = request.getfixturevalue(kind)
    dtype = "auto" if kind == "quantized" else "float32"
    engine = loaded(model, "fp8", stack=stack, dtype=dtype, draft=model)
    assert engine.target.shape.kv_format == FP8
    asked = Request(PROMPT, 32)
    assert tokens_of(engine, asked) == tokens_of(engine, asked, plain=True)


@pytest.mark.parametrize("kv", QUANTIZED)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", ["quantized", "dense"])
def test_greedy_answers_over_a_quantized_cache(
    request: pytest.FixtureRequest, kind: str, stack: str, kv: str
) -> None:
    model: str = request.getfixturevalue(kind)
    dtype = "auto" if kind == "quantized" else "float32"
    engine = loaded(model, kv, stack=stack, dtype=dtype, draft=model, policy="attention")
    assert isinstance(engine.full.storage, QuantizedKV)
    asked = Request(PROMPT, 48)
    assert tokens_of(engine, asked) == tokens_of(engine, asked, plain=True)


@pytest.mark.parametrize("kv", QUANTIZED)
def test_the_plan_is_what_the_cache_takes(quantized: str, kv: str) -> None:
    given = (
        "--model",
        quantized,
        "--kv",
        kv,
        "--device",
        "cpu",
        "--context",
        "512",
        "--draft",
        "none",
        "--json",
    )
    record = json.loads(CliRunner().invoke(app, ["plan", *given]).stdout)
    assert record["kv"] == kv
    full = loaded(quantized, kv).full
    store = full.storage
    assert isinstance(store, QuantizedKV)
    groups = store.groups
    parts = (groups.keys, groups.values, groups.key_scales, groups.value_scales)
    newest = (store.newest.keys, store.newest.values, full.queries.data)
    assert record["bytes"]["kv"] == sum(part.nbytes for part in (*parts, *newest))


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

    whole, half, quarter = planned("auto"), planned("float16"), planned("fp8")
    assert (whole.get("kv"), half["kv"], quarter["kv"]) == (None, "float16", "fp8")
    queries = 2 * 32 * 64 * 4  # of two layers, which stay in fp32
    assert half["bytes"]["kv"] - queries == (whole["bytes"]["kv"] - queries) // 2
    assert quarter["bytes"]["kv"] - queries == (whole["bytes"]["kv"] - queries) // 4


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


@pytest.mark.parametrize("kv", QUANTIZED)
def test_a_quantized_book_comes_back_from_the_disk(quantized: str, kv: str) -> None:
    """With the same bits, whether its end is in the middle of a group or not, and takes as little there."""
    stores: list[KVDiskCache] = []

    def store(target: LoadedModel) -> KVDiskCache:
        stores.append(KVDiskCache.of(target))
        return stores[-1]

    def bits(engine: Engine) -> list[torch.Tensor]:
        return [part for layer in range(2) for part in engine.full.storage.view(layer, 140).whole]

    asked = Request(PROMPT, 30, spans=(DocumentSpan(30), DocumentSpan(100), DocumentSpan(140)))
    first = loaded(quantized, kv, LoadHooks(prefix_store=store))
    made = tokens_of(first, asked)
    stores[-1].writer.finish()
    again = loaded(quantized, kv, LoadHooks(prefix_store=store))
    events = [*again.answer(asked)]
    assert max(event.recalled for event in events if isinstance(event, Prefilled)) == 140
    assert [token for event in events if isinstance(event, Text) for token in event.token_ids] == made
    assert all(map(torch.equal, bits(first), bits(again)))
    files = stores[-1].directory.files()
    assert len(files) == 3
    shape = first.target.shape
    newest = shape.layers * shape.kv_heads * shape.head_dim * 2 * 2  # of a token in 16 bits
    header = 2048
    assert (
        sum(each.bytes for each in files) < 128 * shape.bytes_per_token + (30 + 36 + 12) * newest + 3 * header
    )


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_a_damaged_quantized_entry_is_read_again(quantized: str, spoiled: int) -> None:
    stores: list[KVDiskCache] = []

    def store(target: LoadedModel) -> KVDiskCache:
        stores.append(KVDiskCache.of(target))
        return stores[-1]

    asked = Request(PROMPT, 30, spans=(DocumentSpan(30), DocumentSpan(100), DocumentSpan(140)))
    made = tokens_of(loaded(quantized, "int8", LoadHooks(prefix_store=store)), asked)
    stores[-1].writer.finish()
    path = sorted(stores[-1].directory.files(), key=lambda each: -each.used_ns)[spoiled].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert tokens_of(loaded(quantized, "int8", LoadHooks(prefix_store=store)), asked) == made


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
    assert (recalled("int8"), recalled("int8"), recalled("int4"), len(notes)) == (0, 100, 0, 3)
    assert (recalled("fp8"), recalled("fp8"), recalled("float16"), len(notes)) == (0, 100, 100, 4)
