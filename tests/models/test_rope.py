"""Contexts beyond the one that a model was made for: a larger YaRN factor, and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.caching_engine import CHUNK, TOKENS, CachingEngine
from support.labs import Lab
from support.tiny_models import save_adapter, save_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.engine import prefix_cache
from triforce_chat.engine.forward import attention
from triforce_chat.errors import DoesNotFit
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.describe import describe
from triforce_chat.models.load import LoadedModel, load_config, load_model
from triforce_chat.models.registry import resolve
from triforce_chat.models.rope import MAX_CONTEXT, stretch_yarn
from triforce_chat.settings.settings import Settings
from triforce_chat.storage.kv.fingerprint import fingerprint

MADE_FOR, ORIGINAL = 2048, 128  # of the tiny adapter: a factor of 16, as the default model has


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    return save_adapter(made / "adapter", save_model(made / "base", initializer_range=0.3))


def loaded(folder: Path, context: int = 0) -> LoadedModel:
    attention.register()
    return load_model(str(folder), attention=attention.NAME, context=context)


def yarn(theta: float, factor: float, original: int, dim: int) -> list[float]:
    """Peng et al., arXiv 2309.00071, section 3.2, with the ramp of the authors' code."""

    def turning(times: float) -> float:
        return dim * math.log(original / (2 * math.pi * times)) / (2 * math.log(theta))

    first, last = max(math.floor(turning(32)), 0), min(math.ceil(turning(1)), dim - 1)
    found = []
    for i in range(dim // 2):
        share, plain = min(1.0, max(0.0, (i - first) / (last - first))), theta ** (-2 * i / dim)
        found.append(plain * (1 - share) + plain / factor * share)
    return found


@pytest.mark.parametrize(
    ("context", "factor"),
    [(MADE_FOR + 1, 17), (4096, 32), (4097, 33), (MAX_CONTEXT, MAX_CONTEXT // ORIGINAL)],
)
def test_the_factor_grows_with_the_context(folder: Path, context: int, factor: int) -> None:
    model = loaded(folder, context)
    rotary = model.model.base_model.rotary_emb
    expected = torch.tensor(yarn(10_000.0, factor, ORIGINAL, 8))
    torch.testing.assert_close(rotary.inv_freq, expected, rtol=1e-5, atol=0)
    assert rotary.attention_scaling == pytest.approx(0.1 * math.log(factor) + 1)
    assert model.context == factor * ORIGINAL >= context
    own = load_config(resolve(str(folder))).rope_parameters
    assert {**model.model.config.rope_parameters, "factor": own["factor"]} == own


@pytest.mark.parametrize("context", [0, 1, 100, MADE_FOR])
def test_up_to_there_nothing_changes(folder: Path, context: int) -> None:
    plain, asked = loaded(folder), loaded(folder, context)
    assert asked.model.config.to_dict() == plain.model.config.to_dict()
    assert torch.equal(asked.model.base_model.rotary_emb.inv_freq, plain.model.base_model.rotary_emb.inv_freq)
    assert fingerprint(asked.model, TOKENS) == fingerprint(plain.model, TOKENS)
    assert asked.context == MADE_FOR


def test_another_factor_is_another_model_to_the_document_cache(folder: Path) -> None:
    contexts = (MADE_FOR, 4096, 4000, 8192)
    prints = [fingerprint(loaded(folder, context).model, TOKENS) for context in contexts]
    assert prints[1] == prints[2]  # both have a factor of 32
    assert len({*prints}) == 3


def test_what_was_read_at_one_factor_is_not_taken_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", CHUNK)  # CachingEngine sets it, too, but for good

    def caching(factor: float) -> CachingEngine:
        rope = {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": factor,
            "original_max_position_embeddings": 64,
        }
        lab = Lab.of(seed=4, rope_parameters=rope)
        return CachingEngine(lab, tmp_path, model=fingerprint(lab.stock, TOKENS))

    prompt = Lab.of(seed=4).text(100)
    assert caching(16.0).read(prompt) == 0
    assert caching(17.0).read(prompt) == 0
    assert caching(16.0).read(prompt) == 96


def test_only_yarn_is_stretched(folder: Path, tmp_path: Path) -> None:
    plain = save_model(tmp_path / "plain")
    message = f"{plain} was made for 128 tokens; --context 129 is more$"
    with pytest.raises(DoesNotFit, match=message):
        describe(str(plain)).reach(129)
    with pytest.raises(
        DoesNotFit, match=f"--context {MAX_CONTEXT + 1:,} is more, and .* to 1,048,576 at most"
    ):
        describe(str(folder)).reach(MAX_CONTEXT + 1)
    assert describe(str(folder)).reach(MAX_CONTEXT) == MAX_CONTEXT
    assert describe(str(folder)).reach(None) == MADE_FOR


def test_a_factor_is_whole_and_just_enough() -> None:
    rope = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 1e5, "original_max_position_embeddings": 8192}
    assert stretch_yarn(rope, 1_000_000) == ({**rope, "factor": 123.0}, 1_007_616)
    assert stretch_yarn(rope, MAX_CONTEXT) == ({**rope, "factor": 128.0}, MAX_CONTEXT)


def test_an_engine_beyond_it_says_so_once_and_answers(folder: Path) -> None:
    warnings: list[str] = []
    settings = Settings(model=str(folder), draft="none", device="cpu", context=5000)
    engine, model = load_engine(EngineSpec(settings), LoadHooks(warn=warnings.append))
    assert (engine.context, model.context) == (5000, 40 * ORIGINAL)
    (warning,) = warnings
    assert warning.startswith(f"warning: {folder} was made for 2,048 tokens; for 5,000")
    assert "YaRN factor 40 instead of 16" in warning
    assert "not reliable beyond 2,048 tokens" in warning


@pytest.mark.parametrize(("context", "warned"), [(MADE_FOR, False), (3000, True)])
@pytest.mark.parametrize("quiet", [False, True])
def test_the_warning_reaches_pipes_as_well(folder: Path, context: int, warned: bool, quiet: bool) -> None:
    flags: list[Any] = ["--model", folder, "--draft", "none", "--context", context, "--max-tokens", 4]
    more = ["--quiet"] if quiet else ["--json"]
    done = CliRunner().invoke(app, ["ask", "Why?", *map(str, flags), "--no-cache", "--device", "cpu", *more])
    assert done.exit_code == 0, done.stderr
    assert ("not reliable" in done.stderr) == (warned and not quiet)
    assert quiet or json.loads(done.stdout)["token_ids"]


@pytest.mark.model
def test_the_default_model_can_be_asked_for_a_million_tokens() -> None:
    model = describe("default")
    assert model.reach(1_000_000) == 1_000_000
    config = load_config(resolve("default"), 1_000_000)
    assert config.rope_parameters["factor"] == 123.0
    assert load_config(resolve("default"), 131_072).rope_parameters["factor"] == 16.0
