"""Which of the processes that share a model this one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triforce_chat.errors import UsageError

GIVEN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun's variables


@dataclass(frozen=True, slots=True)
class Place:
    """A process among ``size``, of which ``local_size`` are on this machine."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    launched: bool = False  # by torchrun, which started the others as well


def place_of(size: int, environment: Mapping[str, str]) -> Place:
    """This process where ``size`` ranks are wanted. Raises UsageError where torchrun started another number."""
    launched = all(name in environment for name in GIVEN) and environment["WORLD_SIZE"] != "1"
    if not launched:
        return Place(0, 0, size, size)
    if environment["WORLD_SIZE"] != str(size):
        raise UsageError(f"--tp {size}, but {environment['WORLD_SIZE']} ranks were started; make them equal")
    rank = int(environment["RANK"])
    local_rank = int(environment.get("LOCAL_RANK", rank))
    return Place(rank, local_rank, size, int(environment.get("LOCAL_WORLD_SIZE", size)), launched=True)
