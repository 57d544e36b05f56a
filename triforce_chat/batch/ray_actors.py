"""A worker pool of Ray actors, each with an engine of its own, on the machines of a cluster.

With ``--tp`` an engine has an actor for each rank, in a placement group, so that they may be of several machines; ranks
find each other as those that torchrun started.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from triforce_chat.batch.driver import NoWorkerLeft
from triforce_chat.batch.lines import Answerer, Line
from triforce_chat.batch.worker import Job, Load, answer, loaded
from triforce_chat.batch.worker_pool import TICK, Done, Lost, Replaceable, Report, Unusable
from triforce_chat.errors import TriforceError, UsageError
from triforce_chat.settings.settings import Settings

CONNECT = 10.0  # seconds for a cluster to answer
PATIENCE = 600.0  # seconds for a cluster that has lost its machines to get others
OBJECT_STORE = 100 << 20  # bytes of a cluster on this machine; it carries paths and answers only
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # no reports, no advice
Address = tuple[str, int]  # where the ranks of an engine meet


class Rank:
    """The actor of a rank other than 0."""

    def run(self, address: Address, rank: int, size: int) -> None:
        """Take part in an engine until its rank 0 ends it."""
        from triforce_chat.parallel.rank_info import this_rank
        from triforce_chat.parallel.worker import run_launched

        os.environ.update(as_by_torchrun(address, rank, size))
        run_launched(this_rank(size, os.environ))


class Reader:
    """The actor that answers. It works like a worker process, but returns its reports."""

    def __init__(self, job: Job, folder: str) -> None:
        """``folder``: the one that paths start from."""
        self._job, self._folder = job, folder
        self._answerer: Answerer | None = None

    def address(self) -> Address:
        """A place on this machine where the ranks of an engine can meet."""
        import ray

        with socket.create_server(("", 0)) as free:
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def load(self, address: Address | None, size: int) -> list[Report]:
        """Load the model, if there is an address together with other ranks, who are ``size`` with this one."""
        if address is not None:
            os.environ.update(as_by_torchrun(address, 0, size))
        reports: list[Report] = []
        try:
            os.chdir(self._folder)
        except OSError as error:
            told = TriforceError(f"{self._folder}: {error.strerror} on a machine of the cluster")
            return [Unusable(self._job.worker, told)]
        self._answerer = loaded(self._job, reports.append)
        return reports

    def answer(self, lines: Sequence[Line]) -> list[Report]:
        assert self._answerer is not None
        reports = answer(self._job, self._answerer, lines)
        return [report for report in reports if isinstance(report, Done | Lost)]


@dataclass(frozen=True, slots=True)
class Share:
    """What there is for the actors in a cluster."""

    workers: int
    ranks: int  # of each worker
    gpus: int  # of each rank
    cpus: int


@dataclass(slots=True)
class Actors:
    """The actors of one worker, in a placement group if they are several."""

    reader: Any
    ranks: Sequence[Any] = ()  # but the first
    group: Any = None


class RayActors(Replaceable):
    """A worker pool of actors. Ray does not restart them: the driver does, and knows which lines were lost."""

    elsewhere = True

    def __init__(
        self,
        load: Load,
        address: str,
        settings: Settings,
        wanted: int | None,
        groups: int,
        limit: float | None,
    ) -> None:
        """Connect to the cluster at ``address``. ``wanted``: workers, of which there are at most ``groups``.

        Raises UsageError if there is no cluster, or none that is large enough.
        """
        self._ray = connected(address)
        self._share = share(self._ray.cluster_resources(), len(alive(self._ray)), settings, wanted, groups)
        self.size, self.patience = self._share.workers, PATIENCE
        self._load, self._limit = load, limit
        self._actors: dict[int, Actors] = {}
        self._calls: dict[Any, int] = {}  # what is awaited of which worker

    def end(self, finishing: bool) -> None:  # noqa: ARG002 (an actor writes nothing to the disk)
        self._ray.shutdown()  # ends the actors of this driver

    def give(self, worker: int, lines: Sequence[Line]) -> None:
        self._calls[self._actors[worker].reader.answer.remote(lines)] = worker

    def reports(self) -> Iterator[Report]:
        try:
            ready, _ = self._ray.wait(list(self._calls), timeout=TICK)
        except self._ray.exceptions.RayError as error:
            raise NoWorkerLeft(f"the Ray cluster is gone: {first_line(error)}") from None
        for call in ready:
            worker = self._calls.pop(call)
            try:
                yield from self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                yield Lost(worker, f"the actor was lost ({first_line(error)})")

    def dismiss(self, worker: int) -> None:
        self._calls = {call: other for call, other in self._calls.items() if other != worker}
        ended = self._actors.pop(worker)
        for actor in (ended.reader, *ended.ranks):
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)
        if ended.group is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(ended.group)

    def start(self, worker: int) -> None:
        size, job = self._share.ranks, Job(worker, self._load, self._limit)
        group = self._group() if size > 1 else None
        reader = self._placed(Reader, group, 0).remote(job, os.getcwd())
        ranks = [self._placed(Rank, group, rank).remote() for rank in range(1, size)]
        address = reader.address.remote() if ranks else None
        for number, rank in enumerate(ranks, 1):
            rank.run.remote(address, number, size)
        self._actors[worker] = Actors(reader, ranks, group)
        self._calls[reader.load.remote(address, size)] = worker

    def _group(self) -> Any:
        """Room for the ranks of a worker, on one machine if one has it."""
        each = {"CPU": self._share.cpus, **({"GPU": self._share.gpus} if self._share.gpus else {})}
        return self._ray.util.placement_group([each] * self._share.ranks, strategy="PACK")

    def _placed(self, kind: type, group: Any, rank: int) -> Any:
        """An actor's class with its share of the cluster."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = "DEFAULT" if group is None else PlacementGroupSchedulingStrategy(group, rank)
        wanted = {"num_gpus": self._share.gpus, "num_cpus": self._share.cpus}
        return self._ray.remote(**wanted, scheduling_strategy=place)(kind)


def as_by_torchrun(address: Address, rank: int, size: int) -> dict[str, str]:
    """The environment of a rank that has one device, and shares a model with others anywhere."""
    host, port = address
    named = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    return {"MASTER_ADDR": host, **{name: str(value) for name, value in named.items()}}


def require_extra() -> None:
    """Raises UsageError if Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError("--ray needs Ray, this program's extra 'ray'; install it: pip install ray")


def connected(address: str) -> Any:
    """Ray, as a driver of the cluster at ``address``; "local" starts one on this machine. Raises UsageError."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        check_reachable(address)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"no Ray cluster at {address}: {first_line(error)}") from None
    return ray


def check_reachable(address: str) -> None:
    """Raises OSError if nothing listens at "host:port", where Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()


def alive(ray: Any) -> list[dict[str, Any]]:
    """The machines of the cluster."""
    return [node for node in ray.nodes() if node["Alive"]]


def share(
    resources: Mapping[str, float], nodes: int, settings: Settings, wanted: int | None, groups: int
) -> Share:
    """What each worker gets: a GPU for each of its ``tp`` ranks where there are any, else an equal part of the cores.

    By default there are as many workers as the GPUs suffice for, or one per machine. Raises UsageError if the GPUs do
    not suffice for the workers that are wanted.
    """
    gpus, cpus, ranks = int(resources.get("GPU", 0)), int(resources.get("CPU", 1)), settings.tp
    if gpus and settings.device != "cpu":
        places = gpus // ranks
        if (wanted or 1) > places:
            raise UsageError(
                f"{wanted or 1} workers with --tp {ranks} need {(wanted or 1) * ranks} GPUs; "
                f"the cluster has {gpus}"
            )
        return Share(min(wanted or places, groups), ranks, 1, 1)
    workers = min(wanted or max(1, nodes // ranks), groups)
    return Share(workers, ranks, 0, max(1, cpus // max(workers * ranks, nodes)))


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
