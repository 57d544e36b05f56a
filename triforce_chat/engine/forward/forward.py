"""The interface of a model's forward, as levels and drafters see it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.forward.loops import LoopForward
from triforce_chat.engine.gathered import Result
from triforce_chat.engine.tree import Branches

Shared = TypeVar("Shared")


class Feed(NamedTuple):
    """The next tokens of one sequence, and the cache that they go to; see ``Forward``."""

    ids: Tensor  # [1, n]
    cache: KVCache
    rows: int
    offset: Tensor | None = None
    tree: Branches | None = None


class Forward(Protocol):
    """A model as the levels see it."""

    vocabulary: int
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the logits."""
        ...

    @property
    def captures(self) -> bool:
        """Whether forwards of few tokens run as CUDA graphs of this model and one cache alone."""
        ...

    @property
    def places_on_device(self) -> bool:
        """Whether the host need not know the slots of few tokens."""
        ...

    @property
    def sequences(self) -> int:
        """How many sequences have forwards that run together, that of this forward included."""
        ...

    def before_waiting(self) -> None:
        """The host is about to wait for the device: let other sequences launch their work first."""
        ...

    def __call__(
        self,
        ids: Tensor,
        cache: KVCache,
        rows: int,
        offset: Tensor | None = None,
        tree: Branches | None = None,
    ) -> Tensor:
        """Feed ids [B, n] after what the cache holds; returns logits [B, rows, V] of the last ``rows`` tokens.

        The logits are valid until the model's next forward. With ``offset`` [B], a tensor on the device, the ids go
        that many slots further on and the cache's length stays as it is: their keys and values are scratch data,
        which later forwards may read and overwrite. ``tree`` says what each of them follows; where forwards are CUDA
        graphs, its root is the first of them.
        """
        ...

    def loop(self, cache: KVCache, tokens: int) -> LoopForward:
        """Forwards of so many tokens in all, to be captured in one CUDA graph; only if ``places_on_device``.

        Unless ``captures``, they are those of all sequences whose keys and values lie in the cache's pool.
        """
        ...

    def together(
        self, cache: KVCache, kind: Hashable, run: Callable[[Sequence[Any]], Sequence[Result]], given: Any
    ) -> Any:
        """What ``run`` returns for ``given``, in memory of its own; only unless ``captures``.

        It is called once for all sequences that come with the same kind and have their caches in one pool.
        """
        ...

    def in_common(self, cache: KVCache, make: Callable[[], Shared]) -> Shared:
        """What all sequences share whose keys and values lie in the cache's pool; made at the first call."""
        ...

    def unprepared(self, cache: KVCache, rows: int, branching: bool = False) -> list[Preparation]:
        """What is to be captured before a forward of that many rows, of a tree or not, over the cache is one replay."""
        ...

    def committed(self, count: Tensor, length: Tensor) -> None:
        """The rows of the last forward committed ``count`` [B] tokens, so that the history has ``length`` [B] now.

        For drafts that read its states; the host does not wait.
        """
        ...

    def forget_state(self) -> None:
        """Let no draft read what it computed before."""
        ...
