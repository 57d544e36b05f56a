"""Settings as the engine's own options: the stack of levels and the sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.settings.settings import SAMPLED, Settings

SEEDED_GAMMA, SEEDED_DRAFT_GAMMA = 8, 4  # tokens drafted with a seed by stacks that have no plan to make
SMALLEST_BUDGET, LARGEST_BUDGET = 512, 4096  # tokens; the latter is the optimum in the TriForce paper
# The context is at least this many times the budget; the latter where keys and values are in host memory, from where
# all of them come for a verification.
BUDGET_SHARE, STREAMED_SHARE = 8, 4


class ModelDefaults(Protocol):
    """What a loaded model brings to the settings that the user left open."""

    @property
    def context(self) -> int:
        """Tokens that were planned for."""
        ...

    @property
    def offloaded(self) -> bool:
        """Whether keys and values are in host memory."""
        ...

    @property
    def largest_budget(self) -> int:
        """Tokens of a retrieval cache that were planned for."""
        ...

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Sampling values of the model's preset, by field of ``Sampling``."""
        ...


def stack_options(
    settings: Settings, positions: int, largest: int = LARGEST_BUDGET, offloaded: bool = False
) -> StackOptions:
    """The stack that the settings ask for; its budget grows with the context up to ``largest`` tokens.

    With a seed neither the clock nor free memory may decide, as another plan draws other random numbers.

    ``positions`` is the context that the model was trained for; it counts unless the settings have one. ``offloaded``:
    keys and values are in host memory.
    """
    name, gamma, draft_gamma, middle = settings.stack, settings.gamma, settings.draft_gamma, settings.middle
    seeded, endless = settings.seed is not None, settings.eviction is not None
    streams, tree = offloaded and not seeded, tree_options(settings)
    share = (settings.room or positions) // (STREAMED_SHARE if streams else BUDGET_SHARE)
    budget = settings.budget or max(SMALLEST_BUDGET, min(largest, share))
    # What an endless conversation would forget while times are measured could not be brought back.
    if seeded and (name != "auto" or endless):
        gamma, draft_gamma = gamma or SEEDED_GAMMA, draft_gamma or SEEDED_DRAFT_GAMMA
    if seeded and middle == "auto":
        middle = "full"
    return StackOptions(
        name=name,
        gamma=gamma,
        draft_gamma=draft_gamma,
        policy=settings.policy,
        middle=middle,
        budget=Budget(tokens=budget, chunk=settings.chunk),
        repeatable=seeded and not endless,
        tree=tree,
        streams=streams,
    )


def tree_options(settings: Settings) -> TreeOptions | None:
    """The trees that the settings ask for; None for chains, which know no size."""
    if not settings.drafts_trees:
        return None
    return TreeOptions(settings.tree, settings.tree_size, settings.tree_depth)


def stack_for(settings: Settings, model: ModelDefaults) -> StackOptions:
    """The stack for a loaded model, whose retrieval cache stays within the budget that was planned."""
    return stack_options(settings, model.context, model.largest_budget, model.offloaded)


def sampling_of(settings: Settings, model: ModelDefaults) -> Sampling:
    """Each value from the settings, else from the model's preset, else the plain default."""

    def chosen(name: str) -> Any:
        value = getattr(settings, name)
        return model.sampling.get(name, getattr(Sampling(), name)) if value is None else value

    return Sampling(**{name: chosen(name) for name in SAMPLED})
