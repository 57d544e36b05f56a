"""A ``RankGroup`` over a process group of torch.distributed."""

from __future__ import annotations

import atexit
import os
import socket
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from triforce_chat.engine.group import GraphOwner
from triforce_chat.errors import UsageError
from triforce_chat.parallel.rank_info import RankInfo, usable_cores
from triforce_chat.parallel.rendezvous import NO_TIMEOUT

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOPBACK = ("lo", "lo0")


def device_of(kind: str, info: RankInfo) -> str:
    """The device of a rank: GPU number ``local_rank``, or the CPU.

    Raises UsageError if ``kind`` is neither "cuda" nor "cpu", or if there are fewer GPUs than local ranks.
    """
    if kind == "cpu":
        return kind
    if kind != "cuda":
        raise UsageError(f"--tp uses one GPU per rank; choose --device cuda, not {kind}")
    gpus = torch.cuda.device_count()
    if gpus < info.local_size:
        raise UsageError(f"--tp needs a GPU for each of {info.local_size} ranks; this machine has {gpus}")
    return f"cuda:{info.local_rank}"


class DistributedGroup:
    """Implements ``engine.group.RankGroup``. The constructor blocks until all ranks have called it."""

    def __init__(self, info: RankInfo, store: Store, device: str) -> None:
        self.rank, self.size = info.rank, info.size
        self.device = torch.device(device)
        self.sharing = info.local_size if self.device.type == "cpu" else 1
        self.recorders: WeakSet[GraphOwner] = WeakSet()
        atexit.register(self.forget)
        os.environ["LOCAL_RANK"] = str(info.local_rank)  # read by transformers
        if self.device.type == "cpu":
            share_cores(info)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.size, timeout=NO_TIMEOUT
            )
        else:
            torch.cuda.set_device(self.device)
            dist.init_process_group(
                "nccl",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=NO_TIMEOUT,
                device_id=self.device,
            )

    def broadcast_tokens(self, own: Tensor) -> Tensor:
        received = own.clone()
        dist.broadcast(received, 0)
        return received

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
        """Discard all CUDA graphs. NCCL does not shut down while a graph holds one of its calls."""
        for recorder in list(self.recorders):
            recorder.forget()

    def close(self) -> None:
        """Destroy the process group. No rank may use it afterwards."""
        self.forget()
        dist.destroy_process_group()


def share_cores(info: RankInfo) -> None:
    """Give each rank on this machine its share of the cores; connect them by loopback if all are here."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // info.local_size))
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in LOOPBACK if name in names), None)
    if loopback and info.local_size == info.size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
