"""Several processes over gloo against one: the same tokens, the same scores, the same state on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.rank_runs import FAMILIES, SIZES, Found, check_headed, once, save_headed
from support.tiny_models import save_adapter, save_model, write_gguf

from triforce_chat.settings.settings import STACKS

TWO = (*FAMILIES, "adapter", "tiny.gguf", "llama.big")
# Heads, KV heads and vocabulary of the default model allow three ranks only; so do these.
NINE = {**SIZES, "hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 4}
NINE |= {"intermediate_size": 48, "vocab_size": 102, "tie_word_embeddings": True}


def adapter_for(base: Path) -> None:
    """Save an adapter for matrices of both kinds: split over ranks by rows and by columns."""
    folder = save_adapter(base.parent / "adapter", base)
    weights = load_file(folder / "adapter_model.safetensors")
    by_rows = {name: weight for name, weight in weights.items() if "q_proj" in name}
    weights |= {name.replace("q_proj", "o_proj"): weight.clone() for name, weight in by_rows.items()}
    weights = {name: weight / 8 for name, weight in weights.items()}  # large ones would magnify rounding
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def for_two(folder: Path) -> Sequence[str]:
    torch.manual_seed(3)
    for name in (*FAMILIES, "draft"):
        window = {"sliding_window": None} if name == "mistral" else {}
        save_model(folder / name, "llama" if name == "draft" else name, **SIZES, **window)
    adapter_for(folder / "llama")
    write_gguf(folder / "tiny.gguf")
    return *TWO, *save_headed(folder / "headed")


def for_three(folder: Path) -> Sequence[str]:
    torch.manual_seed(4)
    save_model(folder / "nine", **NINE)
    save_model(folder / "draft", **{**NINE, "num_hidden_layers": 1})
    return ("nine",)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return once(tmp_path_factory, "two-ranks", for_two, 2)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return once(tmp_path_factory, "three-ranks", for_three, 3)


@pytest.fixture(params=[*TWO, "nine"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The results of one process and of several for a model."""
    ranks: Found = request.getfixturevalue("three" if request.param == "nine" else "two")
    model: dict[str, Any] = ranks.models[request.param]
    return model


def test_greedy_tokens_are_those_of_one_process(found: dict[str, Any]) -> None:
    plain = found["alone"]["plain"]
    assert len(set(plain)) > 3  # it does not repeat one token
    assert found["shared"]["plain"] == plain


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_stack_generates_the_tokens_of_one_process(family: str, two: Found) -> None:
    found = two.models[family]
    assert found["stacks"] == dict.fromkeys(STACKS, found["alone"]["plain"])


def test_scores_are_those_of_one_process(found: dict[str, Any]) -> None:
    alone, shared = (torch.tensor(found[who]["scores"]) for who in ("alone", "shared"))
    assert (shared - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_sampling_with_a_seed_gives_the_same_tokens(found: dict[str, Any]) -> None:
    assert found["shared"]["seeded"] == found["alone"]["seeded"] != found["alone"]["plain"]


def test_a_draft_that_reads_states(two: Found) -> None:
    check_headed(two)


def test_ranks_answer_with_a_given_text(found: dict[str, Any]) -> None:
    assert found["shared"]["forced"] == found["alone"]["forced"] == found["alone"]["plain"][::-1]


def test_ranks_repeat_what_they_plan_by_one_table(two: Found) -> None:
    """Rank 0 alone knows what was measured."""
    first, *others = two.models["llama"]["repeatable"]
    assert others == [first] * 2


def test_attention_counts_the_heads_of_all_ranks(found: dict[str, Any]) -> None:
    alone, shared = (torch.tensor(found[who]["attended"]) for who in ("alone", "shared"))
    assert torch.allclose(shared, alone, rtol=1e-3, atol=1e-6)


def test_after_an_interrupt_the_next_question_is_answered_alike(two: Found) -> None:
    alone, shared = two.models["llama"]["interrupts"]
    assert shared[1::2] == alone[1::2]
    said = [len(tokens) for tokens in shared[::2]]
    assert 0 < max(said) < len(shared[1])  # it came in the middle of an answer


def test_every_rank_has_its_part_of_the_heads(two: Found, three: Found) -> None:
    assert two.models["llama"]["heads"] == [2, 1]
    assert two.models["llama.big"]["heads"] == [4, 2]
    assert three.models["nine"]["heads"] == [3, 1]


def test_every_rank_holds_the_planned_number_of_parameters(two: Found, three: Found) -> None:
    for name, found in [*two.models.items(), *three.models.items()]:
        held, planned = found["numbers"]
        assert held == planned, name


@pytest.mark.parametrize(("ranks", "calls"), [("two", 9 * 6 + 3 * 2 * len(STACKS) + 3 * 4 + 4), ("three", 6)])
def test_all_ranks_hold_the_same_after_every_call(
    ranks: str, calls: int, request: pytest.FixtureRequest
) -> None:
    """Also after answers without a seed, and after interrupted ones."""
    first, *others = request.getfixturevalue(ranks).states
    assert len(first) == calls
    assert all(other == first for other in others)


def test_the_ranks_print_nothing(two: Found, three: Found) -> None:
    assert (two.printed, three.printed) == ("", "")
