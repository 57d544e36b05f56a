"""Rank 0's engine, which has the other ranks do the same at the same time."""

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
from triforce_chat.engine.speculation.planner import Expected
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import RankLost
from triforce_chat.parallel.failure import deserted
from triforce_chat.parallel.orders import Call, Step
from triforce_chat.parallel.team import Team

SEEDS = 1 << 48


class Conductor:
    """Implements ``engine.protocol.EngineProtocol``: every call goes to all ranks, and so does every step.

    A generator that is closed here is closed on the other ranks at the same event, so all caches hold the same
    tokens. An error on any rank is the end of all: after it every call raises RankLost.
    """

    def __init__(self, engine: Engine, team: Team) -> None:
        self.engine, self.team = engine, team

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
    def target(self) -> Runner:
        return self.engine.target

    @property
    def draft(self) -> Runner | None:
        return self.engine.draft

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        return self.engine.decode

    def restack(self, options: StackOptions) -> None:
        self.engine.check(options)
        with shared_fate(self.team):
            self.team.tell(Call("restack", (options,)))
            self.engine.restack(options)

    def settle(self, tokens: Sequence[int]) -> None:
        with shared_fate(self.team):
            self.team.tell(Call("settle", (tokens,)))
            self.engine.settle(tokens)

    def prefill(self, prompt: Sequence[int], spans: Sequence[DocumentSpan] = ()) -> Iterator[Prefilled]:
        return self._together("prefill", prompt, spans)

    def answer(self, request: Request, plain: bool = False) -> Iterator[Event]:
        return self._together("answer", seeded(request), plain)

    def rescore(
        self, request: Request, made: Sequence[int], rows: int = 64
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return self._together("rescore", request, made, rows)

    def attribute(self, request: Request, made: Sequence[int]) -> Generator[Retraced, None, list[float]]:
        return self._together("attribute", request, made)

    def _together(self, method: str, *arguments: Any) -> Generator[Any, None, Any]:
        """Run a generator of the engine on all ranks, from event to event."""
        with shared_fate(self.team), closing(getattr(self.engine, method)(*arguments)) as events:
            self.team.tell(Call(method, arguments))
            while True:
                try:
                    event = next(events)
                except StopIteration as end:
                    return end.value
                step = Step.CLOSE
                try:
                    yield event
                    step = Step.GO
                finally:
                    self.team.tell(step)


@contextmanager
def shared_fate(team: Team) -> Iterator[None]:
    """Whatever goes wrong inside ends the other ranks, or comes from their end."""
    try:
        yield
    except (GeneratorExit, RankLost):
        raise
    except Exception as error:
        lost = team.loss() if deserted(error) else None
        team.release()
        raise (lost or error) from error
    except BaseException:
        team.release()
        raise


def seeded(request: Request) -> Request:
    """The same request with a seed, so that chance is the same on all ranks."""
    if request.sampling.seed is not None:
        return request
    return dataclasses.replace(
        request, sampling=dataclasses.replace(request.sampling, seed=secrets.randbelow(SEEDS))
    )
