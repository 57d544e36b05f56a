"""Answers in JSON of a schema: a random model, which knows no JSON, can say nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.byte_tokenizer import BYTE_VOCABULARY
from support.chat_sessions import book
from support.commands import run
from support.fakes import tally_of
from support.schema_answers import SCHEMAS
from support.serving import save_chat_model

from triforce_chat.chat.json_schema import Grammars
from triforce_chat.chat.session import ChatSession, grammars
from triforce_chat.errors import UsageError
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("model"), 8192)


@pytest.fixture(scope="module")
def session(folder: Path) -> ChatSession:
    settings = Settings(model=str(folder), device="cpu", draft="none", max_tokens=400, dtype="float32")
    engine, loaded = load_engine(EngineSpec(settings))
    made = ChatSession(engine, loaded, settings)
    made.add(book("The book", 'The keeper said {"name": "Anna", "age": 41} and no more. ' * 30))
    return made


@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize("stack", ["autoregressive", "lookup", "triforce"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_valid(session: ChatSession, name: str, stack: str, temperature: str) -> None:
    session.set_option("stack", stack)
    session.set_option("temperature", temperature)
    session.schema = SCHEMAS[name]
    for seed in "123" if temperature != "0" else "1":
        session.clear()
        session.set_option("seed", seed)
        tally = tally_of(session.ask("Who?", sources=False))
        assert tally.finished
        assert tally.finished.reason == "stop"
        jsonschema.validate(json.loads(tally.text), SCHEMAS[name])


def test_speculation_changes_no_token(session: ChatSession) -> None:
    session.schema = SCHEMAS["nested"]
    session.set_option("stack", "triforce")
    session.set_option("temperature", "0")
    session.set_option("seed", "default")
    session.clear()
    request = session.request(session.question_ids("Who?"))
    fast, plain = (tally_of(session.engine.answer(request, plain=each)) for each in (False, True))
    assert fast.token_ids == plain.token_ids
    session.schema = None
    assert tally_of(session.engine.answer(session.request(session.question_ids("Who?")))).text != fast.text


def test_masks_along_a_draft(session: ChatSession) -> None:
    constraint = grammars(session.loaded).of_schema({"enum": ["ab", "ac"]})
    drafted = session.encode('"ax"')
    rows = constraint.allowed(drafted, session.loaded.vocab_size)
    may = [{BYTE_VOCABULARY[token] for token in row.nonzero()[:, 0].tolist()} for row in rows[:3]]
    assert may == [{'"'}, {"a"}, {"b", "c"}]
    assert rows[3].all()  # behind a token that is not allowed
    constraint.advance(session.encode('"a'))
    end = min(session.loaded.eos_ids)
    for _ in range(2):  # a draft that ends leaves the state as it was
        rows = constraint.allowed([*session.encode('b"'), end, end], session.loaded.vocab_size)
        assert {BYTE_VOCABULARY[token] for token in rows[0].nonzero()[:, 0].tolist()} == {"b", "c"}
    constraint.advance(session.encode('b"'))
    (end,) = constraint.allowed([], session.loaded.vocab_size)
    assert {*end.nonzero()[:, 0].tolist()} <= session.loaded.eos_ids


def test_what_the_schema_prescribes_next_is_known(session: ChatSession) -> None:
    constraint = grammars(session.loaded).of_schema(SCHEMAS["an object"])
    start = session.encode('{"name": "')
    assert [constraint.forced(most) for most in (0, 4, 99)] == [[], start[:4], start]
    constraint.advance([*start, *session.encode("Anna")])
    assert constraint.forced(4) == []  # the name may go on, or end
    constraint.advance(session.encode('", "age": 9'))
    constraint.advance([*session.encode("}"), min(session.loaded.eos_ids)])
    assert constraint.forced(4) == []  # the answer has ended


def test_a_model_whose_answers_never_end(session: ChatSession) -> None:
    with pytest.raises(UsageError, match="no token that ends an answer"):
        Grammars(session.loaded.tokenizer, session.loaded.vocab_size, [-1])


@pytest.mark.parametrize(
    "schema", [{"type": "nothing"}, {"type": "object", "properties": 3}, {"$ref": "#/$defs/x"}]
)
def test_a_schema_that_makes_no_sense(session: ChatSession, schema: dict[str, Any]) -> None:
    session.schema = schema
    with pytest.raises(UsageError, match="the JSON schema cannot be followed") as error:
        next(session.ask("Who?"))
    assert "\n" not in str(error.value)


def test_what_a_pattern_lacks_is_told_on_one_line(session: ChatSession) -> None:
    session.schema = {"type": "string", "pattern": "^(?=x)"}
    with pytest.raises(
        UsageError, match=r"regex parse error: \^\(\?=x\) error: look-around.* is not supported"
    ):
        next(session.ask("Who?"))


def test_the_command(folder: Path) -> None:
    place = ("--model", folder, "--device", "cpu", "--no-cache", "-q")
    schema = folder / "schema.json"
    schema.write_text(json.dumps(SCHEMAS["an object"]))
    (folder / "book.txt").write_text("some words")
    done = run("ask", *place, "--schema", schema, folder / "book.txt", "Who?")
    assert done.code == 0, done.err
    jsonschema.validate(json.loads(done.out), SCHEMAS["an object"])
    schema.write_text("[")
    run("ask", *place, "--schema", schema, "Who?").is_refusal(2, "not JSON")
    run("ask", *place, "--schema", folder / "none.json", "Who?").is_refusal(2, "No such file")
