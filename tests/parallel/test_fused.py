"""Ranks whose blocks are fused and whose forwards are captured, over gloo, against one process with the whole model.

As in ``test_capture``, plain arithmetic stands for the kernels, and a replay computes anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.rank_runs import FAMILIES, SIZES, Found, check_headed, once, save_headed
from support.tiny_models import save_model, write_gguf

from triforce_chat.settings.settings import STACKS

pytest.importorskip("triton")


BIASED = {"attention_bias": True, "mlp_bias": True}
MORE = {"biased": BIASED, "tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False}}
MODELS = (*FAMILIES, *MORE, "tiny.gguf", "llama.big")
STACKED = ("llama", "qwen3", "biased")


def save_uneven(folder: Path, family: str, **changes: Any) -> None:
    """Save a model with random biases and norms."""
    save_model(folder, family, **SIZES, **changes)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("bias") or "norm" in name:
            weights[name] = torch.normal(float("norm" in name), 0.2, weight.shape)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def models(folder: Path) -> Sequence[str]:
    torch.manual_seed(3)
    for family in FAMILIES:
        save_uneven(folder / family, family, **({"sliding_window": None} if family == "mistral" else {}))
    for name, changes in MORE.items():
        save_uneven(folder / name, "llama", **changes)
    save_model(folder / "draft", **SIZES)
    write_gguf(folder / "tiny.gguf")
    return *MODELS, *save_headed(folder / "headed")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    path = os.environ["PYTHONPATH"]
    # Only the first rank can convert the GGUF file: none may load what it was converted into.
    environ = {"PROBE_FUSED": "1", "PROBE_OTHER_CACHE": os.devnull, "PYTHONPATH": path}
    return once(tmp_path_factory, "fused-ranks", models, 2, **environ)


@pytest.fixture(params=MODELS)
def found(request: pytest.FixtureRequest, ranks: Found) -> dict[str, Any]:
    model: dict[str, Any] = ranks.models[request.param]
    return model


def test_greedy_tokens_are_those_of_the_whole_model(found: dict[str, Any]) -> None:
    plain = found["alone"]["plain"]
    assert len(set(plain)) > 2  # it does not repeat one token
    assert found["shared"]["plain"] == plain


@pytest.mark.parametrize("model", STACKED)
def test_every_stack_generates_the_tokens_of_one_process(model: str, ranks: Found) -> None:
    found = ranks.models[model]
    assert found["stacks"] == dict.fromkeys(STACKS, found["alone"]["plain"])


def test_a_draft_that_reads_states(ranks: Found) -> None:
    check_headed(ranks)


def test_logits_are_those_of_the_whole_model(found: dict[str, Any]) -> None:
    stock = torch.tensor(found["logits"][0]["stock"])
    for each in found["logits"]:
        for blocks in ("dense", "stock"):  # transformers' own still work on the merged weights
            assert (torch.tensor(each[blocks]) - stock).abs().max() <= 1e-5 * stock.abs().max()
    alone, shared = (torch.tensor(found[who]["scores"]) for who in ("alone", "shared"))
    assert (shared - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_eight_bit_errors_are_about_as_large(found: dict[str, Any]) -> None:
    """The numbers differ, because each rank scales its own inputs, but the errors are about as large."""
    exact = torch.tensor(found["logits"][0]["dense"])
    near = [torch.tensor(each["int8"]) for each in found["logits"]]
    off = [(each - exact).norm() / exact.norm() for each in near]
    assert 0 < off[1] < 1.2 * off[0] < 0.1


def test_an_eight_bit_middle_changes_no_answer(found: dict[str, Any]) -> None:
    assert found["int8"] == found["alone"]["plain"]


def test_the_forwards_are_captured(found: dict[str, Any]) -> None:
    """One of plain decoding and one of verifications: the last rounds of an answer need none of their own."""
    assert {1, 8} <= {*found["captured"]}


def test_sampling_with_a_seed_gives_the_same_tokens(found: dict[str, Any]) -> None:
    assert found["shared"]["seeded"] == found["alone"]["seeded"]


def test_attention_counts_the_heads_of_all_ranks(found: dict[str, Any]) -> None:
    alone, shared = (torch.tensor(found[who]["attended"]) for who in ("alone", "shared"))
    assert torch.allclose(shared, alone, rtol=1e-3, atol=1e-6)


def test_after_an_interrupt_the_next_question_is_answered_alike(ranks: Found) -> None:
    alone, shared = ranks.models["llama"]["interrupts"]
    assert shared[1::2] == alone[1::2]


def test_the_weights_are_merged_in_place(ranks: Found) -> None:
    for name, found in ranks.models.items():
        held, planned = found["numbers"]
        if not name.endswith(".gguf"):  # split after loading, which separates tied matrices
            assert held == planned, name


def test_all_ranks_hold_the_same_after_every_call(ranks: Found) -> None:
    first, other = ranks.states
    assert len(first) > 9 * 7
    assert other == first
    assert ranks.printed == ""
