"""Models that think before they answer: the thought is shown apart, and the next prompt has what the template wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from support.chat_sessions import book
from support.fakes import tally_of
from support.serving import save_chat_model
from support.thinking_models import ALWAYS, ANSWER, KEEPS, TEMPLATE, THOUGHT, save_thinking_model
from transformers import PreTrainedTokenizerFast

from triforce_chat.chat.events import Tally
from triforce_chat.chat.records import answer_object, event_object
from triforce_chat.chat.schema import load_schema
from triforce_chat.chat.session import ChatSession
from triforce_chat.chat.template import ChatFormat
from triforce_chat.chat.thinking import SWITCHES, split_thought
from triforce_chat.chat.thought_constraint import AfterThought
from triforce_chat.engine.detokenizer import AnswerText, Thinking
from triforce_chat.errors import UsageError
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings
from triforce_chat.storage.sessions.serialization import dump_statistics, load_tally

STACKS = ("autoregressive", "lookup", "triforce")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_thinking_model(tmp_path_factory.mktemp("model"))


def session_of(folder: Path, template: str | None = None, **settings: Any) -> ChatSession:
    chosen = Settings(
        **{"model": str(folder), "device": "cpu", "draft": "none", "max_tokens": 40, **settings}
    )
    engine, loaded = load_engine(EngineSpec(chosen))
    if template is not None:
        loaded.tokenizer.chat_template = template
    return ChatSession(engine, loaded, chosen, "Be brief.")


def asked(session: ChatSession, question: str = "Where?") -> Tally:
    return tally_of(session.ask(question, sources=False))


def decoded(session: ChatSession, ids: list[int]) -> str:
    text: str = session.loaded.tokenizer.decode(ids)
    return text


def next_prompt(session: ChatSession) -> str:
    return decoded(session, session.transcript.prompt(session.encode("And then?")).ids)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("template", [None, ALWAYS])
def test_the_thought_is_kept_apart_from_the_answer(folder: Path, stack: str, template: str | None) -> None:
    tally = asked(session_of(folder, template, stack=stack))
    # With ALWAYS the marker is in the prompt, whose last token makes the model write it once more.
    assert (tally.thought, tally.text) == (THOUGHT, ANSWER)
    assert tally.thought_tokens == len(THOUGHT) + 2
    assert len(tally.token_ids) == tally.thought_tokens + len(ANSWER) + 1


def test_later_prompts_have_no_thought_where_the_template_drops_it(folder: Path) -> None:
    session = session_of(folder)
    asked(session)
    assert next_prompt(session) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n"
        f"<|im_start|>assistant\n{ANSWER}<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert asked(session, "And then?").thought == THOUGHT


def test_a_template_that_repeats_thoughts_gets_them(folder: Path) -> None:
    session = session_of(folder, KEEPS)
    asked(session)
    assert f"<|im_start|>assistant\n<think>\n{THOUGHT}\n</think>\n\n{ANSWER}<|im_end|>" in next_prompt(
        session
    )


def test_prompts_are_those_that_the_template_makes_of_texts(folder: Path) -> None:
    session = session_of(folder)
    asked(session)
    whole = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
    turns = [("system", "Be brief."), ("user", "Where?"), ("assistant", whole), ("user", "And then?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    tokenizer = session.loaded.tokenizer
    rendered = tokenizer.apply_chat_template(
        messages, chat_template=tokenizer.chat_template, add_generation_prompt=True
    )
    assert next_prompt(session) == rendered


def test_thoughts_can_be_switched_off_and_on(folder: Path) -> None:
    session = session_of(folder, think="off")
    tally = asked(session)
    assert (tally.thought, tally.thought_tokens, tally.text) == ("", 0, ANSWER)
    assert next_prompt(session).endswith("<|im_start|>assistant\n<think>\n</think>")
    session.set_option("think", "on")
    assert session.options()["think"] == "on"
    assert asked(session).thought == THOUGHT


def test_a_model_without_thoughts_refuses_to_be_told_to_think(tmp_path: Path) -> None:
    folder = save_chat_model(tmp_path)
    session = session_of(folder)
    assert asked(session).thought_tokens == 0
    with pytest.raises(UsageError, match="does not think before it answers"):
        session.set_option("think", "on")
    assert session.options()["think"] == "auto"
    with pytest.raises(UsageError, match="leave out --think on"):
        session_of(folder, think="on")
    assert asked(session_of(folder, think="off")).thought_tokens == 0


def test_a_model_that_always_thinks_cannot_be_told_not_to(folder: Path) -> None:
    session = session_of(folder, ALWAYS)
    with pytest.raises(UsageError, match="always thinks"):
        session.set_option("think", "off")
    session.set_option("think", "on")
    assert asked(session).thought == THOUGHT


def test_an_answer_cut_in_its_thought_goes_on_with_it(folder: Path) -> None:
    session = session_of(folder, max_tokens=4)
    cut = asked(session)
    assert (cut.thought, cut.text) == (THOUGHT[:3], "")
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nAnd then?" in next_prompt(session)
    session.settings = Settings(**{**_values(session.settings), "max_tokens": 40})
    rest = tally_of(session.resume())
    assert (cut.thought + rest.thought, rest.text) == (THOUGHT, ANSWER)
    whole = session.turns[-1].tally
    assert (whole.thought, whole.thought_tokens, whole.text) == (THOUGHT, len(THOUGHT) + 2, ANSWER)


def _values(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in Settings.__dataclass_fields__}


def test_markers_in_a_document_are_text(folder: Path) -> None:
    session = session_of(folder)
    session.add(book("A book", "It says </think> and <think>."))
    marks = session.transcript.format.thought_marks
    assert marks is not None
    assert not {marks.begin, marks.end} & set(session.transcript.prompt([]).ids)
    assert "</think> and <think>" in next_prompt(session)
    assert asked(session).thought == THOUGHT


def test_records_have_the_thought_in_fields_of_its_own(folder: Path) -> None:
    from support.sample_events import RUN_INFO

    session = session_of(folder)
    events = [*session.ask("Where?", sources=False)]
    tally = tally_of(events)
    record = json.loads(json.dumps(answer_object(tally, RUN_INFO)))
    jsonschema.validate(record, load_schema("answer"))
    assert (record["thought"], record["text"]) == (THOUGHT, ANSWER)
    lines = [json.loads(json.dumps(event_object(event))) for event in events]
    for line in lines:
        jsonschema.validate(line, load_schema("events"))
    assert "".join(line.get("thought", "") for line in lines) == THOUGHT
    stored = load_tally(dump_statistics(tally), tally.token_ids, tally.text)
    assert (stored.thought, stored.thought_tokens) == (THOUGHT, tally.thought_tokens)


def test_a_turn_whose_figures_are_lost_is_split_by_its_markers(folder: Path) -> None:
    session = session_of(folder)
    tally = asked(session)
    session.clear()
    bare = Tally(token_ids=tally.token_ids, text=ANSWER)
    session.transcript.append("Where?", session.encode("Where?"), bare)
    assert f"assistant\n{ANSWER}<|im_end|>" in next_prompt(session)


@pytest.mark.parametrize(
    ("ids", "thought"),
    [([3, 7, 4, 8], 3), ([7, 4, 8], 2), ([3, 7], 2), ([7, 8], 0), ([], 0)],
    ids=["whole", "begun by the prompt", "cut", "none", "empty"],
)
def test_the_markers_say_which_tokens_are_the_thought(ids: list[int], thought: int) -> None:
    assert split_thought(Tally(token_ids=ids), Thinking(3, 4)) == (ids[:thought], ids[thought:])


def test_blank_lines_between_thought_and_answer_are_not_kept(folder: Path) -> None:
    session = session_of(folder)
    tally = asked(session)
    session.clear()
    ids = [*tally.token_ids]
    ids[tally.thought_tokens : tally.thought_tokens] = session.encode("\n\n")
    spaced = Tally(token_ids=ids, text=ANSWER, thought_tokens=tally.thought_tokens)
    session.transcript.append("Where?", session.encode("Where?"), spaced)
    assert f"assistant\n{ANSWER}<|im_end|>" in next_prompt(session)


def test_a_prompt_may_begin_the_thought(folder: Path) -> None:
    for template, opened in ((None, False), (ALWAYS, True)):
        transcript = session_of(folder, template).transcript
        found = transcript.format.thinking_after(transcript.prompt([]).ids)
        assert found is not None
        assert found.opened == opened


@pytest.mark.parametrize("name", SWITCHES)
def test_templates_name_their_switch_in_several_ways(folder: Path, name: str) -> None:
    session = session_of(folder, TEMPLATE.replace("enable_thinking", name))
    session.set_option("think", "off")
    assert next_prompt(session).endswith("<think>\n</think>")
    again = session.transcript.without_turns()
    assert decoded(session, again.prompt([]).ids).endswith("<think>\n</think>")


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"at": {"enum": ["sea", "land"]}},
    "required": ["at"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stack", STACKS)
def test_a_schema_holds_for_what_follows_the_thought(folder: Path, stack: str) -> None:
    session = session_of(folder, stack=stack)
    session.schema = SCHEMA
    tally = asked(session)
    assert tally.thought == THOUGHT
    jsonschema.validate(json.loads(tally.text), SCHEMA)
    session.set_option("think", "off")
    tally = asked(session)
    assert tally.thought_tokens == 0
    jsonschema.validate(json.loads(tally.text), SCHEMA)


class Digits:
    """A constraint that allows token 7 alone and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def forced(self, most: int) -> Sequence[int]:
        return [7] * most

    def allowed(self, drafted: Sequence[int], vocabulary: int) -> torch.Tensor:
        rows = torch.zeros(len(drafted) + 1, vocabulary, dtype=torch.bool)
        rows[:, 7] = True
        return rows

    def advance(self, ids: Sequence[int]) -> None:
        self.told += ids


@pytest.mark.parametrize("opened", [False, True])
def test_the_constraint_begins_after_the_thought(opened: bool) -> None:
    inner = Digits()
    after = AfterThought(inner, Thinking(3, 4, opened), {2})
    drafted = [5, 4, 7] if opened else [3, 5, 4, 7]
    rows = after.allowed(drafted, 9)
    thought = [*range(9)]
    thought.remove(2)
    free = [thought, thought, [7], [7]]
    assert [row.nonzero()[:, 0].tolist() for row in rows] == (free if opened else [[3, 7], *free])
    after.advance(drafted[:-2])
    assert after.allowed([5], 9).nonzero().shape[0] == 16  # still in the thought
    assert after.forced(2) == []
    after.advance([4, 7])
    assert after.forced(2) == [7, 7]
    assert inner.told == [7]
    assert after.allowed([], 9).nonzero()[:, 1].tolist() == [7]


def test_without_a_thought_the_constraint_begins_at_once() -> None:
    inner = Digits()
    after = AfterThought(inner, Thinking(3, 4), {2})
    assert after.allowed([7], 9).nonzero().tolist() == [[0, 3], [0, 7], [1, 7]]
    after.advance([7])
    assert inner.told == [7]
    assert after.allowed([3], 9).nonzero().tolist() == [[0, 7], [1, 7]]


def test_space_around_a_thought_belongs_to_nobody() -> None:
    said = {0: "<think>", 1: "</think>", 2: "\n", 3: " a", 4: " b", 5: "stop"}
    text = AnswerText(lambda ids: "".join(said[each] for each in ids), ["stop"], Thinking(0, 1))
    shown = [text.push(token) for token in (0, 2, 3, 5, 2, 1, 2, 2, 4, 2, 5)]
    assert text.thought.text == "astop"  # stop strings end answers, not thoughts
    assert "".join(each for each, _ in shown) == "b\n"
    assert shown[-1][1]


def test_a_vocabulary_without_the_markers_has_no_thoughts(tmp_path: Path) -> None:
    save_chat_model(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokenizer.chat_template = KEEPS
    assert ChatFormat(tokenizer).thought_marks is None
