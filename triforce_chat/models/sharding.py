"""Splits a model's weights over several processes, by transformers' tensor-parallel plan for its architecture.

Every process runs transformers' code on its part of the heads and neurons. transformers adds up the partial results
with torch.distributed, whose default group must exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from triforce_chat.errors import UsageError
from triforce_chat.models.assemble import as_transformers
from triforce_chat.models.configuration import for_transformers

MAX_LISTED = 64  # the largest number of ranks that an error message suggests


def check_ranks(name: str, config: Any, ranks: int, sizes: Mapping[str, int]) -> None:
    """Raises UsageError unless the model can be split evenly over ``ranks`` processes.

    ``sizes`` are the divided dimensions by name.
    """
    if not getattr(for_transformers(config), "base_model_tp_plan", None):
        raise UsageError(f"{name}: transformers has no plan to split {config.model_type!r}; leave out --tp")
    if all(size % ranks == 0 for size in sizes.values()):
        return
    common = math.gcd(*sizes.values())
    possible = [str(n) for n in range(2, MAX_LISTED + 1) if common % n == 0]
    advice = f"choose --tp {' or '.join(possible)}" if possible else "leave out --tp"
    counts = ", ".join(f"{size:,} {what}" for what, size in sizes.items())
    raise UsageError(f"--tp {ranks} does not divide what {name} has ({counts}); {advice}")


def divided_sizes(config: Any) -> dict[str, int]:
    """The dimensions that are divided among the ranks, by name."""
    heads = config.num_attention_heads
    return {
        "query heads": heads,
        "KV heads": getattr(config, "num_key_value_heads", None) or heads,
        "neurons": config.intermediate_size,
        "tokens of vocabulary": config.vocab_size,
    }


@contextmanager
def sharded_loading(device: str) -> Iterator[None]:
    """Make transformers split models over CPUs, not over the accelerator that torch was built for, if on a CPU."""
    if device != "cpu":
        yield
        return
    accelerator = torch._C._get_accelerator
    torch._C._get_accelerator = lambda *_: torch.device("cpu")
    try:
        yield
    finally:
        torch._C._get_accelerator = accelerator


def options(ranks: int) -> dict[str, Any]:
    """Options with which ``from_pretrained`` loads only this rank's part of the weights, onto its device."""
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks)}


def all_agree(vote: bool, device: str) -> bool:
    """True if the vote of every rank is true; all ranks call this together."""
    votes = torch.tensor(int(vote), device=device)
    torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MIN)
    return bool(votes)


def split(model: Any, ranks: int) -> Any:
    """Keep this rank's part of a model that was loaded whole."""
    model = as_transformers(model)
    into, out = model.get_input_embeddings(), model.get_output_embeddings()
    if out.weight is into.weight:  # the plan names both, but tied weights have one name only
        out.weight = nn.Parameter(into.weight.clone())
    with sharded_loading(model.device.type):
        config, _, mesh = type(model).prepare_distribute_model(**options(ranks))
        return type(model).maybe_distribute_model(model, config, mesh).requires_grad_(False)


def add_product(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> None:
    """Add ``scale * up @ down`` to a weight [out, in]; up: [out, rank], down: [rank, in].

    ``up`` and ``down`` are rounded to the weight's dtype first. A weight that is split over ranks is written in place,
    by each rank its part; a whole one gets new memory, because writing to one that is mapped from a file would copy it
    page by page, which takes six times as long.
    """
    up, down = up.to(weight.dtype), down.to(weight.dtype)
    if not hasattr(weight, "placements"):
        weight.data = torch.addmm(weight, up, down, alpha=scale)
        return
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor  # takes long

    assert isinstance(weight, DTensor)
    rows, columns = (
        [
            placement if getattr(placement, "dim", None) == dim else Replicate()
            for placement in weight.placements
        ]
        for dim in (0, 1)
    )
    mesh = weight.device_mesh
    own_up = distribute_tensor(up, mesh, rows, src_data_rank=None).to_local()
    own_down = distribute_tensor(down, mesh, columns, src_data_rank=None).to_local()
    weight.to_local().addmm_(own_up, own_down, alpha=scale)
