"""A crew of Ray actors, each with an engine of its own, on the machines of a cluster."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from triforce_chat.batch.crew import TICK, Done, Lost, Replaceable, Report, Unusable
from triforce_chat.batch.driver import NoWorkerLeft
from triforce_chat.batch.lines import Answerer, Line
from triforce_chat.batch.worker import Job, Load, answer, loaded
from triforce_chat.errors import TriforceError, UsageError
from triforce_chat.settings.settings import Settings

CONNECT = 10.0  # seconds for a cluster to answer
PATIENCE = 600.0  # seconds for a cluster that has lost its machines to get others
OBJECT_STORE = 100 << 20  # bytes of a cluster on this machine; it carries paths and answers only
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # no reports, no advice


class Reader:
    """The actor. It works like a worker process, but returns its reports."""

    def __init__(self, job: Job, folder: str) -> None:
        """``folder``: the one that paths start from."""
        self._job, self._folder = job, folder
        self._answerer: Answerer | None = None

    def load(self) -> list[Report]:
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
    """What each actor has of a cluster."""

    workers: int
    gpus: int
    cpus: int


class RayActors(Replaceable):
    """A crew of actors. Ray does not restart them: the driver does, and knows which lines were lost."""

    def __init__(
        self,
        load: Load,
        address: str,
        settings: Settings,
        wanted: int | None,
        groups: int,
        limit: float | None,
        patience: float = PATIENCE,
    ) -> None:
        """Connect to the cluster at ``address``. ``wanted``: workers, of which there are at most ``groups``.

        Raises UsageError if there is no cluster, or none that is large enough.
        """
        self._ray = connected(address)
        self._share = share(self._ray.cluster_resources(), len(alive(self._ray)), settings, wanted, groups)
        self.size, self.patience = self._share.workers, patience
        self._load, self._limit = load, limit
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # what is awaited of which worker

    def end(self, finishing: bool) -> None:  # noqa: ARG002 (an actor writes nothing to the disk)
        self._ray.shutdown()  # ends the actors of this driver

    def give(self, worker: int, lines: Sequence[Line]) -> None:
        self._calls[self._actors[worker].answer.remote(lines)] = worker

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
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actors.pop(worker))

    def start(self, worker: int) -> None:
        actor = self._ray.remote(num_gpus=self._share.gpus, num_cpus=self._share.cpus)(Reader)
        self._actors[worker] = actor.remote(Job(worker, self._load, self._limit), os.getcwd())
        self._calls[self._actors[worker].load.remote()] = worker


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
    """Raises OSError if nobody listens at "host:port", where Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()


def alive(ray: Any) -> list[dict[str, Any]]:
    """The machines of the cluster."""
    return [node for node in ray.nodes() if node["Alive"]]


def share(
    resources: dict[str, float], nodes: int, settings: Settings, wanted: int | None, groups: int
) -> Share:
    """What each worker gets: ``tp`` GPUs where there are any, else an equal part of the cores.

    By default there are as many workers as the GPUs suffice for, or one per machine. Raises UsageError if the GPUs do
    not suffice for the workers that are wanted.
    """
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
    if gpus and settings.device != "cpu":
        places = gpus // settings.tp
        if (wanted or 1) > places:
            raise UsageError(
                f"{wanted or 1} workers with --tp {settings.tp} need {(wanted or 1) * settings.tp} GPUs; "
                f"the cluster has {gpus}"
            )
        return Share(min(wanted or places, groups), settings.tp, 1)
    workers = min(wanted or nodes, groups)
    return Share(workers, 0, max(1, cpus // max(workers, nodes)))


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
