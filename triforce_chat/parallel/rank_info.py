"""The position of this process among those that share a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from triforce_chat.errors import UsageError

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A process's rank among ``size`` processes, of which ``local_size`` run on this machine."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    by_torchrun: bool = False  # otherwise rank 0 starts the other processes itself


def this_rank(size: int, environment: Mapping[str, str]) -> RankInfo:
    """The rank of this process, from torchrun's variables if they are set.

    Raises UsageError if torchrun started another number of processes than ``size``.
    """
    if not by_torchrun(environment):
        return RankInfo(0, 0, size, size)
    if environment["WORLD_SIZE"] != str(size):
        raise UsageError(f"--tp {size}, but {environment['WORLD_SIZE']} ranks were started; make them equal")
    rank = int(environment["RANK"])
    local_rank = int(environment.get("LOCAL_RANK", rank))
    return RankInfo(rank, local_rank, size, int(environment.get("LOCAL_WORLD_SIZE", size)), by_torchrun=True)


def by_torchrun(environment: Mapping[str, str]) -> bool:
    """True if torchrun started this process as one of several."""
    return all(name in environment for name in TORCHRUN_VARIABLES) and environment["WORLD_SIZE"] != "1"


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
