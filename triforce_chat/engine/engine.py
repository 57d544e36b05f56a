"""One target, its full cache, and a stack of levels on top: token ids in, events out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from triforce_chat.engine.attribution import attended
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage, Shape
from triforce_chat.engine.detokenizer import AnswerText
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.events import Event, Finished, FinishReason, Prefilled, Retraced, Text
from triforce_chat.engine.forward import prefill_attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.prefix_store import Chunk, DocumentSpan, NullStore, PrefixStore, chunks
from triforce_chat.engine.sampling.executor import EagerExecutor, Executor, GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.planner import Expected
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import Builder, StackOptions

PREFILL_CHUNK = 512  # tokens; bounds the activations and the wait after Ctrl-C
GPU_PREFILL_CHUNK = (
    prefill_attention.CHUNK
)  # tokens; every forward costs a GPU the launch of some thousand kernels
PLAIN = StackOptions(name="autoregressive")
SCRATCH = 256  # tokens behind the longest answer for drafts of all levels
SLACK = 64  # slots behind the context for proposals that are not committed yet


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to make."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    spans: Sequence[DocumentSpan] = ()  # of the prompt
    said: Sequence[int] = ()  # how the answer began, when it goes on where it was stopped
    past_end: bool = False  # the model's own end is no end: for measuring at one length

    @property
    def history(self) -> list[int]:
        """What the next token follows."""
        return [*self.prompt, *self.said]


class Engine:
    """Answers requests one at a time; what two prompts share at their start is computed once."""

    def __init__(
        self,
        target: Runner,
        context: int,
        eos_ids: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        draft: Runner | None = None,
        options: StackOptions | None = None,
        memory: PrefixStore | None = None,
        store: Callable[[Shape, int], KVStorage] = KVBuffer,
        group: RankGroup = SINGLE,
    ) -> None:
        self.target, self.draft, self.context = target, draft, context
        self.eos_ids, self.decode = eos_ids, decode
        self.full = FullCache(target.shape, context + SLACK, store=store)
        self.cached: list[int] = []  # the ids whose keys and values the full cache holds
        self.read: list[Chunk] = []  # its first chunks, as far as they are whole
        self.prefilled = 0  # its first tokens, up to the first that the model said
        self.spans: Sequence[DocumentSpan] = ()  # of the prompt that was read last
        self.memory = memory or NullStore()
        self.group = group
        self.pending: deque[Event] = deque()
        self.restack(options or StackOptions())

    def restack(self, options: StackOptions) -> None:
        """Put another stack on the same cache."""
        # With its graphs, if any.
        on_gpu = self.target.device.type == "cuda"
        self.executor: Executor = GraphExecutor() if on_gpu else EagerExecutor()
        self.top = self._builder(options).build()
        self.options = options

    def check(self, options: StackOptions) -> None:
        """Raise UsageError unless ``restack`` takes these options."""
        self._builder(options).check()

    @property
    def expected(self) -> Expected:
        """What the top level's planner expected of this stack's rounds so far; nothing where none plans."""
        planner = self.top.planner
        return planner.expected if planner.decides else Expected(0.0, 0.0)

    def _builder(self, options: StackOptions) -> Builder:
        return Builder(self.target, self.full, self.draft, options, self.pending.append, self.group)

    def prefill(self, prompt: Sequence[int], spans: Sequence[DocumentSpan] = ()) -> Iterator[Prefilled]:
        """Bring the full cache to exactly ``prompt``; may be closed at any chunk and resumed later."""
        started = time.perf_counter()
        self.spans = spans
        plan, recalled = chunks(prompt, spans, self._most), 0
        self._reuse(prompt, plan)
        self._align(plan)
        for recalled in self._recall(plan):
            done = len(self.cached)
            yield Prefilled(done, len(prompt), done, time.perf_counter() - started, recalled)
        cached = len(self.cached)
        while True:
            done = len(self.cached)
            yield Prefilled(done, len(prompt), cached, time.perf_counter() - started, recalled)
            if done == len(prompt):
                return
            self._read_on(prompt, plan)

    @property
    def _most(self) -> int:
        """Tokens of a chunk of the prefill."""
        return GPU_PREFILL_CHUNK if self.target.device.type == "cuda" else PREFILL_CHUNK

    def _recall(self, plan: Sequence[Chunk]) -> Iterator[int]:
        """Take chunks from the memory if it goes beyond what is cached; yields how many tokens came so far."""
        known = self.memory.known(plan)
        if not known or plan[known - 1].end <= len(self.cached):
            return
        first = self._whole
        self._rollback(first)
        for chunk in plan[len(self.read) : known]:
            if not self.memory.recall(chunk, self.full):
                return
            self.full.restored(len(chunk.ids))
            self._extend(chunk.ids)
            self.read.append(chunk)
            yield chunk.end - first

    @property
    def _whole(self) -> int:
        """Tokens of the whole chunks in the cache."""
        return self.read[-1].end if self.read else 0

    def _align(self, plan: Sequence[Chunk]) -> None:
        """Begin a chunk again that prefills have read in other pieces: one forward computes it in every process.

        One with tokens that the model said is completed as it is: a turn computes only what is new.
        """
        if len(plan) > len(self.read):
            end = plan[len(self.read)].end
            if min(end, len(self.cached)) <= self.prefilled:
                self._rollback(self._whole)

    def _extend(self, ids: Sequence[int]) -> None:
        """The slots of ``ids`` are filled, as a prefill fills them."""
        if self.prefilled == len(self.cached):
            self.prefilled += len(ids)
        self.cached += ids

    def _read_on(self, prompt: Sequence[int], plan: Sequence[Chunk]) -> None:
        """Compute up to the next end of a chunk."""
        done = len(self.cached)
        chunk = next((each for each in plan if each.end > done), None)
        ids = list(prompt[done : chunk.end if chunk else len(prompt)])
        self.target.prefill(self._tensor(ids), self.full)
        self._extend(ids)
        if chunk:  # a chunk that is recalled brings no queries either: what is drafted shall not depend on it
            self.full.queries.forget()
        self._shelve(plan)

    def _shelve(self, plan: Sequence[Chunk]) -> None:
        """Let the memory keep the chunks of ``plan`` that have become whole."""
        for chunk in plan[len(self.read) :]:
            if chunk.end > len(self.cached):
                return
            self.read.append(chunk)
            self.memory.keep(chunk, self.full)

    def _reuse(self, prompt: Sequence[int], plan: Sequence[Chunk]) -> None:
        """Keep the longest common start of what is cached and ``prompt``."""
        common = 0
        for have, want in zip(self.cached, prompt, strict=False):
            if have != want:
                break
            common += 1
        self._rollback(common)
        same = sum(
            mine.prefix_hash == theirs.prefix_hash for mine, theirs in zip(self.read, plan, strict=False)
        )
        del self.read[same:]

    def _rollback(self, length: int) -> None:
        self.memory.cut(length)
        self.top.rollback(length)
        del self.cached[length:]
        self.prefilled = min(self.prefilled, length)
        while self.read and self.read[-1].end > length:
            self.read.pop()

    def answer(self, request: Request, plain: bool = False) -> Iterator[Event]:
        """Prefill what is new, then decode until a stop; ``plain`` decodes autoregressively.

        May be closed at any event: the tokens of every ``Text`` event are kept, nothing else is.
        """
        if not request.prompt:
            raise ValueError("a prompt needs at least one token")
        started = time.perf_counter()
        cached = 0
        for progress in self.prefill(request.history[:-1], request.spans):
            cached = progress.cached
            yield progress
        ready = time.perf_counter()
        answer = Answer(self, request, self._builder(PLAIN).build() if plain else self.top)
        yield from answer.events()
        finished = time.perf_counter()
        yield Finished(
            reason=answer.reason or "stop",
            prompt_tokens=len(request.history),
            cached_tokens=cached,
            completion_tokens=len(answer.made),
            prefill_s=ready - started,
            first_token_s=(answer.first or finished) - started,
            decode_s=finished - ready,
        )

    def rescore(
        self, request: Request, made: Sequence[int], rows: int = 64
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What plain decoding says of tokens that were made: (scores [n, V], the made tokens [n]) in blocks.

        The scores are those of ``Sampler.scores`` at every position, from the full cache; a block is valid until
        the next one.
        """
        for _ in self.prefill(request.prompt[:-1], request.spans):
            pass
        sampler = Sampler(request.sampling, len(request.prompt))
        history = self._tensor([*request.prompt, *made])
        for first in range(len(request.prompt), len(history), rows):
            fed = history[: min(first + rows, len(history)) - 1]
            n = len(fed) - first + 1
            logits = self.target(self.full.pending(fed)[None], self.full, n)[0]
            yield sampler.scores(logits, fed), history[first : first + n]
        self.settle(history.tolist())

    def attended(self, request: Request, made: Sequence[int]) -> Generator[Retraced, None, list[float]]:
        """How sharply the tokens of the answer that was just made attended to each token of the prompt."""
        # The token before the answer asks for its first token; the last one has asked for nothing yet.
        tokens = [*request.prompt, *made[:-1]]
        for _ in self.prefill(tokens, request.spans):
            pass
        prompt = len(request.prompt)
        given = self._tensor(tokens)
        return (yield from attended(self.target, self.full, given, prompt - 1, prompt, self.group))

    def settle(self, tokens: Sequence[int]) -> None:
        """``tokens`` are committed; the last of them is not in the cache yet."""
        self.cached = list(tokens[: min(self.full.length, len(tokens) - 1)])
        self._rollback(len(self.cached))
        if len(self.cached) - self._whole >= self._most:
            self._shelve(chunks(self.cached, self.spans, self._most))

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.target.device)


class Answer:
    """The decoding of one request whose history, but for its last token, is in the cache."""

    def __init__(self, engine: Engine, request: Request, top: Speculative) -> None:
        self.engine, self.request, self.top = engine, request, top
        said = len(request.said)
        self.sampler = Sampler(request.sampling, len(request.prompt), said, engine.executor)
        self.text = AnswerText(engine.decode, request.stop)
        self.text.recall(request.said)
        self.most = min(request.max_tokens, engine.context - len(request.history))
        self.made: list[int] = []
        self.first: float | None = None  # when the first token was there
        self.reason: FinishReason | None = None if self.most > 0 else "length"

    def events(self) -> Iterator[Event]:
        history = TokenBuffer.of(self.request.history, self.most + SCRATCH, self.engine.target.device)
        self.engine.pending.clear()
        try:
            for ids in self.top.decode(history, self.sampler, self.most) if self.most > 0 else ():
                self.first = self.first or time.perf_counter()
                yield from self._drain()
                yield self._commit(ids)
                if self.reason is not None:
                    break
        finally:
            self.engine.settle([*self.request.history, *self.made])

    def _commit(self, ids: Sequence[int]) -> Text:
        """Take tokens up to the first stop, in whatever role it came."""
        before, shown = len(self.made), ""
        for token in ids:
            self.made.append(token)
            shown += self._show(token)
            if self.reason is None and len(self.made) == self.most:
                self.reason = "length"
            if self.reason is not None:
                break
        if self.reason == "length":
            shown += self.text.flush()
        return Text(tuple(self.made[before:]), shown)

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
