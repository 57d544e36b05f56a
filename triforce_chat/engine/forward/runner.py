"""One model's forward over any cache: by fused blocks where the family is supported, else by its modules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import cached_property, partial
from itertools import compress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVPool
from triforce_chat.engine.cuda_graph import TREE_SIZES, USUAL, LogitsAndStates, Preparation, fitting
from triforce_chat.engine.forward import attention, onednn
from triforce_chat.engine.forward.attention_backend import USUAL as USUAL_BACKEND
from triforce_chat.engine.forward.attention_backend import AttentionBackend
from triforce_chat.engine.forward.cpu_layer import CpuLayer, fuse_layers
from triforce_chat.engine.forward.forward import Feed, Forward, Shared
from triforce_chat.engine.forward.loops import FusedLoop, LoopForward, SequencesLoop
from triforce_chat.engine.forward.modules import supports
from triforce_chat.engine.forward.quantized import weight_bytes
from triforce_chat.engine.forward.subset import Subset
from triforce_chat.engine.forward.target_state import StateReader, TargetState
from triforce_chat.engine.gathered import Gathering, Result, Task
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.kernels_available import FIRST, kernels_run
from triforce_chat.engine.tree import Branches

if TYPE_CHECKING:
    from triforce_chat.engine.forward.fused import Decoder
    from triforce_chat.engine.forward.graphs import ForwardGraphs
    from triforce_chat.engine.forward.sequences import SequencesGraphs
    from triforce_chat.engine.forward.streamed_weights import StreamedWeights

SMALLEST_HEAD = 16  # head dimension; no tile of a tensor core is narrower
SHORT = 256  # tokens up to which what follows a shared prefix is fed as if it were decoded
SPARE = 8 << 30  # bytes that 8-bit copies leave free on a GPU, for activations of a prefill and for graphs


class Runner:
    """One model's weights. The cache is an argument of each forward, so one target serves several levels.

    Modifies the model: it gets this program's attention function and, on a CPU, packed weights. ``vocabulary`` is the
    width of the logits (None: the model's own); a draft model gets its target's, as models of one family pad the same
    vocabulary to different widths, and with ``target_ids`` [D], if it knows only those of the target's tokens, a last
    embedding for all others. A target keeps its ``state`` for a draft, whose ``reader`` reads it. ``streamed``: the
    weights of its layers, if some are in host memory. All ranks that share a model must construct their runners at the
    same time.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: int | None = None,
        group: RankGroup = SINGLE,
        target_ids: Tensor | None = None,
        state: TargetState | None = None,
        reader: StateReader | None = None,
        kv: torch.dtype | None = None,
        backend: AttentionBackend = USUAL_BACKEND,
        streamed: StreamedWeights | None = None,
    ) -> None:
        attention.attach(model)
        self.model, self.group, self.state, self.reader = model, group, state, reader
        self.weight_bytes = weight_bytes(model)  # before they are packed
        self.backend, self.streamed = backend, streamed
        self.gathering: Gathering | None = None  # None: every forward runs by itself
        self.alone = self  # the runner of which this one is a copy for one of several sequences
        # See ``in_common``; by what makes it.
        self.shared: WeakKeyDictionary[KVPool, dict[Callable[[], Any], Any]] = WeakKeyDictionary()
        self.last_states: Tensor | None = None  # [rows, C], of the last forward, if a draft reads them
        self.known: int = model.config.vocab_size  # ids from here on are padding without an embedding
        self.vocabulary = vocabulary or self.known
        self.device: torch.device = model.device
        self.subset = None if target_ids is None else Subset(target_ids.to(self.device), self.vocabulary)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # for work outside of forwards on this thread
        self.shape = Shape.of(model.config, model.dtype, model.device, group.size, kv)
        self.decoder: Decoder | None = None
        if streamed is not None:
            streamed.attach(model.base_model.layers)
        self.graphs: ForwardGraphs
        self.of_sequences: SequencesGraphs
        if group.all_reduce_min(backend.captures and fusible(model)):
            from triforce_chat.engine.forward.fused import Decoder

            self.decoder = Decoder(model, self.shape, group, streamed)
            self._begin_graphs(self.decoder)
        elif streamed is not None:
            streamed.hook(model.base_model.layers)
        elif group.size == 1 and onednn.available(self.device, self.shape.dtype):
            onednn.pack_linears(model)
            fuse_layers(model)

    @cached_property
    def quantized(self) -> Runner:
        """This model with 8-bit copies of its matrices for forwards of few tokens: faster, slightly inexact.

        For proposals only. Without fused blocks, or with weights that are quantized already, this is the runner itself.
        """
        if self.decoder is None or self.decoder.keeps_format:
            return self
        if self.gathering is not None:
            return self.alone.quantized.gathered_by(self.gathering)
        made = copy(self)
        made.alone = made
        made._begin_graphs(self.decoder.quantized())
        return made

    def _begin_graphs(self, decoder: Decoder) -> None:
        from triforce_chat.engine.forward.graphs import ForwardGraphs
        from triforce_chat.engine.forward.sequences import SequencesGraphs

        self.graphs = ForwardGraphs(decoder, self.device, self.reader, self.backend)
        self.of_sequences = SequencesGraphs(decoder)

    @property
    def multiplies_quantized(self) -> bool:
        """Whether it runs on a CPU and multiplies quantized weights as they are."""
        return isinstance(self.model.base_model.layers[0], CpuLayer)

    @property
    def int8_numbers(self) -> int:
        """How many of the numbers that a step of few tokens reads are 8 bits wide."""
        if self.decoder is None or self.graphs.decoder is self.decoder:
            return 0
        return self.decoder.matrix_numbers

    @property
    def room_for_int8(self) -> bool:
        """Whether the GPU has room for 8-bit copies beside everything else that will be allocated."""
        if self.decoder is not None and self.decoder.keeps_format:
            return False  # as they are, few bits are read already
        if "quantized" in vars(self.alone):
            return True
        # In fp16 the fused norm of 8-bit products could overflow.
        if self.decoder is None or self.device.type != "cuda" or self.shape.dtype != torch.bfloat16:
            return False
        return self.group.all_reduce_min(allowed_bytes(self.device)) > self.decoder.matrix_numbers + SPARE

    @property
    def captures(self) -> bool:
        return self.decoder is not None and self.gathering is None

    @property
    def places_on_device(self) -> bool:
        return self.decoder is not None

    @property
    def frequencies(self) -> Tensor:
        """The frequencies of its rotary embedding: [D/2]."""
        found: Tensor = self.model.base_model.rotary_emb.inv_freq
        return found

    @property
    def weights(self) -> int:
        """Equal for runners that read the same weights."""
        return id(self.model if self.decoder is None else self.graphs)

    @property
    def dtype(self) -> torch.dtype:
        return self.shape.dtype

    def unprepared(self, cache: KVCache, rows: int, branching: bool = False) -> list[Preparation]:
        slot = cache.vacant() if self.decoder else None
        size = slot and fitting(rows, TREE_SIZES if branching else slot.sizes)
        if not slot or not size:
            return []
        if self.captures:
            lacks = self.graphs.lacks(slot, size, branching)
            return [partial(self._capture, cache, size, branching)] if lacks else []
        lacks = self.of_sequences.lacks(slot, size, branching)
        return [partial(self._capture_together, cache, size, branching)] if lacks else []

    @torch.inference_mode()
    def _capture(self, cache: KVCache, size: int, branching: bool = False) -> None:
        slot = cache.vacant()
        if slot and size <= slot.room and self.graphs.lacks(slot, size, branching):
            with self.on_device():
                self.graphs.capture(slot, cache.position, size, branching)
            cache.overwrote(size)

    @torch.inference_mode()
    def _capture_together(self, cache: KVCache, size: int, branching: bool) -> None:
        slot = cache.vacant()
        if slot and self.of_sequences.lacks(slot, size, branching):
            with self.on_device():
                self.of_sequences.capture(slot, size, branching)

    @property
    def sequences(self) -> int:
        return 1 if self.gathering is None else self.gathering.sequences

    def before_waiting(self) -> None:
        if self.gathering is not None and self.device.type == "cuda":
            self.gathering.pause()

    def gathered_by(self, gathering: Gathering) -> Runner:
        """This model for one of several sequences, whose forwards run together."""
        made = copy(self)
        made.gathering = gathering
        vars(made).pop("quantized", None)  # it must be gathered, too
        return made

    def __call__(
        self,
        ids: Tensor,
        cache: KVCache,
        rows: int,
        offset: Tensor | None = None,
        tree: Branches | None = None,
    ) -> Tensor:
        if len(ids) != 1:
            raise ValueError(f"{len(ids)} sequences; a cache holds one")
        feed = Feed(ids, cache, rows, offset, tree)
        if self.gathering is None:
            ((logits, states),) = self.compute([feed])
        else:
            logits, states = self.gathering.done(self._task(cache, None, self.compute, feed))
        if self.state is not None:
            self.last_states = states
        return logits

    def together(
        self, cache: KVCache, kind: Hashable, run: Callable[[Sequence[Any]], Sequence[Result]], given: Any
    ) -> Any:
        assert self.gathering
        return self.gathering.done(self._task(cache, kind, run, given, lasting=True))

    def _task(
        self,
        cache: KVCache,
        kind: Hashable,
        run: Callable[[Sequence[Any]], Sequence[Result]],
        given: Any,
        lasting: bool = False,
    ) -> Task:
        """Work over a cache as a task: alike are those of one model over caches of one kind.

        CUDA graphs take sequences whose keys and values lie in one pool, after one prefix.
        """
        slot = cache.write_slot() if self.decoder else None
        pool = (id(slot.storage.pool), id(slot.prefix)) if slot else (0, 0)
        size = self.shape.layers * self.shape.query_heads * self.shape.head_dim
        return Task((cache.verifies, size, self.weights), (kind, pool), run, given, lasting)

    @torch.inference_mode()
    def compute(self, feeds: Sequence[Feed]) -> list[LogitsAndStates]:
        """One forward of all feeds, each of another sequence: logits [1, rows, V] and last hidden states [rows, C]."""
        with self.on_device():
            return [(self.widened(logits)[None], states) for logits, states in self._fed(feeds)]

    def loop(self, cache: KVCache, tokens: int) -> LoopForward:
        if self.captures:
            return FusedLoop(self, cache, tokens)
        return SequencesLoop(self.alone, pooled_by(cache))

    def in_common(self, cache: KVCache, make: Callable[[], Shared]) -> Shared:
        of_pool = self.shared.setdefault(pooled_by(cache), {})
        if make not in of_pool:
            of_pool[make] = make()
        made: Shared = of_pool[make]
        return made

    def committed(self, count: Tensor, length: Tensor) -> None:
        if self.state is not None:
            assert self.last_states is not None
            self.state.update(self.last_states, count, length)

    def forget_state(self) -> None:
        if self.state is not None:
            self.state.forget()

    def _fed(self, feeds: Sequence[Feed]) -> list[LogitsAndStates]:
        """Logits [rows, V] and last hidden states [rows, C] of each feed."""
        if len(feeds) == 1 and (replayed := self._replayed(feeds[0])) is not None:
            return [replayed]
        if self.decoder is None:
            return self._eager(feeds)
        # Graphs take few tokens of each sequence; the caches of those that have more, after a restart, are small.
        pooled = [self._pooled(feed) for feed in feeds]
        together = iter(self._replayed_together([*compress(feeds, pooled)]) if any(pooled) else ())
        return [
            next(together) if few else self._eager([feed])[0] for feed, few in zip(feeds, pooled, strict=True)
        ]

    def _eager(self, feeds: Sequence[Feed]) -> list[LogitsAndStates]:
        with ExitStack() as there:
            for feed in feeds:
                if feed.offset is not None:  # waits for the device
                    there.enter_context(moved(feed.cache, int(feed.offset)))
            states = self._hidden([(self.embedded(feed.ids[0]), feed.cache, feed.tree) for feed in feeds])
            each = [
                part[len(part) - feed.rows :]
                for part, feed in zip(states.split([feed.ids.shape[1] for feed in feeds]), feeds, strict=True)
            ]
        for feed in feeds:
            if feed.offset is None:
                feed.cache.advance(feed.ids.shape[1])
        logits = self._logits(torch.cat(each) if len(each) > 1 else each[0])
        return list(zip(logits.split([len(part) for part in each]), each, strict=True))

    def _replayed(self, feed: Feed) -> LogitsAndStates | None:
        """``_fed`` of one feed by a CUDA graph; None where none takes it."""
        cache, n = feed.cache, feed.ids.shape[1]
        slot = cache.write_slot() if self.captures else None
        size = self.graphs.size(n, slot, feed.tree is not None) if slot else None
        if slot is None or size is None:
            return None
        index = cache.length if feed.offset is not None else cache.reach(n) - n
        ids = self.embedded(feed.ids[0])
        with self._weights_passing():
            logits, states = self.graphs(ids, slot, cache.position, index, size, feed.offset, feed.tree)
        if feed.offset is None:
            cache.wrote(n, size)
            cache.advance(n)
        return logits[n - feed.rows :], states[n - feed.rows :]

    def _pooled(self, feed: Feed) -> bool:
        """Whether a CUDA graph of several sequences takes the feed."""
        slot = feed.cache.write_slot()
        if slot is None or slot.storage.pool is None:
            return False
        return fitting(feed.ids.shape[1], slot.sizes if feed.tree is None else TREE_SIZES) is not None

    def _replayed_together(self, feeds: Sequence[Feed]) -> list[LogitsAndStates]:
        """``_fed`` of several feeds by one CUDA graph."""
        fed = []
        for feed in feeds:
            slot = feed.cache.write_slot()
            assert slot
            fed.append((self.embedded(feed.ids[0]), slot, feed.cache.position, feed.offset, feed.tree))
        with self._weights_passing():
            outcomes = self.of_sequences(fed)
        made = []
        for feed, (ids, slot, position, _, tree), outcome in zip(feeds, fed, outcomes, strict=True):
            n, (logits, states) = len(ids), outcome.computed
            if feed.offset is None:
                # Of a tree several queries have the same position.
                if slot.queries is not None and outcome.queries is not None and tree is None:
                    slot.queries.write(slice(None), position, outcome.queries)
                feed.cache.wrote(n, n)
                feed.cache.advance(n)
            made.append((logits[n - feed.rows :], states[n - feed.rows :]))
        return made

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.decoder.logits if self.decoder else self.model.lm_head
        logits: Tensor = head(hidden)
        return logits

    def widened(self, logits: Tensor) -> Tensor:
        """Logits [n, V] as wide as ``vocabulary``: those of a subset at the target's ids, others cut or padded."""
        if self.subset:
            return self.subset.widened(logits)
        return logits if self.known == self.vocabulary else fitted(logits, self.vocabulary)

    def prefill(self, ids: Tensor, cache: KVCache) -> None:
        """Feed ids [n] for their keys and values; what logits come of it is not used."""
        slot = cache.write_slot() if self.gathering is not None and self.decoder else None
        if slot is not None and slot.prefix is not None and len(ids) <= SHORT:
            # In pieces that read the prefix together with other sequences, to which it switches: in no mode of torch's.
            feed(self, cache, ids)
            return
        with torch.inference_mode(), self.on_device():
            self._hidden([(self.embedded(ids), cache, None)])
        cache.advance(len(ids))

    def on_device(self) -> AbstractContextManager[Any]:
        """Make this model's GPU the current one: Triton launches there, and each thread has its own current GPU."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def embedded(self, ids: Tensor) -> Tensor:
        """Ids with an embedding: a padding id that the target drew has no text, so any token may stand for it."""
        if self.subset:
            return self.subset.embedded(ids)
        return ids.clamp_max(self.known - 1) if self.known < self.vocabulary else ids

    def _hidden(self, fed: Sequence[tuple[Tensor, KVCache, Branches | None]]) -> Tensor:
        """Last hidden states [m, C] of the m ids of several sequences, one after the other.

        Each cache receives the keys and values of its ids [n] layer by layer.
        """
        with self._weights_passing():
            return self._computed(fed)

    def _weights_passing(self) -> AbstractContextManager[None]:
        """Streamed weights, if there are some, are there for one forward."""
        return nullcontext() if self.streamed is None else self.streamed.passing()

    def _computed(self, fed: Sequence[tuple[Tensor, KVCache, Branches | None]]) -> Tensor:
        """``_hidden`` where the weights are."""
        ids = joined([own for own, _, _ in fed])
        positions = joined([self._steps(cache.position, len(own), tree) for own, cache, tree in fed])
        added = None
        if self.reader is not None:
            added = joined([self._added(len(own), cache, tree) for own, cache, tree in fed])
        parts = [
            attention.Part(cache, len(own), None if tree is None else tree.visible.to(self.device))
            for own, cache, tree in fed
        ]
        if self.decoder:
            return self.decoder(ids, positions, partial(attention.attend_in, parts, self.backend.many), added)
        many = {"many": self.backend.many} if self.backend.many else {}
        given = {"input_ids": ids[None]}
        if added is not None:
            given = {"inputs_embeds": self.model.get_input_embeddings()(ids[None]) + added}
        out = self.model.base_model(**given, position_ids=positions[None], use_cache=False, kv=parts, **many)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _steps(self, start: int, n: int, tree: Branches | None) -> Tensor:
        if tree is None:
            return torch.arange(start, start + n, device=self.device)
        return start + tree.steps.to(self.device)

    def _added(self, n: int, cache: KVCache, tree: Branches | None) -> Tensor:
        """What a draft's reader adds to the embeddings [n, C] of the next n tokens."""
        assert self.reader is not None
        return self.reader.rows(self._steps(cache.reach(n) - n, n, tree))


def pooled_by(cache: KVCache) -> KVPool:
    """The pool that its keys and values lie in."""
    slot = cache.write_slot()
    assert slot
    assert slot.storage.pool is not None
    return slot.storage.pool


def joined(rows: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other; a single one is not copied."""
    return rows[0] if len(rows) == 1 else torch.cat([*rows])


def feed(model: Forward, cache: KVCache, ids: Tensor) -> None:
    """Feed ids [n] for their keys and values, in pieces whose forwards are captured: others compile new kernels."""
    for piece in ids.split(USUAL) if len(ids) else ():
        model(piece[None], cache, 1)


@contextmanager
def moved(cache: KVCache, n: int) -> Iterator[None]:
    """Pretend that the cache holds ``n`` more tokens (negative: fewer), so that a forward begins there."""
    cache.length += n
    try:
        yield
    finally:
        cache.length -= n


def allowed_bytes(device: torch.device) -> int:
    """Bytes that this process may still allocate on a GPU, within its share of the memory."""
    total = torch.cuda.get_device_properties(device).total_memory
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    free: int = torch.cuda.mem_get_info(device)[0]
    return min(free, allowed - torch.cuda.memory_reserved(device))


def fusible(model: Any) -> bool:
    """Whether fused blocks support the model's device and architecture."""
    layer = model.base_model.layers[0]
    dim = layer.self_attn.head_dim
    return (
        kernels_run(model.device)
        and torch.cuda.get_device_capability(model.device) >= FIRST
        and supports(model.config)
        and dim >= SMALLEST_HEAD
        and dim.bit_count() == 1
    )


def fitted(logits: Tensor, width: int) -> Tensor:
    """Cut or pad logits [n, V] to [n, width]; padding has zero probability."""
    missing = max(0, width - logits.shape[1])
    return pad(logits[:, :width], (0, missing), value=float("-inf"))
