"""Tiny random models and engines around them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.speculation.stacks import StackOptions

SMALL_BUDGET = Budget(tokens=24, chunk=4, sinks=4, tail=8, stride=8, scratch=24, queries=4)
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


def spell(ids: Sequence[int]) -> str:
    """One visible letter per token."""
    return "".join(chr(ord("A") + token) for token in ids)


def random_model(
    architecture: str = "llama", vocabulary: int = 48, spread: float = 0.3, **changes: Any
) -> Any:
    """A tiny causal model of transformers with grouped KV heads; a wide spread gives decided logits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "initializer_range": spread,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        **({"sliding_window": None} if architecture == "mistral" else {}),
    }
    config = AutoConfig.for_model(architecture, **{**sizes, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.get_input_embeddings().weight.data.normal_(0, spread)  # no zero row for padding
    for name, weight in model.named_parameters():
        if name.endswith("o_proj.weight"):
            weight.data *= 0.35  # the far context matters, but not so much that no draft is ever accepted
    return model


def perturbed(model: Any, noise: float) -> Any:
    """A drafter that often agrees with ``model``: the same weights, a little off."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += noise * weight.std() * torch.randn_like(weight)
    return other


@dataclass
class Lab:
    """A stock transformers model, and the same weights behind the engine's runner."""

    stock: Any
    target: Runner
    draft: Runner
    continued: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # see ``greedy``

    @staticmethod
    def of(architecture: str = "llama", seed: int = 0, noise: float = 0.2, **changes: Any) -> Lab:
        torch.manual_seed(seed)
        stock = random_model(architecture, **changes)
        return Lab(stock, Runner(copy.deepcopy(stock)), Runner(perturbed(stock, noise)))

    def engine(
        self, name: str = "triforce", context: int = 400, draft: bool = True, **options: Any
    ) -> Engine:
        eos = options.pop("eos_ids", frozenset())
        settings: dict[str, Any] = {"gamma": 4, "draft_gamma": 2, "budget": SMALL_BUDGET, **options}
        drafter = self.draft if draft else None
        return Engine(
            self.target, context, TextCodec(spell, eos), drafter, StackOptions(name=name, **settings)
        )

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """What stock transformers generates, once for all tests that ask for no more tokens of it."""
        known = self.continued.get(tuple(prompt), [])
        if len(known) < n:
            ids = torch.tensor([list(prompt)])
            out: Tensor = self.stock.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n, min_new_tokens=n
            )
            known = self.continued[tuple(prompt)] = out[0, len(prompt) :].tolist()
        return known[:n]

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Stock logits at every position: [len(ids), V]."""
        out: Tensor = self.stock(torch.tensor([list(ids)])).logits[0]
        return out

    def text(self, n: int, seed: int = 0) -> list[int]:
        """Random token ids with repetitions in them, as prompts have."""
        generator = torch.Generator().manual_seed(seed)
        vocabulary = self.target.vocabulary
        piece = torch.randint(0, vocabulary, (max(n // 2, 1),), generator=generator).tolist()
        rest = torch.randint(0, vocabulary, (n,), generator=generator).tolist()
        return (piece + rest[: n // 4] + piece + rest)[:n]
