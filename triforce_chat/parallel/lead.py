"""Rank 0's way from settings to an engine that all ranks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from triforce_chat.loading.load_engine import unsaid
from triforce_chat.models.load import LoadedModel, check_ranks
from triforce_chat.models.progress import Report, unheard
from triforce_chat.models.shapes import BigShape
from triforce_chat.parallel.conductor import Conductor, shared_fate
from triforce_chat.parallel.orders import Load
from triforce_chat.parallel.place import Place
from triforce_chat.parallel.share import Share
from triforce_chat.parallel.team import Team
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Lead:
    """Has ``team`` load models; the ranks find each other through ``store``."""

    def __init__(self, place: Place, team: Team, store: Store) -> None:
        self.place, self.team = place, team
        self.share = Share(place, store)

    def load(
        self,
        settings: Settings,
        report: Report = unheard,
        room: int | None = None,
        note: Callable[[str], None] = unsaid,
        shape: BigShape | None = None,
        warn: Callable[[str], None] = unsaid,
        device_memory: int | None = None,
    ) -> tuple[Conductor, LoadedModel]:
        """As ``wiring.load_engine``. Raises UsageError, before weights are read, where the ranks cannot share them."""
        with shared_fate(self.team):
            self.share.device(settings)
            check_ranks(settings.model, settings.tp, sizes_of(shape), report)
            order = Load(settings, room, shape, device_memory)
            self.team.tell(order)
            engine, loaded = self.share.load(order, report, note, warn)
        return Conductor(engine, self.team), loaded


def sizes_of(shape: BigShape | None) -> dict[str, int]:
    """What of a shape the ranks share, by the names of ``models.sharding``."""
    if shape is None:
        return {}
    return {"query heads": shape.heads, "KV heads": shape.kv_heads, "neurons": shape.mlp}
