"""Where the workers of this machine run: how many there are, and which GPUs and cores each one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triforce_chat.errors import UsageError
from triforce_chat.parallel.rank_info import usable_cores
from triforce_chat.settings.settings import Settings

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"


def worker_count(wanted: int | None, settings: Settings, gpus: int, groups: int) -> int | None:
    """How many worker processes to start; None if this process answers by itself.

    By default there is one per GPU, or per ``tp`` of them, if that makes several. There are never more than ``groups``
    of lines. Raises UsageError if more are wanted than the GPUs suffice for.
    """
    if not shares_gpus(settings, gpus):
        return wanted and min(wanted, groups)
    places = gpus // settings.tp
    if wanted is None:
        return min(places, groups) if min(places, groups) > 1 else None
    if wanted > places:
        raise UsageError(
            f"{wanted} workers with --tp {settings.tp} need {wanted * settings.tp} GPUs; this machine has {gpus}"
        )
    return min(wanted, groups)


def shares_gpus(settings: Settings, gpus: int) -> bool:
    """True if every worker gets GPUs of its own: the device is not the CPU, nor one GPU that was named."""
    return gpus > 0 and settings.device in ("auto", "cuda")


def environments(
    workers: int, settings: Settings, gpus: int, known: Mapping[str, str]
) -> Sequence[Mapping[str, str]]:
    """The variables of each worker that say which GPUs and how many cores it has; ``known``: those of this process."""
    named = [name for name in known.get(VISIBLE, "").split(",") if name] or [str(n) for n in range(gpus)]
    threads = max(1, usable_cores() // (workers * settings.tp))
    cores = {} if THREADS in known else {THREADS: str(threads)}
    if not shares_gpus(settings, gpus):
        return [cores] * workers
    size = settings.tp
    return [{**cores, VISIBLE: ",".join(named[n * size : (n + 1) * size])} for n in range(workers)]
