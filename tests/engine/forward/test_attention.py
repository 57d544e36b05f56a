"""The two formulas of attention agree, and each serves where it shall."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.labs import Lab
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.forward import attention, prefill_attention
from triforce_chat.engine.forward.attention import (
    causal_attention,
    folded_attention,
    read_attention,
    repeated,
)

SHAPES = [(6, 2, 1, 5), (6, 2, 17, 17), (6, 2, 20, 77), (4, 4, 64, 128), (9, 3, 40, 100), (4, 1, 3, 64)]


@pytest.mark.parametrize(("heads", "kv_heads", "n", "length"), SHAPES)
def test_causal_and_folded_attention_agree(heads: int, kv_heads: int, n: int, length: int) -> None:
    generator = torch.Generator().manual_seed(heads * n)
    query = torch.randn(1, n, heads, 16, generator=generator).transpose(1, 2)  # as a model hands it over
    keys, values = (torch.randn(1, kv_heads, 128, 16, generator=generator) for _ in range(2))
    view = KVView(keys, values, length)
    with torch.inference_mode():
        found, expected = (each(query, view, 0.3) for each in (causal_attention, folded_attention))
    assert found.shape == query.shape
    assert torch.allclose(found, expected, atol=1e-5)


def test_every_query_head_reads_the_keys_of_its_group() -> None:
    part = torch.arange(2.0)[None, :, None, None].expand(1, 2, 3, 4)
    assert repeated(part, 6)[0, :, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    whole = torch.randn(1, 2, 3, 4)
    assert repeated(whole, 2).data_ptr() == whole.data_ptr()  # nothing is copied where nothing is shared


def test_a_model_says_the_same_by_either_formula(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.tensor(lab.text(60))

    def said() -> Tensor:
        cache = FullCache(lab.target.shape, 60)
        lab.target.prefill(ids[:23], cache)
        return lab.target(ids[None, 23:], cache, 37)[0]

    plain = said()
    calls: list[int] = []

    def counted(query: Tensor, *rest: Any) -> Tensor:
        calls.append(query.shape[2])
        return causal_attention(query, *rest)

    monkeypatch.setattr(attention, "folded_attention", counted)
    assert torch.allclose(said(), plain, atol=1e-4)
    assert calls == [23, 23, 37, 37]  # of two layers


class OnGpu(Tensor):
    """A tensor in main memory that says to be on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("n", [1, 2, 16, 17, 40])
def test_on_hopper_no_length_of_a_context_needs_a_plan(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own choice there is cuDNN's kernel, which the host plans anew for every length and number of tokens."""
    query, mixed = (torch.empty(1, 9, n, 64, dtype=torch.bfloat16) for _ in range(2))
    keys, values = (torch.empty(1, 3, 128, 64, dtype=torch.bfloat16) for _ in range(2))
    asked = []

    def flash(query: Tensor, keys: Tensor, values: Tensor, causal: bool, _: float) -> tuple[Tensor, None]:
        asked.append((query.shape[2], keys.shape[2], values.shape[2], causal))
        return mixed, None

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    monkeypatch.setattr(prefill_attention, "flash", flash)
    monkeypatch.setattr(attention, "scaled_dot_product_attention", None)
    assert read_attention(query.as_subclass(OnGpu), KVView(keys, values, 77), 0.125) is mixed
    assert asked == [(n, 77, 77, True)]
