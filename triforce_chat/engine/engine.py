"""The engine: a target model, its full cache and a stack of speculative levels; token ids in, events out."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from triforce_chat.engine.attribution import attribute
from triforce_chat.engine.cache.evicting import EvictingCache
from triforce_chat.engine.cache.eviction import Eviction
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, KVPool, KVStorage
from triforce_chat.engine.cuda_graph import SIZES
from triforce_chat.engine.detokenizer import AnswerText, TextCodec, Thinking
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.events import (
    Calibrated,
    Event,
    Finished,
    FinishReason,
    Forgot,
    Prefilled,
    Retraced,
    Text,
)
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.gathered import Gathering, rows_each
from triforce_chat.engine.prefix_cache import PrefixCache
from triforce_chat.engine.prefix_store import DocumentSpan, NullStore, PrefixStore
from triforce_chat.engine.sampling.batched import BatchedExecutor
from triforce_chat.engine.sampling.constraint import MakeConstraint
from triforce_chat.engine.sampling.executor import FEW_SIZES, EagerExecutor, Executor, GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.calibration import Calibration
from triforce_chat.engine.speculation.calibrator import (
    CalibrationStore,
    Calibrator,
    NoCalibrations,
    SharedCalibrations,
)
from triforce_chat.engine.speculation.plan import Expected
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.stacks import Builder, StackOptions
from triforce_chat.errors import DoesNotFit

PLAIN = StackOptions(name="autoregressive")
SCRATCH = 256 + MAX_TREE  # tokens after the longest answer, for drafts of all levels
# Least rows that each of several sequences has in a verification where drafting pays: 32 of them, each of which could
# draft a single token, took a tenth longer with drafts than without.
WORTH_ROWS = 3
SLACK = 64  # slots after the context, for proposals that are not committed yet


@dataclass(frozen=True, slots=True)
class Request:
    """What to answer, and how."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    spans: Sequence[DocumentSpan] = ()  # of the prompt's documents
    generated: Sequence[
        int
    ] = ()  # the tokens so far of an answer that was interrupted and is to be continued
    past_end: bool = False  # ignore end-of-sequence tokens, to measure answers of equal length
    # For benchmarks: the first tokens that the answer is going to be, accepted as often as if they had been sampled.
    forced: Sequence[int] = ()
    # For benchmarks: the number of a run. In runs of one number, stacks test what they draft for a place by the same
    # random number: which of them is faster is then no matter of luck.
    luck: int | None = None
    constraint: MakeConstraint | None = None  # which tokens the answer may have; None: all
    thinking: Thinking | None = None  # how the model marks a thought; None: it has none

    @property
    def history(self) -> Sequence[int]:
        """The tokens before the next one."""
        return [*self.prompt, *self.generated] if self.generated else self.prompt


class Room(Protocol):
    """Where an engine keeps keys and values."""

    @property
    def count(self) -> int:
        """How many engines keep theirs side by side."""
        ...

    def storage(self, shape: Shape, capacity: int) -> KVStorage:
        """The storage of a full cache of ``capacity`` tokens."""
        ...

    def buffer(self, shape: Shape, capacity: int) -> KVBuffer:
        """The buffer of a stack's next small cache."""
        ...


class Engine:
    """Answers requests one at a time; a prefix that prompts share is computed once.

    ``context`` is the largest number of tokens of prompt and answer together; ``storage`` makes the KV storage of the
    full cache for a shape and a capacity in tokens, ``buffer`` that of a stack's small caches. ``calibrations`` keeps
    what planners have measured. ``executor`` is another engine's, where both take turns. ``eviction``: how the full
    cache forgets, if the context is longer than it; answers are then exact relative to that cache.
    """

    def __init__(
        self,
        target: Runner,
        context: int,
        codec: TextCodec,
        draft: Runner | None = None,
        options: StackOptions | None = None,
        prefix_store: PrefixStore | None = None,
        storage: Callable[[Shape, int], KVStorage] = storage_for,
        calibrations: CalibrationStore | None = None,
        buffer: Callable[[Shape, int], KVBuffer] = KVBuffer,
        executor: Executor | None = None,
        eviction: Eviction | None = None,
    ) -> None:
        self.target, self.draft, self.context = target, draft, context
        self.buffer, self.others = buffer, executor
        self.pools: dict[str, KVPool] = {}  # of the sequences of forked engines, by their role
        self.calibrations = calibrations or NoCalibrations()
        self.shared_calibrations = SharedCalibrations(self.calibrations)  # of forked engines
        self.eos_ids, self.decode = codec.eos_ids, codec.decode
        self.group = target.group
        if eviction is None:
            large = (options or StackOptions()).streaming(target.streamed is not None, keys=False).beyond
            self.full = FullCache(target.shape, context + SLACK + large, storage=storage)
        else:
            self.full = EvictingCache(target.shape, eviction, target.frequencies, SLACK, storage)
        # Every token in a slot of its own on the device, and none is forgotten.
        self.shareable = self.full.storage.slot(0) is not None and not self.full.evicts
        self.prefix = PrefixCache(target, self.full, prefix_store or NullStore(), self._rollback)
        self.pending: deque[Event] = deque()  # events of the levels, emitted with the next tokens
        self.restack(options or StackOptions())

    def restack(self, options: StackOptions) -> None:
        """Replace the stack of levels, and their CUDA graphs with it; the full cache stays."""
        self.executor: Executor = self.others or self._own_executor()
        builder = self._builder(options)
        self.top = builder.build()
        self.calibrator = Calibrator(builder, self.top, self.calibrations)
        self.options = self.forked_options = options  # its own stack, and that of engines forked from it

    def _own_executor(self) -> Executor:
        if self.target.device.type != "cuda":
            return EagerExecutor()
        waits = self.full.storage.streams or self.target.streamed is not None
        return GraphExecutor(FEW_SIZES if waits else SIZES)

    def check(self, options: StackOptions) -> None:
        """Raise UsageError if ``restack`` would refuse these options."""
        self._builder(options).check()

    @property
    def forkable(self) -> Engine | None:
        """This engine, if ``fork`` can make others like it, whose forwards are worth running together.

        Not where every forward streams keys and values from host memory, which would have to come once for each; nor
        where they are quantized, as only slots are shared; nor where a draft reads the state of the target's latest
        forward, or where the cache forgets; nor on a GPU without graphs or with a level over a quantized copy, or with
        several ranks.
        """
        alone = not self.shareable or self.target.state is not None or self.group.size > 1
        on_gpu = self.target.device.type == "cuda"
        copies = self.target.captures and self.forked_options.copies
        return None if alone or copies or (on_gpu and not self.target.captures) else self

    def gathered_options(self, options: StackOptions, sequences: int, shared: int) -> StackOptions:
        """The stack by which each of so many sequences decodes, of which ``options`` were asked for.

        ``auto`` decodes plainly there on a CPU, and without a draft model: a step of all sequences costs little more
        than one of a single one, and drafts that have to pay for their rows in all of them cost more than they bring.
        So it does where they are so many, after ``shared`` tokens that all begin with, that each could draft one token.
        """
        rows = rows_each(sequences, not shared)
        drafts = self.target.places_on_device and self.draft is not None and rows >= WORTH_ROWS
        plain = options.name == StackOptions().name and not drafts
        return PLAIN if plain else options

    def give_way(self, shared: int) -> None:
        """Give back the memory that only answers of its own need: from now on forked engines answer.

        They decode by the stack that this one had. Its keys and values stay for them if they have ``shared`` tokens.
        """
        wanted = self.forked_options
        self.restack(PLAIN)
        self.forked_options = wanted
        copies = vars(self.target).pop("quantized", None)
        if copies is not None:
            copies.alone = self.target  # what loading made is not looked through for cycles
        if not shared:
            self.prefix.rollback(0)
            self.full.release()
        self.clear_pools()

    def clear_pools(self) -> None:
        """Give back the memory of all forked engines, none of which may be in use."""
        self.pools.clear()
        gc.collect()
        if self.target.device.type == "cuda":
            torch.cuda.empty_cache()

    def pool(self, role: str, shape: Shape, sequences: int, capacity: int) -> KVPool:
        """Room for several sequences; the same as before for as long as the sizes are the same."""
        found = self.pools.get(role)
        sizes = shape, sequences, capacity
        if found is None or (found.shape, found.count, found.capacity) != sizes:
            self.pools.pop(role, None)
            found = None
            gc.collect()  # forked engines are cycles: their memory must be free before the new one's is taken
            found = self.pools[role] = KVPool(shape, sequences, capacity)
        return found

    def fork(self, shared: int, context: int, gathering: Gathering, place: Room) -> Engine:
        """An engine for another sequence whose prompt begins with the first ``shared`` tokens in the cache.

        Both read the same keys and values of those, so this engine must keep them for as long as the other is used.
        ``context`` and ``place``: of the new engine; the forwards of both models go through ``gathering``. What its
        planners learn, whose times are those of several sequences, is kept for other forks alone.
        """
        options = self.gathered_options(self.forked_options, place.count, shared)
        made = Engine(
            self.target.gathered_by(gathering),
            context,
            TextCodec(self.decode, self.eos_ids),
            self.draft and self.draft.gathered_by(gathering),
            options.beside(place.count) if self.target.places_on_device else options,
            storage=place.storage,
            calibrations=self.shared_calibrations,
            buffer=place.buffer,
            executor=BatchedExecutor(self.executor, gathering, place.count if self.target.captures else 1),
        )
        made.prefix.adopt(self.prefix, shared)
        return made

    @property
    def expected(self) -> Expected:
        """What the top level's planner expected of this stack's rounds so far; nothing where none plans."""
        planner = self.top.planner
        return planner.expected if planner.decides else Expected(0.0, 0.0)

    @property
    def calibration(self) -> Calibration:
        """The figures of the present stack on this machine."""
        return self.calibrator.known

    @property
    def calibration_key(self) -> str:
        """A short name of those figures where they are kept; empty if they are not."""
        return self.calibrator.key

    @property
    def plan_key(self) -> str:
        """Names the figures that the latest answer was planned by: where it is the same, so are a seed's tokens.

        Empty where no kept figures count: in stacks that plan nothing, and after an answer that learns as it goes.
        """
        key, digest = self.calibrator.key, self.calibrator.digest
        return f"{key}-{digest}" if key and digest else ""

    def _builder(self, options: StackOptions) -> Builder:
        return Builder(
            self.target, self.full, self.draft, options, self.pending.append, self.group, self.buffer
        )

    @property
    def cached(self) -> list[int]:
        """The tokens whose keys and values the full cache holds."""
        return self.prefix.ids

    def _rollback(self, length: int) -> None:
        self.top.rollback(length)

    def prefill(
        self,
        prompt: Sequence[int],
        spans: Sequence[DocumentSpan] = (),
        sampling: Sampling | None = None,
    ) -> Generator[Prefilled, None, None]:
        """Bring the full cache to exactly ``prompt``; may be closed after any event and resumed later.

        ``sampling``: of the answer that will follow; meanwhile a GPU's graphs are captured for it. Raises DoesNotFit.
        """
        self.require_room(len(prompt))
        if sampling is None:
            return self.prefix.prefill(prompt, spans)
        sampler = self.sampler(Request(prompt, 0, sampling))
        return self.prefix.prefill(prompt, spans, self.top.preparations(len(prompt), sampler))

    def require_room(self, tokens: int) -> None:
        """Raise DoesNotFit unless the context has room for so many tokens."""
        if tokens > self.context:
            raise DoesNotFit(f"{tokens:,} tokens do not fit into the engine's context of {self.context:,}")

    def prepare(self, request: Request) -> None:
        """Capture at once all graphs that the answer to a prefilled request may need; nothing on a CPU."""
        for prepare in self.top.preparations(len(request.history), self.sampler(request)):
            prepare()

    def sampler(self, request: Request) -> Sampler:
        """The sampler of an answer."""
        start, done = len(request.prompt), len(request.generated)
        return Sampler(request.sampling, start, done, self.executor, bool(request.forced))

    def answer(self, request: Request, plain: bool = False) -> Generator[Event, None, None]:
        """Prefill what is new, then decode until a stop; ``plain`` decodes autoregressively.

        May be closed after any event: the tokens of all ``Text`` events stay in the caches, and nothing else. Raises
        ValueError for an empty prompt, DoesNotFit for one that is longer than the context, and ModelError if the model
        computes no distribution.
        """
        self.require_room(len(request.history))
        if not request.prompt:
            raise ValueError("a prompt needs at least one token")
        started = time.perf_counter()
        cached, length = 0, len(request.history)
        if not plain:
            self.calibrator.begin(length)  # before the prefill: what pays is prepared meanwhile
        answer = Answer(self, request, self._builder(PLAIN).build() if plain else self.top)
        meanwhile = answer.top.preparations(length, answer.sampler)
        forgotten = 0
        for progress in self.prefix.prefill(request.history[:-1], request.spans, meanwhile):
            cached = progress.cached
            yield progress
            if self.full.forgotten != forgotten:
                forgotten = self.full.forgotten
                yield self.forgot
        ready = began = time.perf_counter()
        if not plain and self.options.repeatable:
            if self.calibrator.lacks(length):
                yield from self._measure(request)
                began = time.perf_counter()
                self.calibrator.begin(length)  # again, by what was measured
            self.full.queries.forget()  # an earlier answer's may stand in the places of the prompt's
        try:
            yield from answer.events()
            finished = time.perf_counter()
        finally:
            if not plain:
                self.calibrator.end()
        yield Finished(
            reason=answer.reason or "stop",
            prompt_tokens=len(request.history),
            cached_tokens=cached,
            completion_tokens=len(answer.generated),
            prefill_s=ready - started,
            first_token_s=(answer.first or finished) - started,
            decode_s=finished - began,
        )

    def calibrate(self, request: Request) -> Generator[Event, None, None]:
        """Prefill what is new and measure the stack there, unless that was done; nothing of it stays in the caches."""
        yield from self.prefill(request.history[:-1], request.spans)
        if self.calibrator.lacks(len(request.history)):
            yield from self._measure(request)

    def _measure(self, request: Request) -> Generator[Calibrated, None, None]:
        """Measure the stack after a history of which all tokens except the last are in the cache."""
        request = replace(request, forced=())
        given = request.history
        most = self.context - len(given)
        history = TokenBuffer.of(given, max(most, 0) + SCRATCH, self.target.device)
        try:
            self.prepare(request)  # no round is to measure a capture
            yield from self.calibrator.measure(history, self.sampler(request), self.full.queries, most)
        finally:
            self.settle(given)
            self.pending.clear()

    def rescore(
        self, request: Request, made: Sequence[int], rows: int = 64
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Score the tokens of an answer by plain decoding: blocks of (scores [n, V], the made tokens [n]).

        These are ``Sampler.scores`` at each position, over the full cache; a block is valid until the next one.
        """
        for _ in self.prefill(request.prompt[:-1], request.spans):
            pass
        sampler = Sampler(request.sampling, len(request.prompt))
        history = self._tensor([*request.prompt, *made])
        first = len(request.prompt)
        while first < len(history):
            self.full.make_room()
            fed = history[: min(first + rows - 1, len(history) - 1, self.full.limit)]
            n = len(fed) - first + 1
            logits = self.target(self.full.pending(fed)[None], self.full, n)[0]
            yield sampler.scores(logits, fed), history[first : first + n]
            first += n
        self.settle(history.tolist())

    def attribute(self, request: Request, made: Sequence[int]) -> Generator[Retraced, None, list[float]]:
        """The summed squared attention that the tokens of the latest answer paid to each token of the prompt."""
        # The answer's tokens are predicted by the token before it and all of its tokens but the last.
        tokens = [*request.prompt, *made[:-1]]
        for _ in self.prefill(tokens, request.spans):
            pass
        prompt = len(request.prompt)
        given = self._tensor(tokens)
        return (yield from attribute(self.target, self.full, given, prompt - 1, prompt, self.group))

    @property
    def forgot(self) -> Forgot:
        """What the full cache has evicted."""
        return Forgot(self.full.forgotten, self.full.length)

    def settle(self, tokens: Sequence[int]) -> None:
        """Commit ``tokens``, the last of which is not in the cache yet."""
        self.prefix.settle(tokens)

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.target.device)


class Answer:
    """Decodes one request; all tokens of its history except the last are in the cache."""

    def __init__(self, engine: Engine, request: Request, top: Speculative) -> None:
        self.engine, self.request, self.top = engine, request, top
        self.sampler = engine.sampler(request)
        self.text = AnswerText(engine.decode, request.stop, request.thinking)
        self.text.resume(request.generated)
        self.most = min(request.max_tokens, engine.context - len(request.history))
        self.generated: list[int] = []
        self.first: float | None = None  # time of the first token
        self.reason: FinishReason | None = None if self.most > 0 else "length"

    def events(self) -> Iterator[Event]:
        request, room, device = self.request, self.most + SCRATCH, self.engine.target.device
        history = TokenBuffer.of(request.history, room, device, request.forced, request.luck)
        self.engine.pending.clear()
        forgotten = self.engine.full.forgotten
        try:
            for ids in self._decode(history):
                self.first = self.first or time.perf_counter()
                yield from self._drain()
                if self.engine.full.forgotten != forgotten:
                    forgotten = self.engine.full.forgotten
                    yield self.engine.forgot
                yield self._commit(ids)
                if self.reason is not None:
                    break
        finally:
            self.engine.settle([*self.request.history, *self.generated])

    def _decode(self, history: TokenBuffer) -> Iterator[list[int]]:
        """The committed tokens of each round, within the constraint of the request."""
        if self.most <= 0:
            return iter(())
        constraint = self.request.constraint() if self.request.constraint else None
        if constraint is not None:
            constraint.advance(self.request.generated)
        return self.top.decode(history, self.sampler, self.most, constraint)

    def _commit(self, ids: Sequence[int]) -> Text:
        """Append tokens up to the first stop, whichever position of the round it is at."""
        before, shown, thought = len(self.generated), "", self.text.thought
        thought_length, thought_tokens = len(thought.text), thought.tokens
        for token in ids:
            self.generated.append(token)
            shown += self._show(token)
            if self.reason is None and len(self.generated) == self.most:
                self.reason = "length"
            if self.reason is not None:
                break
        if self.reason == "length":
            shown += self.text.cut()
        answered = thought.text[thought_length:]
        return Text(tuple(self.generated[before:]), shown, answered, thought.tokens - thought_tokens)

    def _show(self, token: int) -> str:
        if token in self.engine.eos_ids and not self.request.past_end:
            self.reason = "stop"
            return self.text.flush()
        text, met = self.text.push(token)
        if met:
            self.reason = "stop"
        return text

    def _drain(self) -> Iterator[Event]:
        while self.engine.pending:
            yield self.engine.pending.popleft()
