"""Rank 0's way from settings to an engine that all ranks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triforce_chat.loading.load_engine import HOOKS
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.load import LoadedModel, check_ranks
from triforce_chat.models.shapes import BigShape
from triforce_chat.parallel.conductor import Conductor, shared_fate
from triforce_chat.parallel.orders import Load
from triforce_chat.parallel.place import Place
from triforce_chat.parallel.share import Share
from triforce_chat.parallel.team import Team

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Lead:
    """Has ``team`` load models; the ranks find each other through ``store``."""

    def __init__(self, place: Place, team: Team, store: Store) -> None:
        self.place, self.team = place, team
        self.share = Share(place, store)

    def load(self, spec: EngineSpec, hooks: LoadHooks = HOOKS) -> tuple[Conductor, LoadedModel]:
        """Load models and build an engine on all ranks.

        Raises what ``load_engine`` raises; a UsageError comes before weights are read where the ranks cannot share
        them.
        """
        settings = spec.settings
        with shared_fate(self.team):
            self.share.device(settings)
            check_ranks(settings.model, settings.tp, sizes_of(spec.shape), hooks.progress)
            self.team.tell(Load(spec))
            engine, loaded = self.share.load(spec, hooks)
        return Conductor(engine, self.team), loaded


def sizes_of(shape: BigShape | None) -> dict[str, int]:
    """What of a shape the ranks share, by the names of ``models.sharding``."""
    if shape is None:
        return {}
    return {"query heads": shape.heads, "KV heads": shape.kv_heads, "neurons": shape.mlp}
