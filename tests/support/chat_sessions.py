"""Sessions on a shared tiny model, with the documents and answers that their tests use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.fakes import tally_of
from triforce_chat.chat.events import Tally
from triforce_chat.chat.session import ChatSession
from triforce_chat.documents import Document, Page
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.events import Finished
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.settings import Settings

CONTEXT = 4096
ANSWER_TOKENS = 24  # tokens of an answer


class TinySession(ChatSession):
    """A session on the shared model with an empty cache of its own."""

    engine: Engine

    def __init__(self, loaded: tuple[Engine, LoadedModel], context: int = CONTEXT, **settings: Any) -> None:
        first, model = loaded
        engine = Engine(first.target, context, TextCodec(first.decode, model.eos_ids))
        super().__init__(engine, model, Settings(**{"max_tokens": ANSWER_TOKENS, **settings}), "Be brief.")
        self.set_option("stack", str(settings.get("stack", "triforce")))

    def decode(self, ids: list[int]) -> str:
        text: str = self.loaded.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text

    @property
    def prompt(self) -> str:
        """The text that the model reads before the next question."""
        return self.decode(self.transcript.prompt([]).ids)

    def answer(self, question: str) -> Tally:
        return tally_of(self.ask(question))

    def assert_like_fresh_engine(self, question: str) -> None:
        """Assert that reused caches are exact: plain decoding in a fresh engine gives the same tokens."""
        request = self.request(self.question_ids(question))
        fresh = Engine(self.engine.target, CONTEXT, TextCodec(self.engine.decode, self.engine.eos_ids))
        assert self.answer(question).token_ids == tally_of(fresh.answer(request, plain=True)).token_ids


def finished(tally: Tally) -> Finished:
    assert tally.finished is not None
    return tally.finished


def book(title: str, *texts: str, unit: str = "page") -> Document:
    pages = tuple(Page(number, text) for number, text in enumerate(texts, 1))
    return Document(title, f"{title}.pdf", pages, unit)


def pages(count: int, size: int = 100) -> list[str]:
    """Page texts of ``size`` bytes each, so ``size`` tokens."""
    return [f"{number:03} {'lorem ipsum dolor sit amet ' * 40}"[: size - 1] + "\n" for number in range(count)]


class ScriptedDecoder:
    """A top level that emits given tokens."""

    def __init__(self, engine: Engine, ids: list[int]) -> None:
        self.engine, self.ids = engine, iter(ids)

    def decode(self, seq: TokenBuffer, sampler: Sampler, most: int, constraint: None) -> Iterator[list[int]]:  # noqa: ARG002
        return ([token] for token in self.ids)

    def preparations(self, length: int, sampler: Sampler) -> Iterator[Preparation]:  # noqa: ARG002
        return iter(())

    def rollback(self, length: int) -> None:
        self.engine.full.truncate(length)
