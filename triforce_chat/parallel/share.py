"""One rank's share of the models: loaded by all ranks together, each with its part of the target."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from triforce_chat.engine.engine import Engine
from triforce_chat.loading.device import device_and_dtype
from triforce_chat.loading.load_engine import HOOKS, load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.load import LoadedModel
from triforce_chat.parallel.group import Ranks, device_of
from triforce_chat.parallel.place import Place
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Share:
    """Makes this rank's engines. The ranks meet at the first one."""

    def __init__(self, at: Place, store: Store) -> None:
        self.at, self.store = at, store
        self.ranks: Ranks | None = None

    def load(self, spec: EngineSpec, hooks: LoadHooks = HOOKS) -> tuple[Engine, LoadedModel]:
        """``load_engine`` on all ranks together."""
        device = self.device(spec.settings)
        if self.ranks is None:
            self.ranks = Ranks(self.at, self.store, device)
        own = dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, device=device))
        return load_engine(own, hooks, self.ranks)

    def device(self, settings: Settings) -> str:
        """Where this rank computes. Raises UsageError."""
        return device_of(device_and_dtype(settings)[0], self.at)

    def leave(self) -> None:
        """Give up what the ranks have in common, on all of them."""
        if self.ranks is not None:
            self.ranks.leave()
