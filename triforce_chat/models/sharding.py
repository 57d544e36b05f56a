"""A model's weights spread over several processes, by transformers' own plan for its architecture.

Every process runs transformers' code on its part of the heads and neurons; the partial results are added up by
torch.distributed, whose default group must exist. Nothing here communicates but what transformers does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from triforce_chat.errors import UsageError

LISTED = 64  # ranks up to which possible numbers are named


def check_ranks(name: str, config: Any, ranks: int, sizes: Mapping[str, int]) -> None:
    """Raise UsageError unless ``ranks`` processes can share the model evenly; ``sizes`` name what they share."""
    if not getattr(config, "base_model_tp_plan", None):
        raise UsageError(f"{name}: transformers has no plan to split {config.model_type!r}; leave --tp out")
    if all(size % ranks == 0 for size in sizes.values()):
        return
    common = math.gcd(*sizes.values())
    possible = [str(n) for n in range(2, LISTED + 1) if common % n == 0]
    advice = f"choose --tp {' or '.join(possible)}" if possible else "leave --tp out"
    counts = ", ".join(f"{size:,} {what}" for what, size in sizes.items())
    raise UsageError(f"--tp {ranks} does not divide what {name} has ({counts}); {advice}")


def shared_sizes(config: Any) -> dict[str, int]:
    """What the ranks divide among themselves."""
    heads = config.num_attention_heads
    return {
        "query heads": heads,
        "KV heads": getattr(config, "num_key_value_heads", None) or heads,
        "neurons": config.intermediate_size,
        "tokens of vocabulary": config.vocab_size,
    }


@contextmanager
def sharded_loading(device: str) -> Iterator[None]:
    """transformers spreads over the accelerator that torch was built for; on a CPU it shall not."""
    if device != "cpu":
        yield
        return
    built_for = torch._C._get_accelerator
    torch._C._get_accelerator = lambda *_: torch.device("cpu")
    try:
        yield
    finally:
        torch._C._get_accelerator = built_for


def options(ranks: int) -> dict[str, Any]:
    """What makes ``from_pretrained`` load this rank's part of the weights, straight onto its device."""
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks)}


def split(model: Any, ranks: int) -> Any:
    """Keep this rank's part of a model that was loaded whole."""
    into, out = model.get_input_embeddings(), model.get_output_embeddings()
    if out.weight is into.weight:  # a plan names both, and what is tied has one name only
        out.weight = nn.Parameter(into.weight.clone())
    with sharded_loading(model.device.type):
        config, _, mesh = type(model).prepare_distribute_model(**options(ranks))
        return type(model).maybe_distribute_model(model, config, mesh).requires_grad_(False)


def add_(weight: Tensor, change: Tensor) -> None:
    """Add to a weight, in fp32; where it is spread over ranks, each adds its part of ``change``."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(weight, DTensor):
        mine = distribute_tensor(change, weight.device_mesh, weight.placements, src_data_rank=None)
        weight, change = weight.to_local(), mine.to_local()
    weight.copy_(weight.float() + change)
