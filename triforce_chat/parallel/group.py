"""torch.distributed as the engine uses it: a process group, and a ``RankGroup`` over it."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from triforce_chat.engine.group import GraphOwner
from triforce_chat.errors import UsageError
from triforce_chat.parallel.place import Place
from triforce_chat.parallel.start import FOR_EVER

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOPBACK = ("lo", "lo0")


def device_of(kind: str, place: Place) -> str:
    """Where this rank computes: GPU number ``local_rank``, or the CPU. Raises UsageError."""
    if kind == "cpu":
        return kind
    if kind != "cuda":
        raise UsageError(f"--tp gives every rank a GPU of its own; choose --device cuda, not {kind}")
    there = torch.cuda.device_count()
    if there < place.local_size:
        raise UsageError(f"--tp needs a GPU for each of {place.local_size} ranks; this machine has {there}")
    return f"cuda:{place.local_rank}"


class Ranks:
    """Implements ``engine.group.RankGroup``. All ranks make one at the same time."""

    def __init__(self, place: Place, store: Store, device: str) -> None:
        self.rank, self.size = place.rank, place.size
        self.device = torch.device(device)
        self.sharing = place.local_size if self.device.type == "cpu" else 1
        self.recorders: WeakSet[GraphOwner] = WeakSet()
        atexit.register(self.forget)
        os.environ["LOCAL_RANK"] = str(place.local_rank)  # where transformers looks
        if self.device.type == "cpu":
            share_cores(place)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.size, timeout=FOR_EVER
            )
        else:
            torch.cuda.set_device(self.device)
            dist.init_process_group(
                "nccl",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=FOR_EVER,
                device_id=self.device,
            )

    def broadcast_tokens(self, own: Tensor) -> Tensor:
        told = own.clone()
        dist.broadcast(told, 0)
        return told

    def broadcast_ints(self, own: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.broadcast_tokens(torch.tensor(own, device=self.device)).tolist())

    def broadcast(self, own: Tensor) -> Tensor:
        return self.broadcast_tokens(own)

    def all_reduce_sum(self, own: Tensor) -> Tensor:
        dist.all_reduce(own)
        return own

    def all_reduce_min(self, own: int) -> int:
        number = torch.tensor(own, device=self.device)
        dist.all_reduce(number, dist.ReduceOp.MIN)
        return int(number)

    def register_graphs(self, by: GraphOwner) -> None:
        self.recorders.add(by)

    def forget(self) -> None:
        """Give up all graphs: NCCL's part of the process does not end while one of them holds a call of it."""
        for each in list(self.recorders):
            each.forget()

    def leave(self) -> None:
        """Once no rank calls the group any more."""
        self.forget()
        dist.destroy_process_group()


def share_cores(place: Place) -> None:
    """Threads for one of the ranks on this machine, and a way between them that needs no network."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // place.local_size))
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in LOOPBACK if name in names), None)
    if loopback and place.local_size == place.size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def cores() -> int:
    """Processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
