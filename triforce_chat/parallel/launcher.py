"""Rank 0 loads a model on all ranks and returns the engine that drives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triforce_chat.loading.device import device_and_dtype
from triforce_chat.loading.load_engine import HOOKS
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.load import LoadedModel, check_ranks
from triforce_chat.models.shapes import BigShape
from triforce_chat.parallel.commands import Load
from triforce_chat.parallel.group import device_of
from triforce_chat.parallel.rank_info import RankInfo
from triforce_chat.parallel.rank_loader import RankLoader
from triforce_chat.parallel.rank_zero import RankZeroEngine, shut_down_on_error
from triforce_chat.parallel.workers import Workers

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def check_split(spec: EngineSpec, info: RankInfo, hooks: LoadHooks = HOOKS) -> None:
    """Raises UsageError unless this machine has a device for the rank and the model can be split over all of them.

    Reads no weights and starts no process.
    """
    settings = spec.settings
    device_of(device_and_dtype(settings)[0], info)
    check_ranks(settings.model, settings.tp, divided_sizes(spec.shape), hooks.progress)


class Launcher:
    """Loads models on rank 0 and on ``workers``; the ranks find each other through ``store``."""

    def __init__(self, info: RankInfo, workers: Workers, store: Store) -> None:
        self.workers = workers
        self.info, self.loader = info, RankLoader(info, store)

    def load(self, spec: EngineSpec, hooks: LoadHooks = HOOKS) -> tuple[RankZeroEngine, LoadedModel]:
        """Load models and build an engine on all ranks.

        Raises what ``load_engine`` raises, and UsageError before any weights are read if the model cannot be split
        over this many ranks.
        """
        with shut_down_on_error(self.workers):
            check_split(spec, self.info, hooks)
            self.workers.send(Load(spec))
            engine, loaded = self.loader.load(spec, hooks)
        return RankZeroEngine(engine, self.workers), loaded


def divided_sizes(shape: BigShape | None) -> dict[str, int]:
    """The sizes of a shape that are divided among the ranks, by the names used in ``models.sharding``."""
    if shape is None:
        return {}
    return {"query heads": shape.heads, "KV heads": shape.kv_heads, "neurons": shape.mlp}
