"""The choice of attention kernels: by name, or by what was measured once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.labs import random_model

from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.forward.attention_backend import FLASH_ATTN, SDPA, TRITON, USUAL, AttentionBackend
from triforce_chat.engine.group import SINGLE
from triforce_chat.errors import UsageError
from triforce_chat.loading import attention_choice
from triforce_chat.loading.attention_choice import choose_attention, fastest, require_gpu_for_attention
from triforce_chat.settings.settings import ATTENTIONS, Settings

SHAPE = Shape(2, 8, 2, 64, torch.bfloat16, torch.device("cpu"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A GPU on which the kernels take these times, and how often they were measured."""
    made = SimpleNamespace(
        lacks="", fusible=True, prefill={SDPA: 5.0, FLASH_ATTN: 9.0}, decoding={TRITON: 2.0, FLASH_ATTN: 1.0}
    )
    made.measured = 0

    def prefill_ms(*_: Any) -> dict[str, float]:
        made.measured += 1
        return dict(made.prefill)

    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(attention_choice, "prefill_ms", prefill_ms)
    monkeypatch.setattr(attention_choice, "decoding_ms", lambda *_: dict(made.decoding))
    monkeypatch.setattr(attention_choice, "noise", lambda *_: torch.zeros(2, 1, 1, 64))
    monkeypatch.setattr(attention_choice, "version", lambda _: "2.8")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(attention_choice, "flash_lacks", lambda *_: made.lacks)
    monkeypatch.setattr(attention_choice, "fusible", lambda _: made.fusible)
    return made


def model_on_gpu() -> Any:
    return SimpleNamespace(config=random_model().config, dtype=torch.bfloat16, device=torch.device("cuda"))


def choice(name: str) -> AttentionBackend:
    return choose_attention(Settings(attention=name), model_on_gpu(), SINGLE)


@pytest.mark.parametrize("name", [TRITON, FLASH_ATTN])
def test_a_cpu_refuses_kernels_of_a_gpu_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"--attention {name} is for a GPU"):
        require_gpu_for_attention(Settings(attention=name), "cpu")
    require_gpu_for_attention(Settings(attention=name), "cuda")


@pytest.mark.parametrize("name", ["auto", SDPA])
def test_a_cpu_takes_what_it_has(name: str) -> None:
    require_gpu_for_attention(Settings(attention=name), "cpu")
    assert choose_attention(Settings(attention=name), random_model(), SINGLE) == USUAL


def test_auto_is_measured_once_and_kept(gpu: SimpleNamespace, tmp_path: Path) -> None:
    assert choice("auto") == (SDPA, FLASH_ATTN)
    gpu.decoding = {TRITON: 0.5, FLASH_ATTN: 1.0}
    assert choice("auto") == (SDPA, FLASH_ATTN)  # a start that would measure otherwise goes by what is known
    assert gpu.measured == 1
    (key,) = json.loads((tmp_path / "attention.json").read_text())
    assert "flash-attn 2.8" in key
    assert fastest(replace(SHAPE, kv_heads=8), True) == (SDPA, TRITON)  # another shape of heads
    (tmp_path / "attention.json").write_text(json.dumps({key: {"backend": ["none", "such"]}}))
    assert choice("auto") == (SDPA, TRITON)


def test_auto_takes_each_kernel_by_itself(gpu: SimpleNamespace) -> None:
    gpu.prefill, gpu.decoding = {SDPA: 2.0, FLASH_ATTN: 1.0}, {TRITON: 1.0, FLASH_ATTN: 2.0}
    assert choice("auto") == (FLASH_ATTN, TRITON)


def test_auto_measures_no_decoding_where_nothing_is_captured(gpu: SimpleNamespace) -> None:
    gpu.fusible = False
    assert choice("auto") == (SDPA, TRITON)


def test_auto_never_fails(gpu: SimpleNamespace) -> None:
    gpu.lacks = "it needs flash-attn: pip install it"
    assert choice("auto") == USUAL
    assert gpu.measured == 0
    with pytest.raises(UsageError, match="pip install it"):
        choice(FLASH_ATTN)


def test_names_are_taken_at_their_word(gpu: SimpleNamespace) -> None:
    assert {name: choice(name) for name in ATTENTIONS[1:]} == {
        TRITON: (SDPA, TRITON),
        FLASH_ATTN: (FLASH_ATTN, FLASH_ATTN),
        SDPA: (SDPA, SDPA),
    }
    gpu.fusible = False
    with pytest.raises(UsageError, match="--attention triton needs"):
        choice(TRITON)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="no attention 'xformers'"):
        Settings(attention="xformers")
