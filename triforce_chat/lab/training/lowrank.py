"""Low-rank updates of linear layers (LoRA, arXiv 2106.09685), stored in the format of the PEFT library.

The update is a parametrization of the weight, ``W + (alpha / rank) B A``, not a second path for the
activations: a sequence of 131,072 tokens then keeps no activation more than the plain model does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from triforce_chat.errors import ModelError
from triforce_chat.models.adapter import CONFIG, ROPE, WEIGHTS, matrix_name, read_adapter


class LowRank(nn.Module):
    """Adds ``scale * B @ A`` to a frozen weight [out, in]."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        wide = torch.empty(rank, weight.shape[1])
        nn.init.kaiming_uniform_(wide, a=5**0.5, generator=generator)
        self.scale = alpha / rank
        self.a = nn.Parameter(wide.to(weight.device))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.scale * (self.b @ self.a)).to(weight.dtype)


def attach(model: nn.Module, rank: int, alpha: float, seed: int) -> dict[str, LowRank]:
    """Freeze the model and give every linear layer of its blocks an update that is zero: {module path: update}."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    updates: dict[str, LowRank] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and ".layers." in name:
            updates[name] = LowRank(module.weight, rank, alpha, generator)
            parametrize.register_parametrization(module, "weight", updates[name])
    return updates


def save_adapter(folder: Path, updates: Mapping[str, LowRank], base: str, rope: Mapping[str, Any]) -> None:
    """Write weights (bf16), PEFT configuration and ``rope.json`` into ``folder``."""
    tensors: dict[str, Tensor] = {}
    for name, update in updates.items():
        tensors[matrix_name(name, "A")] = update.a.detach().bfloat16().cpu().contiguous()
        tensors[matrix_name(name, "B")] = update.b.detach().bfloat16().cpu().contiguous()
    first = next(iter(updates.values()))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": first.a.shape[0],
        "lora_alpha": first.scale * first.a.shape[0],
        "target_modules": sorted({name.rpartition(".")[2] for name in updates}),
        "bias": "none",
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (folder / ROPE).write_text(json.dumps(rope, indent=2) + "\n", "utf-8")


def load_updates(folder: Path, updates: Mapping[str, LowRank]) -> None:
    """Fill attached updates from an adapter folder. Raises ModelError if it was made for another model or rank."""
    scale = read_adapter(folder).scale
    try:
        stored = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{folder}: {WEIGHTS} is damaged; copy or train it again") from error
    with torch.no_grad():
        for name, update in updates.items():
            for part, kept in (("A", update.a), ("B", update.b)):
                found = stored.get(matrix_name(name, part))
                if found is None or found.shape != kept.shape:
                    raise ModelError(f"{folder}: no update of shape {tuple(kept.shape)} for {name}")
                kept.copy_(found)
            update.b.mul_(scale / update.scale)
