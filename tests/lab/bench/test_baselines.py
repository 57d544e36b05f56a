"""The baselines decode what plain decoding does; without a GPU the CPU plays both sides of the bus."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.labs import random_model
from support.schemas import schema_errors
from support.tiny_models import save_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.storage import SlotStorage
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward import attention
from triforce_chat.engine.forward.attention import folded_attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.errors import UsageError
from triforce_chat.lab.bench import baselines
from triforce_chat.lab.bench.baselines import (
    Baseline,
    decoded_by_transformers,
    decoded_on_host,
    host_attention,
)
from triforce_chat.models.load import load_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPT = [int(token) for token in torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3))]


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Its keys and values lie in host memory, and stream through two buffers."""
    torch.manual_seed(11)
    model = random_model(num_hidden_layers=3).to(DEVICE)
    return Engine(Runner(model), 200, TextCodec(str), None, storage=OffloadedKV)


def given(engine: Engine) -> Baseline:
    for _ in engine.prefill(PROMPT[:-1]):
        pass
    storage = engine.full.storage
    assert isinstance(storage, SlotStorage)
    return Baseline(engine.target.model, storage, PROMPT)


@pytest.mark.parametrize("decode", [decoded_on_host, decoded_by_transformers])
def test_greedy_tokens_are_those_of_plain_decoding(engine: Engine, decode: Any) -> None:
    expected = tokens_of(engine, Request(PROMPT, 20, past_end=True), plain=True)
    made, ticks = decode(given(engine), 20, 0.0)
    assert made == expected
    assert len(ticks) == 20
    assert ticks == sorted(ticks)
    assert engine.target.model.config._attn_implementation == attention.NAME
    engine.settle([0])
    assert tokens_of(engine, Request(PROMPT, 20, past_end=True)) == expected  # nothing of it was lost


@pytest.mark.parametrize("decode", [decoded_on_host, decoded_by_transformers])
def test_sampled_tokens_differ(engine: Engine, decode: Any) -> None:
    torch.manual_seed(0)
    made = {tuple(decode(given(engine), 12, 1.0)[0]) for _ in range(3)}
    assert len(made) == 3


def test_transformers_copies_and_leaves_ours_alone(engine: Engine) -> None:
    asked = given(engine)
    before = [keys.clone() for keys, _ in asked.layers()]
    decoded_by_transformers(asked, 5, 0.0)
    assert all(torch.equal(mine, keys) for mine, (keys, _) in zip(before, asked.layers(), strict=True))


def test_the_host_stores_a_token_and_reads_it() -> None:
    keys, values = torch.randn(2, 2, 64, 16)
    query, key, value = torch.randn(1, 6, 1, 16), torch.randn(1, 2, 1, 16), torch.randn(1, 2, 1, 16)
    whole = [torch.cat([part[None, :, :40], new], 2) for part, new in ((keys, key), (values, value))]
    expected = folded_attention(query, KVView(whole[0], whole[1], 41), 0.3).transpose(1, 2)
    layer: Any = SimpleNamespace(layer_idx=0)
    found, _ = host_attention(iter([(keys, values)]))(layer, query, key, value, None, 0.3, at=40)
    torch.testing.assert_close(found, expected)
    assert torch.equal(keys[:, 40], key[0, :, 0])


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    folder = save_model(tmp_path / "tiny", max_position_embeddings=8192)
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    flags = ["--stacks", "autoregressive,streaming", "--contexts", "400", "--tokens", "4", "--repeats", "1"]
    return ["bench", str(book), "--model", str(folder), "--device", "cpu", "--baselines", *flags]


def test_the_command(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--offload", "--temperatures", "0,0.6", "--json"])
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert schema_errors("bench", record) == []
    rows = {(row["contender"], row["temperature"]): row for row in record["rows"]}
    assert {name for name, _ in rows} == {
        "autoregressive",
        "streaming",
        "host attention",
        "transformers offloaded",
    }
    for (name, temperature), row in rows.items():
        plain = rows["autoregressive", temperature]
        if name not in ("autoregressive", "streaming"):
            assert row["plain_ms_per_token"] == plain["ms_per_token"]
            assert row["speedup"] == pytest.approx(plain["ms_per_token"] / row["ms_per_token"])
    shown = CliRunner().invoke(app, [*command, "--offload"])
    assert "host attention" in shown.stdout


def test_no_room_for_another_copy_leaves_one_out(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "free_bytes", lambda _: 1000)
    done = CliRunner().invoke(app, [*command, "--offload", "--json"])
    assert done.exit_code == 0, done.stderr
    assert "transformers offloaded is left out at 400 tokens" in done.stderr
    assert [row["contender"] for row in json.loads(done.stdout)["rows"]][-1] == "host attention"


@pytest.mark.parametrize(("tokens", "expected"), [(60, 1 << 16), (64, 1 << 16), (65, 1 << 17)])
def test_a_copy_in_pinned_memory_takes_a_power_of_two(tokens: int, expected: int) -> None:
    part = torch.zeros(8, 100, 64, dtype=torch.bfloat16)  # 1,024 bytes a token
    assert baselines.copied_bytes(part, tokens) == expected


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_room_is_counted_with_the_tokens_to_come(
    engine: Engine, spare: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = given(engine)
    layers = list(asked.layers())
    needed = 2 * len(layers) + baselines.SPARE
    free = needed * baselines.copied_bytes(layers[0][0], asked.known + 20) + spare
    monkeypatch.setattr(baselines, "free_bytes", lambda _: free)
    assert (baselines.missing_memory(asked, 20) == "") == fits


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "add --offload"),
        (["--offload", "--stacks", "triforce"], "held against autoregressive"),
        (["--offload", "--profile"], "leave out --profile"),
        (["--offload", "--kv", "float16"], "leave out --kv"),
        (["--offload", "--tp", "2"], "leave out --tp"),
        (["--offload", "--shared", "2"], "--shared goes without"),
    ],
)
def test_what_makes_no_sense_is_one_line(command: list[str], more: list[str], words: str) -> None:
    done = CliRunner().invoke(app, [*command, *more])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_quantized_weights_are_refused(engine: Engine, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    loaded = load_model(str(folder), attention="sdpa")
    object.__setattr__(loaded, "kv", torch.float16)
    with pytest.raises(UsageError, match="--dtype float32"):
        baselines.storage_of(engine, loaded)
