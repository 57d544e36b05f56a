"""One rank's share of the models: loaded by all ranks together, each with its part of the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from triforce_chat.engine.engine import Engine
from triforce_chat.loading.load_engine import load_engine, place, unsaid
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.progress import Report, unheard
from triforce_chat.parallel.group import Ranks, device_of
from triforce_chat.parallel.orders import Load
from triforce_chat.parallel.place import Place
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Share:
    """Makes this rank's engines. The ranks meet at the first one."""

    def __init__(self, at: Place, store: Store) -> None:
        self.at, self.store = at, store
        self.ranks: Ranks | None = None

    def load(
        self,
        order: Load,
        report: Report = unheard,
        note: Callable[[str], None] = unsaid,
        warn: Callable[[str], None] = unsaid,
    ) -> tuple[Engine, LoadedModel]:
        """As ``wiring.load_engine``, on all ranks together."""
        device = self.device(order.settings)
        if self.ranks is None:
            self.ranks = Ranks(self.at, self.store, device)
        settings = dataclasses.replace(order.settings, device=device)
        return load_engine(
            settings,
            report,
            order.room,
            note,
            order.shape,
            warn=warn,
            group=self.ranks,
            device_memory=order.device_memory,
        )

    def device(self, settings: Settings) -> str:
        """Where this rank computes. Raises UsageError."""
        return device_of(place(settings)[0], self.at)

    def leave(self) -> None:
        """Give up what the ranks have in common, on all of them."""
        if self.ranks is not None:
            self.ranks.leave()
