"""The interface of an engine, whether it runs in one process or in several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from triforce_chat.engine.events import Event, Prefilled, Retraced
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.calibration import Calibration
from triforce_chat.engine.speculation.plan import Expected
from triforce_chat.engine.speculation.stacks import StackOptions

if TYPE_CHECKING:
    from triforce_chat.engine.engine import Engine, Request


class EngineProtocol(Protocol):
    """Implemented by ``Engine``, where each member is documented.

    One generator at a time: it must be closed or exhausted before the next call.
    """

    @property
    def forkable(self) -> Engine | None: ...
    @property
    def context(self) -> int: ...
    @property
    def options(self) -> StackOptions: ...
    @property
    def expected(self) -> Expected: ...
    @property
    def calibration(self) -> Calibration: ...
    @property
    def calibration_key(self) -> str: ...
    @property
    def plan_key(self) -> str: ...
    @property
    def target(self) -> Runner: ...
    @property
    def draft(self) -> Runner | None: ...
    @property
    def decode(self) -> Callable[[Sequence[int]], str]: ...

    def check(self, options: StackOptions) -> None: ...

    def restack(self, options: StackOptions) -> None: ...

    def prepare(self, request: Request) -> None: ...

    def settle(self, tokens: Sequence[int]) -> None: ...

    def prefill(
        self,
        prompt: Sequence[int],
        spans: Sequence[DocumentSpan] = (),
        sampling: Sampling | None = None,
    ) -> Generator[Prefilled, None, None]: ...

    def answer(self, request: Request, plain: bool = False) -> Generator[Event, None, None]: ...

    def calibrate(self, request: Request) -> Generator[Event, None, None]: ...

    def rescore(
        self, request: Request, made: Sequence[int], rows: int = 64
    ) -> Iterator[tuple[Tensor, Tensor]]: ...

    def attribute(self, request: Request, made: Sequence[int]) -> Generator[Retraced, None, list[float]]: ...
