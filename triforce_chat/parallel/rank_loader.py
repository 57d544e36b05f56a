"""Loads one rank's part of the models, together with all other ranks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from triforce_chat.engine.engine import Engine
from triforce_chat.loading.device import device_and_dtype
from triforce_chat.loading.load_engine import HOOKS, load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.load import LoadedModel
from triforce_chat.parallel.group import DistributedGroup, device_of
from triforce_chat.parallel.rank_info import RankInfo
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class RankLoader:
    """Builds this rank's engines. The first load also forms the process group, so all ranks must call it."""

    def __init__(self, info: RankInfo, store: Store) -> None:
        self.info, self.store = info, store
        self.group: DistributedGroup | None = None

    def load(self, spec: EngineSpec, hooks: LoadHooks = HOOKS) -> tuple[Engine, LoadedModel]:
        """Run ``load_engine`` on all ranks together; raises what it raises."""
        device = self.device(spec.settings)
        if self.group is None:
            self.group = DistributedGroup(self.info, self.store, device)
        own = dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, device=device))
        return load_engine(own, hooks, self.group)

    def device(self, settings: Settings) -> str:
        """The device of this rank, such as "cuda:1". Raises UsageError."""
        return device_of(device_and_dtype(settings)[0], self.info)

    def close(self) -> None:
        """Leave the process group. All ranks must call this."""
        if self.group is not None:
            self.group.close()
