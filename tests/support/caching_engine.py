"""A tiny engine with a document cache on the disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.labs import SMALL_BUDGET, Lab
from triforce_chat.engine import prefix_cache
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Finished, Text
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.storage.kv.cache_directory import CacheDirectory
from triforce_chat.storage.kv.disk_cache import KVDiskCache

CHUNK = 32  # tokens
MODEL = b"a model"
GREEDY = Sampling()


class CachingEngine:
    """The engine of one process, with the document cache in ``folder``, which other processes may share."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        stack: str = "autoregressive",
        model: bytes = MODEL,
        limit: int | None = None,
        clock: Callable[[], int] = time.time_ns,
        **options: Any,
    ) -> None:
        prefix_cache.PREFILL_CHUNK = CHUNK
        self.disk_cache = KVDiskCache(CacheDirectory(folder, limit), model, "tiny", clock)
        settings = StackOptions(stack, gamma=4, draft_gamma=2, budget=SMALL_BUDGET)
        self.engine = Engine(
            lab.target, 400, TextCodec(str), lab.draft, settings, options.get("store", self.disk_cache)
        )

    def read(self, prompt: Sequence[int], spans: Sequence[DocumentSpan] = ()) -> int:
        """Prefill; returns how many tokens were cached."""
        last = [*self.engine.prefill(prompt, spans)][-1]
        self.disk_cache.writer.finish()
        self.disk_cache.writer.closed = False
        return last.cached

    def answer(
        self,
        prompt: Sequence[int],
        spans: Sequence[DocumentSpan] = (),
        n: int = 24,
        sampling: Sampling = GREEDY,
    ) -> tuple[list[int], int]:
        """Answer; returns (tokens, how many tokens of the prompt were cached)."""
        events = [*self.engine.answer(Request(prompt, n, sampling, spans=spans))]
        self.disk_cache.writer.finish()
        self.disk_cache.writer.closed = False
        done = events[-1]
        assert isinstance(done, Finished)
        return [token for each in events if isinstance(each, Text) for token in each.token_ids], (
            done.cached_tokens
        )


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


class Tokens:
    """The part of a tokenizer that a fingerprint reads."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: n for n, word in enumerate(self.words)}


TOKENS = Tokens("a", "b")
