"""Runs one model's forward under any cache: by fused blocks where they are known, or transformers' own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine.cache.storage import KVCache, Shape
from triforce_chat.engine.cuda_graph import Fed
from triforce_chat.engine.forward import attention, onednn
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.kernels_available import kernels_run

if TYPE_CHECKING:
    from triforce_chat.engine.forward.fused import Decoder

FUSED = ("Llama", "Mistral", "Qwen2", "Qwen3")  # families whose blocks are known
SMALLEST_HEAD = 16  # numbers; a tile of a matrix unit is not narrower
# Data-centre GPUs by compute capability: the kernels' tiles do not fit on the chips of others.
ROOMY = ((8, 0), (9, 0), (10, 0), (10, 3))
SPARE = 8 << 30  # bytes that 8-bit copies leave free on a GPU: for activations of a prefill, and for graphs


class Forward(Protocol):
    """A model as the levels see it."""

    vocabulary: int
    device: torch.device

    @property
    def captures(self) -> bool:
        """Whether forwards of few tokens are CUDA graphs, to which the host need not know where tokens go."""
        ...

    def __call__(self, ids: Tensor, cache: KVCache, rows: int, offset: Tensor | None = None) -> Tensor:
        """Feed ids [B, n] behind what the cache holds; logits [B, rows, V] of the last ``rows`` tokens.

        They are valid until the model's next forward, which may overwrite them. With ``offset`` [B] the ids are fed
        so many tokens further behind, and the cache goes on to count what it did: what is stored there is scratch
        space, which later forwards may read and overwrite.
        """
        ...

    def loop(self, cache: KVCache) -> LoopForward:
        """Its forwards as parts of a graph that holds several of them; only where it ``captures``."""
        ...


class LoopForward(Protocol):
    """Feeds tokens behind what a cache counts, from a slot on that only the device knows."""

    def aim(self, offset: Tensor) -> None:
        """Begin ``offset`` [B] tokens behind (negative: in front of) the end of what the cache counts."""
        ...

    def __call__(self, ids: Tensor, step: int) -> Tensor:
        """Logits [B, 1, V] behind ids [B, n], of which the first goes ``step`` tokens behind that slot."""
        ...


class FusedLoop:
    """``LoopForward`` of fused blocks, which launches no graph itself."""

    def __init__(self, runner: Runner, cache: KVCache) -> None:
        slot = cache.write_slot()
        assert slot
        self.runner, self.cache = runner, cache
        self.forward = runner.graphs.forward(slot)
        with torch.inference_mode(False):
            self.at = torch.zeros(2, dtype=torch.long, device=runner.device)

    def aim(self, offset: Tensor) -> None:
        slot = self.cache.write_slot()
        assert slot
        torch.linspace(slot.start, self.cache.position, 2, out=self.at)  # two numbers in one launch
        self.at += offset

    @torch.inference_mode()
    def __call__(self, ids: Tensor, step: int) -> Tensor:
        at, steps = self.at + step, torch.arange(ids.shape[1], device=ids.device)
        with self.runner.on_device():
            logits = self.forward(Fed(self.runner.embedded(ids[0]), at[:1], at[1:], steps))[-1:]
        return self.runner.widened(logits)[None]


class Runner:
    """One model's weights; the cache is an argument, so the target serves two levels.

    Takes the model over: it gets this program's attention function and, on a CPU, packed weights.
    ``vocabulary`` is the width that its logits shall have, a target's for its draft: families pad the same
    tokens to different widths. None keeps the model's own. The ranks that share the model make theirs together.
    """

    def __init__(self, model: Any, vocabulary: int | None = None, group: RankGroup = SINGLE) -> None:
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self.model, self.group = model, group
        self.known: int = model.config.vocab_size  # ids from here on have no embedding
        self.vocabulary = vocabulary or self.known
        self.device: torch.device = model.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # for what is done outside of forwards, by this thread
        self.shape = Shape.of(model.config, model.dtype, model.device, group.size)
        self.decoder: Decoder | None = None
        if group.all_reduce_min(fusible(model)):
            from triforce_chat.engine.forward.fused import Decoder
            from triforce_chat.engine.forward.graphs import Captures

            self.decoder = Decoder(model, self.shape, group)
            self.graphs = Captures(self.decoder, self.device)
        elif group.size == 1 and onednn.available(self.device, self.shape.dtype):
            onednn.pack_linears(model)

    @cached_property
    def quantized(self) -> Runner:
        """The same model with 8-bit copies of its matrices where few tokens are fed: faster, a little off.

        Good for proposals. The model itself where its blocks are transformers' own.
        """
        if self.decoder is None:
            return self
        from triforce_chat.engine.forward.graphs import Captures

        made = copy(self)
        made.graphs = Captures(self.decoder.quantized(), self.device)
        return made

    @property
    def int8_numbers(self) -> int:
        """How many of the numbers that a step of few tokens reads are 8 bits wide."""
        if self.decoder is None or self.graphs.decoder is self.decoder:
            return 0
        return self.decoder.matrix_numbers

    @property
    def room_for_int8(self) -> bool:
        """Whether memory holds 8-bit copies beside everything that is still to come."""
        if "quantized" in vars(self):
            return True
        # In fp16 the fused norm of 8-bit products could overflow.
        if self.decoder is None or self.device.type != "cuda" or self.shape.dtype != torch.bfloat16:
            return False
        return self.group.all_reduce_min(allowed_bytes(self.device)) > self.decoder.matrix_numbers + SPARE

    @property
    def captures(self) -> bool:
        return self.decoder is not None

    @torch.inference_mode()
    def __call__(self, ids: Tensor, cache: KVCache, rows: int, offset: Tensor | None = None) -> Tensor:
        if len(ids) != 1:
            raise ValueError(f"{len(ids)} sequences; caches hold one")
        with self.on_device():
            logits = self._fed(self.embedded(ids[0]), cache, rows, offset)
        return self.widened(logits)[None]

    def loop(self, cache: KVCache) -> LoopForward:
        return FusedLoop(self, cache)

    def _fed(self, ids: Tensor, cache: KVCache, rows: int, offset: Tensor | None) -> Tensor:
        n = len(ids)
        slot = cache.write_slot() if self.decoder else None
        size = self.graphs.size(n, slot) if slot else None
        if offset is not None:
            if slot and size:
                self.graphs.prepare(ids, slot, cache.position)
                return self.graphs(ids, slot, cache.position, size, offset)[n - rows :]
            with moved(cache, int(offset)):  # waits for the device
                return self._logits(self._hidden(ids, cache)[n - rows :])
        # Also ahead of a draft's first forward, which is too long for it and overwrites what this touched.
        touched = self.graphs.prepare(ids, slot, cache.position) if slot and (size or rows == 1) else 0
        if slot and size:
            logits = self.graphs(ids, slot, cache.position, size)[n - rows :]
            cache.wrote(n, max(size, touched))
        else:
            logits = self._logits(self._hidden(ids, cache)[n - rows :])
        cache.advance(n)
        return logits

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.decoder.logits if self.decoder else self.model.lm_head
        logits: Tensor = head(hidden)
        return logits

    def widened(self, logits: Tensor) -> Tensor:
        """Logits [n, V] as wide as those of the model that this one drafts for."""
        return logits if self.known == self.vocabulary else fitted(logits, self.vocabulary)

    @torch.inference_mode()
    def prefill(self, ids: Tensor, cache: KVCache) -> None:
        """Feed ids [n] for their keys and values only."""
        with self.on_device():
            self._hidden(self.embedded(ids), cache)
        cache.advance(len(ids))

    def on_device(self) -> AbstractContextManager[Any]:
        """Triton launches on the current GPU, and every thread has one of its own."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def embedded(self, ids: Tensor) -> Tensor:
        """Ids that have an embedding: padding that a target drew has no text, so any token will do for it."""
        return ids.clamp_max(self.known - 1) if self.known < self.vocabulary else ids

    def _hidden(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Last hidden states [n, C] of ids [n], whose keys and values the cache is told of layer by layer."""
        positions = torch.arange(cache.position, cache.position + len(ids), device=self.device)
        if self.decoder:
            return self.decoder(ids, positions, partial(attention.attend_in, cache))
        out = self.model.base_model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, kv=cache
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden


@contextmanager
def moved(cache: KVCache, n: int) -> Iterator[None]:
    """Count ``n`` tokens more (negative: fewer) for a while, so that a forward begins there."""
    cache.length += n
    try:
        yield
    finally:
        cache.length -= n


def allowed_bytes(device: torch.device) -> int:
    """What this process may still take of a GPU, whose share of it may be capped."""
    total = torch.cuda.get_device_properties(device).total_memory
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    free: int = torch.cuda.mem_get_info(device)[0]
    return min(free, allowed - torch.cuda.memory_reserved(device))


def fusible(model: Any) -> bool:
    """Whether the model runs where Triton's kernels do, and is made of blocks that are known."""
    layer = model.base_model.layers[0]
    dim = layer.self_attn.head_dim
    return (
        kernels_run(model.device)
        and torch.cuda.get_device_capability(model.device) in ROOMY
        and type(layer).__name__.removesuffix("DecoderLayer") in FUSED
        and model.config.hidden_act == "silu"
        and dim >= SMALLEST_HEAD
        and dim.bit_count() == 1
    )


def fitted(logits: Tensor, width: int) -> Tensor:
    """Cut or pad logits [n, V] to [n, width]; what is padded has no probability."""
    missing = max(0, width - logits.shape[1])
    return pad(logits[:, :width], (0, missing), value=float("-inf"))
