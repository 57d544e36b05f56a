"""Which kernels attend on a GPU; flash-attn's functions are stood in for where there is no GPU."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from support import plain_kernels
from support.emulated_graphs import emulate
from support.labs import random_model
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.forward import attention_backend
from triforce_chat.engine.forward import runner as runner_module
from triforce_chat.engine.forward.attention import causal_attention, folded_attention
from triforce_chat.engine.forward.attention_backend import (
    FLASH_ATTN,
    NAMED,
    SDPA,
    TRITON,
    flash_decode,
    flash_lacks,
    flash_prefill,
    flash_problem,
)
from triforce_chat.engine.forward.runner import Runner

CPU = torch.device("cpu")


def causal(q: Tensor, k: Tensor, v: Tensor, length: int, scale: float) -> Tensor:
    """q [1, n, Hq, D] at the end of the first ``length`` of k and v [1, S, Hkv, D]: [1, n, Hq, D]."""
    keys, values = (each[:, :length].transpose(1, 2) for each in (k, v))
    return folded_attention(q.transpose(1, 2), KVView(keys, values, length), scale).transpose(1, 2)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool) -> Tensor:
    assert causal
    return globals()["causal"](q, k, v, k.shape[1], softmax_scale)  # type: ignore[no-any-return]


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_seqlens: Tensor, softmax_scale: float, causal: bool
) -> Tensor:
    assert causal
    assert cache_seqlens.dtype == torch.int32
    assert k_cache.stride(-1) == v_cache.stride(-1) == q.stride(-1) == 1
    length = int(cache_seqlens)
    return globals()["causal"](q, k_cache, v_cache, length, softmax_scale)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    flash_problem.cache_clear()
    yield
    flash_problem.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flash-attn that computes on a CPU."""
    module: Any = ModuleType("flash_attn")
    module.flash_attn_func, module.flash_attn_with_kvcache = flash_attn_func, flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(attention_backend, "find_spec", str)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backend, "find_spec", lambda _: None)


def test_every_name_has_its_kernels() -> None:
    assert NAMED[TRITON].captures
    assert NAMED[TRITON].many is None
    assert NAMED[FLASH_ATTN].captures
    assert NAMED[FLASH_ATTN].many is flash_prefill
    assert NAMED[FLASH_ATTN].decode is flash_decode
    assert not NAMED[SDPA].captures


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("heads", "kv_heads", "n", "length"), [(6, 2, 20, 77), (4, 4, 64, 64)])
def test_the_prefill_is_causal_attention(heads: int, kv_heads: int, n: int, length: int) -> None:
    query = torch.randn(1, heads, n, 16)
    keys, values = torch.randn(2, 1, kv_heads, 128, 16)
    view = KVView(keys, values, length)
    expected = causal_attention(query, view, 0.3)
    torch.testing.assert_close(flash_prefill(query, view, 0.3), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("n", "at"), [(1, 0), (5, 60), (16, 100)])
def test_decoding_is_the_kernels(n: int, at: int) -> None:
    q, (keys, values) = torch.randn(n, 6, 16), torch.randn(2, 2, 128, 16)
    given = q, keys, values, torch.tensor([at]), 0.3, 128
    torch.testing.assert_close(
        flash_decode(*given), plain_kernels.decode_attention(*given), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("capability", "runs"), [((7, 5), False), ((8, 0), True), ((8, 6), True), ((12, 0), True)]
)
def test_which_gpus_run_fused_blocks(
    capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "kernels_run", lambda _: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert runner_module.fusible(random_model(head_dim=16)) == runs


@pytest.mark.usefixtures("installed")
def test_graphs_decode_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    plain_kernels.replace(monkeypatch)
    emulate(monkeypatch)
    monkeypatch.setattr(runner_module, "fusible", lambda _: True)
    calls: list[int] = []

    def counted(q: Tensor, *rest: Any) -> Tensor:
        calls.append(len(q))
        return flash_decode(q, *rest)

    monkeypatch.setattr(attention_backend, "flash_decode", counted)
    torch.manual_seed(4)
    model, ids = random_model(head_dim=16), torch.arange(1, 30)

    def logits(name: str) -> Tensor:
        runner = Runner(copy.deepcopy(model), backend=NAMED[name])
        assert (runner.decoder is not None) == (name != SDPA)
        cache = FullCache(runner.shape, 64)
        runner.prefill(ids[:25], cache)
        return runner(ids[None, 25:], cache, 4)[0].clone()

    usual = logits(TRITON)
    assert not calls
    torch.testing.assert_close(logits(FLASH_ATTN), usual, atol=1e-4, rtol=1e-3)
    assert calls
    torch.testing.assert_close(logits(SDPA), usual, atol=1e-4, rtol=1e-3)


@pytest.mark.usefixtures("missing")
def test_a_missing_package_names_the_extra() -> None:
    assert "extra 'flash-attn'; install it: pip install flash-attn" in flash_lacks(CPU, torch.bfloat16, 64)


def test_one_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ImportError("undefined symbol: _ZN3c10\nand more")

    monkeypatch.setattr(attention_backend, "find_spec", str)
    monkeypatch.setattr(attention_backend, "import_module", broken)
    assert flash_problem() == "flash-attn is installed, but cannot be loaded: undefined symbol: _ZN3c10"


@pytest.mark.usefixtures("installed")
def test_what_it_has_no_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flash_lacks(CPU, torch.bfloat16, 64) == ""
    assert "float32" in flash_lacks(CPU, torch.float32, 64)
    assert "heads of 320" in flash_lacks(CPU, torch.float16, 320)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "Ampere" in flash_lacks(CPU, torch.float16, 64)
