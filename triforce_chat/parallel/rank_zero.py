"""The engine of rank 0. It mirrors every call on the other ranks."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from torch import Tensor

from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Prefilled, Retraced
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.calibration import Calibration
from triforce_chat.engine.speculation.plan import Expected
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import RankLost
from triforce_chat.parallel.commands import Call, Step
from triforce_chat.parallel.failure import is_lost_peer
from triforce_chat.parallel.workers import Workers

MAX_SEED = 1 << 48


class RankZeroEngine:
    """Implements ``engine.protocol.EngineProtocol`` over all ranks: each call and each generator step is sent to them.

    A generator that is closed here is closed on the other ranks at the same event, so all caches hold the same
    tokens. An error on any rank shuts down all of them; every later call raises RankLost.
    """

    def __init__(self, engine: Engine, workers: Workers) -> None:
        self.engine, self.workers = engine, workers

    @property
    def forkable(self) -> Engine | None:
        return None

    @property
    def context(self) -> int:
        return self.engine.context

    @property
    def options(self) -> StackOptions:
        return self.engine.options

    @property
    def expected(self) -> Expected:
        return self.engine.expected

    @property
    def calibration(self) -> Calibration:
        return self.engine.calibration

    @property
    def calibration_key(self) -> str:
        return self.engine.calibration_key

    @property
    def plan_key(self) -> str:
        return self.engine.plan_key

    @property
    def target(self) -> Runner:
        return self.engine.target

    @property
    def draft(self) -> Runner | None:
        return self.engine.draft

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        return self.engine.decode

    def check(self, options: StackOptions) -> None:
        self.engine.check(options)

    def restack(self, options: StackOptions) -> None:
        self.check(options)
        with shut_down_on_error(self.workers):
            self.workers.send(Call("restack", (options,)))
            self.engine.restack(options)

    def prepare(self, request: Request) -> None:
        with shut_down_on_error(self.workers):
            self.workers.send(Call("prepare", (request,)))
            self.engine.prepare(request)

    def settle(self, tokens: Sequence[int]) -> None:
        with shut_down_on_error(self.workers):
            self.workers.send(Call("settle", (tokens,)))
            self.engine.settle(tokens)

    def prefill(
        self,
        prompt: Sequence[int],
        spans: Sequence[DocumentSpan] = (),
        sampling: Sampling | None = None,
    ) -> Generator[Prefilled, None, None]:
        return self._run_on_all("prefill", prompt, spans, sampling)

    def answer(self, request: Request, plain: bool = False) -> Generator[Event, None, None]:
        return self._run_on_all("answer", with_seed(request), plain)

    def calibrate(self, request: Request) -> Generator[Event, None, None]:
        return self._run_on_all("calibrate", with_seed(request))

    def rescore(
        self, request: Request, made: Sequence[int], rows: int = 64
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return self._run_on_all("rescore", request, made, rows)

    def attribute(self, request: Request, made: Sequence[int]) -> Generator[Retraced, None, list[float]]:
        return self._run_on_all("attribute", request, made)

    def _run_on_all(self, method: str, *arguments: Any) -> Generator[Any, None, Any]:
        """Run a generator of the engine on all ranks, event by event."""
        with shut_down_on_error(self.workers), closing(getattr(self.engine, method)(*arguments)) as events:
            self.workers.send(Call(method, arguments))
            while True:
                try:
                    event = next(events)
                except StopIteration as end:
                    return end.value
                step = Step.CLOSE
                try:
                    yield event
                    step = Step.NEXT
                finally:
                    self.workers.send(step)


@contextmanager
def shut_down_on_error(workers: Workers) -> Iterator[None]:
    """Shut down the other ranks on any error in the block. If a lost rank caused it, raise its RankLost instead."""
    try:
        yield
    except (GeneratorExit, RankLost):
        raise
    except Exception as error:
        lost = workers.loss() if is_lost_peer(error) else None
        workers.shut_down()
        raise (lost or error) from error
    except BaseException:
        workers.shut_down()
        raise


def with_seed(request: Request) -> Request:
    """The request with a random seed if it has none, so that all ranks draw the same random numbers."""
    if request.sampling.seed is not None:
        return request
    return dataclasses.replace(
        request, sampling=dataclasses.replace(request.sampling, seed=secrets.randbelow(MAX_SEED))
    )
