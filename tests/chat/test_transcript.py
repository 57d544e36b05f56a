"""The transcript alone, without an engine: prompts in tokens, and which turn a document belongs to."""

from __future__ import annotations

import copy

import pytest
from support.byte_tokenizer import BYTE_VOCABULARY, CHATML, END
from support.chat_sessions import book
from support.tiny_models import save_tokenizer
from tokenizers import decoders

from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.chat.events import Tally
from triforce_chat.chat.template import ChatFormat
from triforce_chat.chat.transcript import Transcript
from triforce_chat.errors import UsageError
from triforce_chat.prompts import prompt


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, BYTE_VOCABULARY)
    loaded = PreTrainedTokenizerFast.from_pretrained(folder)
    loaded.backend_tokenizer.decoder = decoders.ByteLevel()
    loaded.chat_template = CHATML
    return ChatFormat(loaded)


@pytest.fixture
def transcript(form: ChatFormat) -> Transcript:
    return Transcript(form, {END}, form.tokenizer.decode, "Be brief.")


def say(transcript: Transcript, question: str, answer: str) -> None:
    transcript.append(
        question,
        transcript.format.encode(question),
        Tally(text=answer, token_ids=[*transcript.format.encode(answer), END]),
    )


def titles(transcript: Transcript) -> list[list[str]]:
    """Of each exchange's documents, then of the pending ones."""
    groups = [*(exchange.documents for exchange in transcript.exchanges), transcript.pending]
    return [[each.document.title for each in group] for group in groups]


def decoded(transcript: Transcript, ids: list[int]) -> str:
    text: str = transcript.format.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return text


def test_a_document_belongs_to_the_next_turn(transcript: Transcript) -> None:
    transcript.add(book("One", "a\n"))
    say(transcript, "Why?", "So.")
    transcript.add(book("Two", "b\n"))
    assert titles(transcript) == [["One"], ["Two"]]
    made = transcript.prompt(transcript.format.encode("How?"))
    assert decoded(transcript, made.ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n# One\n\na\n\n\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\nSo.<|im_end|>\n<|im_start|>user\n# Two\n\nb\n\n\nHow?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [span.title for span in made.spans] == ["One", "Two"]
    for span, document in zip(made.spans, transcript.tokenized_documents, strict=True):
        assert made.ids[span.end - len(document.ids) : span.end] == document.ids


def test_the_prefix_ends_where_the_question_begins(transcript: Transcript) -> None:
    transcript.add(book("One", "a\n"))
    question = transcript.format.encode("Why?")
    whole, prefix = transcript.prompt(question), transcript.prefix()
    assert whole.ids[: len(prefix.ids) + len(question)] == prefix.ids + question
    assert whole.spans == prefix.spans
    assert transcript.length == len(whole.ids) - len(question)


def test_clearing_makes_all_documents_pending(transcript: Transcript) -> None:
    transcript.add(book("One", "a\n"))
    say(transcript, "Why?", "So.")
    transcript.add(book("Two", "b\n"))
    transcript.clear()
    assert titles(transcript) == [["One", "Two"]]
    assert transcript.turns == []


def test_a_transcript_without_turns_leaves_its_origin_alone(transcript: Transcript) -> None:
    transcript.add(book("One", "a\n"))
    say(transcript, "Why?", "So.")
    same, other = transcript.without_turns(), transcript.without_turns("Be verbose.")
    assert (titles(same), same.system, other.system) == ([["One"]], "Be brief.", "Be verbose.")
    say(same, "How?", "Thus.")
    assert titles(transcript) == [["One"], []]
    assert [turn.question for turn in transcript.turns] == ["Why?"]


def test_the_default_system_text_speaks_of_documents_if_there_are_any(form: ChatFormat) -> None:
    transcript = Transcript(form, {END}, form.tokenizer.decode)
    assert transcript.system == transcript.without_turns().system == prompt("plain")
    transcript.add(book("One", "a\n"))
    assert transcript.system == transcript.without_turns().system == prompt("system")


def test_a_reopened_turn_returns_unless_it_is_replaced(transcript: Transcript) -> None:
    with pytest.raises(UsageError, match="nothing here"), transcript.last_reopened("nothing here"):
        pass
    transcript.add(book("One", "a\n"))
    say(transcript, "Why?", "So.")
    transcript.add(book("Two", "b\n"))
    before = transcript.exchanges[0]
    with transcript.last_reopened(""):
        assert titles(transcript) == [["One"]]
    assert transcript.exchanges == [before]
    with transcript.last_reopened(""):
        say(transcript, "Why?", "Because.")
    assert titles(transcript) == [["One"], ["Two"]]
    assert [turn.answer for turn in transcript.turns] == ["Because."]


def test_stored_ids_are_valid_for_their_vocabulary_alone(transcript: Transcript) -> None:
    stored = StoredTurn(
        Turn("Why?", "So.", Tally(text="So.", token_ids=[7, 8])),
        (book("One", "a\n"),),
        (5, 6),
        "a model",
        "abc",
        0.0,
        "stop",
    )
    assert transcript.restore([stored], [book("Two", "b\n")], "abc") == 0
    assert (transcript.exchanges[0].question, transcript.turns[0]) == ([5, 6], stored.turn)
    assert titles(transcript) == [["One"], ["Two"]]
    assert transcript.restore([stored], [], "xyz") == 1
    assert transcript.exchanges[0].question == transcript.format.encode("Why?")
    assert transcript.turns[0].tally.token_ids == transcript.format.encode("So.")
    assert stored.turn.tally.token_ids == [7, 8]


def test_half_a_character_stays_with_its_answer_but_no_stop_string_does(form: ChatFormat) -> None:
    tokenizer = copy.deepcopy(form.tokenizer)
    tokenizer.chat_template = None
    plain = ChatFormat(tokenizer)
    (stop,) = plain.stop
    transcript = Transcript(plain, set(), form.tokenizer.decode)
    *half, last = plain.encode("ab€")
    for text, ids, kept in (
        ("ab", half, half),
        ("ab€", [*half, last], [*half, last]),
        ("ab", plain.encode("ab" + stop), plain.encode("ab")),
        ("", plain.encode("€")[:2], plain.encode("€")[:2]),
    ):
        turn = Turn("Why?", text, Tally(text=text, token_ids=ids))
        assert transcript.unfinished_answer_ids(turn) == kept
