"""A tiny engine with a library, for the tests of the library and for the processes that they start."""

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
from triforce_chat.storage.kv.memory import Library
from triforce_chat.storage.kv.shelf import Shelf

CHUNK = 32  # tokens
MODEL = b"a model"
GREEDY = Sampling()


class Desk:
    """One engine as a process has it, and the library in ``folder`` that it shares with others."""

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
        self.library = Library(Shelf(folder, limit), model, "tiny", clock)
        settings = StackOptions(stack, gamma=4, draft_gamma=2, budget=SMALL_BUDGET)
        self.engine = Engine(
            lab.target, 400, TextCodec(str), lab.draft, settings, options.get("memory", self.library)
        )

    def read(self, prompt: Sequence[int], spans: Sequence[DocumentSpan] = ()) -> int:
        """Prefill; how many tokens were there already."""
        last = [*self.engine.prefill(prompt, spans)][-1]
        self.library.writer.finish()
        self.library.writer.closed = False
        return last.cached

    def answer(
        self,
        prompt: Sequence[int],
        spans: Sequence[DocumentSpan] = (),
        n: int = 24,
        sampling: Sampling = GREEDY,
    ) -> tuple[list[int], int]:
        """(tokens, how many of the prompt's were there already)."""
        events = [*self.engine.answer(Request(prompt, n, sampling, spans=spans))]
        self.library.writer.finish()
        self.library.writer.closed = False
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
