"""Other ways to decode over keys and values that lie in host memory, with the same weights, on the same prompt.

- transformers' own offloaded cache (``DynamicCache(offloading=True)``, which ``cache_implementation="offloaded"``
  makes): its forward, its generate. What our prefill computed is handed over, as its own would take minutes.
- Attention on the host: the queries go to the keys and values instead of these to the GPU, as DeepSpeed-ZeRO-Inference
  does. Everything else, the weights too, is on the GPU; torch's attention for CPUs reads the host's memory.

Without a GPU all of that happens on the CPU, which times nothing of interest but computes the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from triforce_chat.engine.cache.storage import KVStorage, SlotStorage
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.engine import PLAIN, Engine
from triforce_chat.engine.forward import attention
from triforce_chat.engine.forward.attention import folded_attention
from triforce_chat.errors import UsageError
from triforce_chat.lab.bench.row import Row
from triforce_chat.lab.bench.stock import Clock
from triforce_chat.lab.machine import finish, peak_bytes, reset_peak
from triforce_chat.models.assemble import as_transformers
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.memory import free_bytes
from triforce_chat.models.progress import Note
from triforce_chat.models.silence_logs import silence_logs
from triforce_chat.settings.settings import AUTO, Settings
from triforce_chat.settings.sizes import readable

OFFLOADED, ON_HOST = "transformers offloaded", "host attention"
HOST = torch.device("cpu")
LEAST = 2  # tokens, of which the first is not timed
SPARE = 4  # more copies of a layer's keys that exist for a moment


class Baseline(NamedTuple):
    """A model that transformers computes, and the keys and values of a prompt but for its last token."""

    model: Any
    storage: SlotStorage
    prompt: Sequence[int]

    @property
    def known(self) -> int:
        """Tokens whose keys and values are there."""
        return len(self.prompt) - 1

    def layers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The keys and values of each layer, where they are stored: [Hkv, capacity, D]."""
        return (self.storage.layer(layer) for layer in range(self.model.config.num_hidden_layers))


Decode = Callable[[Baseline, int, float], tuple[list[int], list[float]]]


def require_baselines(settings: Settings, stacks: Sequence[str], profile: bool) -> None:
    """Raises UsageError for what the baselines do not know, or cannot be held against."""
    if profile or PLAIN.name not in stacks:
        raise UsageError(
            f"--baselines are held against {PLAIN.name}: name it in --stacks, and leave out --profile"
        )
    if not settings.offload:
        raise UsageError("--baselines stand beside keys and values in host memory; add --offload")
    if settings.tp > 1:
        raise UsageError("--baselines run in one process; leave out --tp")
    if settings.kv != AUTO:
        raise UsageError("--baselines keep keys and values in the dtype of the weights; leave out --kv")


def storage_of(engine: Engine, loaded: LoadedModel) -> SlotStorage:
    """Where the target's keys and values lie. Raises UsageError if transformers could not read them."""
    storage: KVStorage = engine.full.storage
    if loaded.stored is not None or loaded.kv_format or not isinstance(storage, SlotStorage):
        raise UsageError(
            "--baselines run transformers' own forward, which multiplies no quantized weights; add --dtype float32"
        )
    return storage


def baselines(
    engine: Engine, loaded: LoadedModel, prompt: Sequence[int], plain: Sequence[Row], repeats: int, note: Note
) -> Iterator[Row]:
    """Every baseline on a prompt, at the temperature of each row of plain decoding, which it is held against.

    transformers' cache is left out, and ``note`` told why, where host memory has no room for another copy of the keys
    and values.
    """
    storage = storage_of(engine, loaded)
    for _ in engine.prefill(prompt[:-1]):
        pass
    given = Baseline(as_transformers(loaded.model), storage, prompt)
    for base in plain:
        yield measured(ON_HOST, decoded_on_host, given, base, repeats)
    if lacking := missing_memory(given, max(map(_tokens, plain))):
        note(lacking)
    else:
        for base in plain:
            yield measured(OFFLOADED, decoded_by_transformers, given, base, repeats)
    engine.settle([0])  # slots after the prompt were overwritten


def measured(name: str, decode: Decode, given: Baseline, base: Row, repeats: int) -> Row:
    """The figures of one baseline beside those of plain decoding, for as many tokens of an answer."""
    reset_peak()
    tokens = _tokens(base)
    runs = [decode(given, tokens, base.temperature)[1] for _ in range(repeats)]
    each = [1000 * (ticks[-1] - ticks[0]) / (len(ticks) - 1) for ticks in runs]  # the first token warms up
    found = statistics.median(each)
    return replace(
        base,
        contender=name,
        prompts=1,
        ms_per_token=found,
        spread_ms=(min(each), max(each)),
        tokens=tokens,
        tokens_per_round=1.0,
        acceptance={},
        fresh=None,
        peak_bytes=peak_bytes(),
        warmup=1,
        warmup_s=None,
        predicted_ms_per_token=None,
        plain_ms_per_token=base.ms_per_token,
        speedup=base.ms_per_token / found,
        speedup_together=None,
        speedup_error=None,
        speedup_interval=None,
        speedups=[],
        same_tokens=None,
        ties=None,
        mismatches=None,
        widest_tie=None,
    )


def _tokens(base: Row) -> int:
    """How many tokens to decode beside a row of plain decoding."""
    return max(LEAST, base.tokens // base.prompts)


def decoded_on_host(given: Baseline, tokens: int, temperature: float) -> tuple[list[int], list[float]]:
    """Tokens after the prompt by attention on the host, and when each of them was there."""
    made, ticks, ids = list[int](), list[float](), given.prompt[-1]
    device = given.model.device
    with torch.inference_mode(), attends_by(given.model, "host", host_attention(given.layers())):
        for at in range(given.known, given.known + tokens):
            out = given.model(
                input_ids=torch.tensor([[ids]], device=device),
                position_ids=torch.tensor([[at]], device=device),
                use_cache=False,
                at=at,
            )
            ids = drawn(out.logits[0, -1].float(), temperature)
            made.append(ids)
            ticks.append(time.perf_counter())
    return made, ticks


def drawn(logits: Tensor, temperature: float) -> int:
    """The next token by logits [V]."""
    if not temperature:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, -1), 1))


def host_attention(layers: Iterator[tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, None]]:
    """An attention function for transformers over keys and values that stay where they are, [Hkv, capacity, D] each.

    It stores those of the new tokens in slot ``at`` and after it.
    """
    held = [*layers]

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,  # noqa: ARG001
        scaling: float,
        at: int,
        **_: Any,
    ) -> tuple[Tensor, None]:
        keys, values = held[int(module.layer_idx)]  # type: ignore[arg-type]
        end = at + key.shape[2]
        keys[:, at:end], values[:, at:end] = key[0], value[0]
        view = KVView(keys[None], values[None], end)
        mixed = folded_attention(query.to(keys.device), view, scaling)
        return mixed.to(query.device).transpose(1, 2), None

    return attend


def decoded_by_transformers(
    given: Baseline, tokens: int, temperature: float
) -> tuple[list[int], list[float]]:
    """Tokens after the prompt by transformers' generate over its offloaded cache, and when each of them was there."""
    clock, ids = Clock(), torch.tensor([list(given.prompt)], device=given.model.device)
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with attends_by(given.model, "sdpa"), silence_logs():
        out = given.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=handed_over(given),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=bool(temperature),
            streamer=clock,
            **sampling,
        )
    finish(given.model.device)
    return out[0, len(given.prompt) :].tolist(), clock.ticks[1:]  # the first tick is the prompt's echo


def missing_memory(given: Baseline, tokens: int) -> str:
    """Why there is no room for another copy of keys and values, with so many more tokens; empty if there is."""
    size = sum(copied_bytes(part, given.known + tokens) for layer in given.layers() for part in layer)
    size += SPARE * copied_bytes(given.storage.layer(0)[0], given.known + tokens)
    free = free_bytes(HOST)
    if free is None or free >= size:
        return ""
    return (
        f"{OFFLOADED} is left out at {len(given.prompt):,} tokens: it takes {readable(size)} of host memory beside "
        f"ours, and {readable(free)} are free"
    )


def copied_bytes(part: Tensor, tokens: int) -> int:
    """Bytes of a copy of keys or values [Hkv, capacity, D] in pinned memory, which torch allots in powers of two."""
    return 1 << (part[:, :1].nbytes * tokens - 1).bit_length()


def handed_over(given: Baseline) -> Any:
    """transformers' cache with the keys and values of the prompt; from the first token on it has copies of its own."""
    from transformers import DynamicCache

    device = given.model.device
    cache = DynamicCache(config=given.model.config, offloading=device.type == "cuda")
    for layer, parts in zip(cache.layers, given.layers(), strict=True):
        keys, values = (part[None, :, : given.known] for part in parts)
        layer.lazy_initialization(keys[:, :, :0].to(device), values[:, :, :0].to(device))
        layer.keys, layer.values = keys, values
    if cache.offloading:
        cache.prefetch(0)  # as the last layer of a forward does for the next one
    return cache


@contextmanager
def attends_by(model: Any, name: str, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Have a model attend by another function, registered under that name if it is given, within the block."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if function is not None:
        ALL_ATTENTION_FUNCTIONS.register(name, function)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, lambda *_, **__: None)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(attention.NAME)
