"""What the host reads from a device while it drafts and verifies: each read waits for all that was launched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support.toys import Stateless, ToyCache
from triforce_chat.engine.sampling.ops import CANDIDATES
from triforce_chat.engine.sampling.options import Sampling

READS = ("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "is_nonzero", "equal")
COPIES = ("tolist", "numpy", "cpu")
WARPS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=0.8, seed=1),
    "top-p": Sampling(temperature=0.8, top_p=0.9, seed=1),
    "everything": Sampling(0.7, top_k=30, top_p=0.9, min_p=0.05, repetition_penalty=1.2, seed=1),
    "greedy penalty": Sampling(repetition_penalty=1.2),
}


class Reads(TorchDispatchMode):
    """Counts operators whose result the host must wait for."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.copies = Copies()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or masked:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Reads:
        TorchFunctionMode.__enter__(self.copies)
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)
        TorchFunctionMode.__exit__(self.copies, *error)

    @property
    def count(self) -> int:
        return len(self.seen) + len(self.copies.seen)


class Copies(TorchFunctionMode):
    """Counts methods that hand a tensor to the host without an operator."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in COPIES:
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Blind(Stateless):
    """A model that never looks at its tokens; ``tilt`` sets its distribution apart from others'."""

    vocabulary = 2 * CANDIDATES
    captures = False

    def __init__(self, tilt: float = 0.0, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.row = torch.arange(self.vocabulary, device=device).remainder(7 + tilt)

    def __call__(self, ids: Tensor, cache: ToyCache, rows: int, offset: Tensor | None = None) -> Tensor:
        assert offset is None
        cache.fed = [0] * ids.shape[1]
        cache.advance(ids.shape[1])
        return self.row.expand(1, rows, -1)
