"""What is trained on: documents of exact lengths with planted facts, conversations as a session renders them."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path
from typing import Any

import pytest
from support.long_texts import messages, prose, sent, spelled, three_books

from triforce_chat.chat.template import ChatFormat
from triforce_chat.errors import DocumentError, UsageError
from triforce_chat.lab.tasks.books import PARAGRAPH_CHARACTERS, Book, load_books, paragraphs
from triforce_chat.lab.tasks.conversations import ABSENT_SHARE, FIRST_DEPTH, SYSTEMS, ExampleBuilder, depths
from triforce_chat.lab.tasks.facts import ABSENT_ANSWER, PRESENT, facts_of
from triforce_chat.lab.tasks.needles import TAIL, insert_facts


@pytest.fixture(scope="module")
def builder() -> ExampleBuilder:
    return three_books()


@pytest.fixture(scope="module")
def form(builder: ExampleBuilder) -> ChatFormat:
    return builder.format


# Books


def test_a_book_has_the_tokens_of_its_text(form: ChatFormat) -> None:
    text = prose(7, 30)
    book = Book.of("Some", text, form.encode)
    ids = [token for part in book.paragraphs for token in part]
    gap = form.encode("\n\n")
    whole = form.encode(re.sub(" +\n", "\n", text))
    assert len(gap) == 1  # at the end of a text; two tokens in its midst
    assert ids[:-2] == whole[: len(ids) - 2] == whole
    assert book.tokens == len(ids)


def test_blank_lines_are_gaps_and_nothing_else_is_lost() -> None:
    assert list(paragraphs("\n\n One\ntwo \n \n\n\n  Three\n\n\n")) == ["One\ntwo", "Three"]


@pytest.mark.parametrize("glue", [" ", "\n", ". ", "x"])
def test_long_paragraphs_are_cut(glue: str) -> None:
    text = glue.join(f"word{number}" for number in range(1000))
    parts = list(paragraphs(text))
    assert len(parts) > 3
    assert all(len(part) <= PARAGRAPH_CHARACTERS for part in parts)
    assert re.sub(r"\s", "", "".join(parts)) == re.sub(r"\s", "", text)
    assert glue in " \nx" or all(part.endswith(".") for part in parts[:-1])


def test_books_come_from_files_and_folders_in_order(tmp_path: Path, form: ChatFormat) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "b" / "deep" / "two.md").write_text("# Two\n\nText.")
    (tmp_path / "b" / "empty.txt").write_text("")
    (tmp_path / "b" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "b" / "left.txt").write_text("Left out.")
    (tmp_path / "a.txt").write_bytes("Fünf.".encode("latin-1"))
    found = load_books([tmp_path / "b", tmp_path / "a.txt", tmp_path], form.encode, exclude=["left"])
    assert [book.title for book in found] == ["a", "Two"]
    assert spelled(form, list(found[0].paragraphs[0])) == "Fünf.\n\n"
    with pytest.raises(UsageError, match="no text"):
        load_books([tmp_path / "b"], form.encode, exclude=["left.txt", "two"])
    with pytest.raises(DocumentError, match="no such file"):
        load_books([tmp_path / "missing.txt"], form.encode)


# Documents with planted facts


def planted_text(
    builder: ExampleBuilder, seed: int, length: int, where: list[float], pages: int | None
) -> tuple[str, Any]:
    rng, form = random.Random(seed), builder.format
    kinds = [kind for kind in PRESENT if pages or kind != "page"]
    facts = facts_of(rng, [rng.choice(kinds) for _ in where])
    text = [part for book in builder.books for part in book.paragraphs]
    ids, told = insert_facts(rng, text, facts, where, form.encode, length, pages)
    assert len(ids) == length
    assert sorted(fact.question for fact in told) == sorted(fact.question for fact in facts)
    return spelled(form, ids), told


@pytest.mark.parametrize("pages", [None, 150])
@pytest.mark.parametrize("seed", range(4))
def test_facts_stand_at_their_depths(builder: ExampleBuilder, seed: int, pages: int | None) -> None:
    where = [i / 8 for i in range(8)]
    text, told = planted_text(builder, seed, 5000, where, pages)
    most = max(len(part) for book in builder.books for part in book.paragraphs)
    for fact, depth in zip(told, where, strict=True):
        assert all(text.count(sentence) == 1 for sentence in fact.sentences)
        place = len(builder.format.encode(text[: text.index(fact.sentences[0])]))
        assert abs(place - depth * 5000) <= most + 20
    assert len(builder.format.encode(text[: text.index(told[0].sentences[0])])) <= most


def test_what_is_not_planted_is_the_book(builder: ExampleBuilder) -> None:
    text, told = planted_text(builder, 3, 4000, [0.1, 0.3, 0.5, 0.7, 0.9], None)
    alone = appended = 0
    for sentence in (sentence for fact in told for sentence in fact.sentences):
        alone += f"\n\n{sentence}\n\n" in text
        appended += f" {sentence}\n\n" in text
        text = (
            text.replace(f"{sentence}\n\n", "\n\n")
            if f" {sentence}" in text
            else text.replace(f"{sentence}\n\n", "")
        )
        text = text.replace(" \n\n", "\n\n")
    whole = "".join(spelled(builder.format, list(part)) for book in builder.books for part in book.paragraphs)
    assert whole.startswith(text)
    assert alone
    assert appended


@pytest.mark.parametrize("seed", range(6))
def test_pages_are_counted(builder: ExampleBuilder, seed: int) -> None:
    text, told = planted_text(builder, seed, 6000, [random.Random(seed).random() for _ in range(12)], 200)
    pages = re.split(r"\[page (\d+)\]\n", text)
    assert pages[0] == ""
    assert pages[1::2] == [str(number) for number in range(1, len(pages) // 2 + 1)]
    sizes = [len(builder.format.encode(page)) for page in pages[2:-1:2]]
    assert all(150 < size < 400 for size in sizes)
    asked = [fact for fact in told if fact.kind == "page"]
    for fact in asked:
        assert fact.sentences[0] in pages[2 * int(fact.answer)]
        assert f"page {fact.answer}" in fact.reply.lower()


def test_the_last_page_facts_are_right_even_when_space_runs_out(builder: ExampleBuilder) -> None:
    rng, form = random.Random(5), builder.format
    facts = facts_of(rng, ["page"] * 6)
    text = [part for book in builder.books for part in book.paragraphs]
    ids, told = insert_facts(rng, text, facts, [0.999] * 6, form.encode, 900, 100)
    assert len(ids) == 900
    pages = re.split(r"\[page \d+\]\n", spelled(form, ids))
    assert all(fact.sentences[0] in pages[int(fact.answer)] for fact in told)
    assert all(fact.sentences[0] in spelled(form, ids[:-TAIL]) for fact in told)


def test_what_cannot_be_planted_is_refused(builder: ExampleBuilder) -> None:
    rng, form = random.Random(0), builder.format
    page, name = facts_of(rng, ["page", "name"])
    text = builder.books[0].paragraphs
    with pytest.raises(ValueError, match="no page marks"):
        insert_facts(rng, text, [page], [0.5], form.encode, 1000)
    with pytest.raises(ValueError, match="too few for 1 sentences"):
        insert_facts(rng, text, [name], [0.5], form.encode, TAIL + 5)
    with pytest.raises(ValueError, match="shorter than"):
        insert_facts(rng, text[:3], [name], [0.5], form.encode, 1000)


# Conversations


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("length", "questions"), [(1500, 3), (4000, 1), (6000, 12)])
def test_a_conversation_is_what_a_session_sends(
    builder: ExampleBuilder, seed: int, length: int, questions: int
) -> None:
    form = builder.format
    example = builder.with_facts(random.Random(seed), length, questions)
    assert len(example.ids) == length
    assert len(example.answers) == questions
    spoken = messages(spelled(form, example.ids))
    replies = [spelled(form, example.ids[start:end]) for start, end in example.answers]
    assert replies == [f"{said}<|im_end|>" for role, said in spoken if role == "assistant"]
    ids = sent(form, spoken)
    start = example.answers[-1][0]
    cut = next(
        (i for i, (ours, theirs) in enumerate(zip(example.ids, ids, strict=False)) if ours != theirs), start
    )
    behind = start - cut  # a document may end in the midst of a word, whose letters can be joined otherwise
    same = next(i for i in range(9) if example.ids[cut + i : start] == ids[len(ids) - (behind - i) :])
    assert same <= 8
    assert cut == start or len(spelled(form, example.ids[cut : cut + same])) < 30


@pytest.mark.parametrize("seed", range(8))
def test_every_question_can_be_answered_from_the_document(builder: ExampleBuilder, seed: int) -> None:
    text = spelled(builder.format, builder.with_facts(random.Random(seed), 5000, 8).ids)
    spoken = [said for role, said in messages(text) if role != "system"]
    document = spoken[0]
    for said in spoken[1::2]:
        page = re.search(r"[Pp]age (\d+)", said)
        names = re.findall(r"\d[\d,]*|[A-Z]\w+(?: [A-Z]\w+)+", said.removeprefix("The "))
        if ABSENT_ANSWER not in said:
            assert f"[page {page[1]}]" in document if page else all(name in document for name in names)


def test_systems_vary(builder: ExampleBuilder) -> None:
    rng = random.Random(0)
    seen = [messages(spelled(builder.format, builder.with_facts(rng, 1000, 1).ids))[0] for _ in range(60)]
    texts = [said for role, said in seen if role == "system"]
    usual = [said for said in texts if "careful reader" in said]
    assert 18 <= len(usual) <= 42
    assert 5 <= len([said for said in texts if said in SYSTEMS]) <= 25
    assert len(texts) < 60


def test_examples_follow_from_the_seed(builder: ExampleBuilder) -> None:
    first, second, other = (builder.with_facts(random.Random(seed), 3000, 5) for seed in (1, 1, 2))
    assert first == second != other


def test_plain_text_is_running_text(builder: ExampleBuilder) -> None:
    books = [[token for part in book.paragraphs for token in part] for book in builder.books]
    whole = [spelled(builder.format, one + other) for one in books for other in books]
    long = max(book.tokens for book in builder.books)
    for seed in range(6):
        example = builder.running_text(random.Random(seed), 500)
        assert len(example.ids) == 500
        assert example.answers == []
        assert len(builder.running_text(random.Random(seed), 2 * long).ids) == 2 * long
    starts = [
        spelled(builder.format, builder.running_text(random.Random(seed), 30).ids) for seed in range(40)
    ]
    assert all(any(start in text for text in whole) for start in starts)
    assert any(text.startswith(start) for start in starts for text in whole)
    assert len(set(starts)) > 20


def test_a_prompt_waits_for_its_question(builder: ExampleBuilder) -> None:
    form = builder.format
    for seed in range(6):
        ids = builder.prompt(random.Random(seed), 700)
        assert len(ids) == 700
        text = spelled(form, ids)
        assert text.endswith("\n\n")
        assert "<|im_start|>user\n# Book " in text
        spoken = messages(text + "Why?<|im_end|>\n")
        assert spoken[-1][1].endswith("\n\nWhy?")


def test_a_pair_is_a_prompt_and_its_reply(builder: ExampleBuilder) -> None:
    rng, form = random.Random(2), builder.format
    fact, *others = facts_of(rng, ["number", "name", "two-step"])
    prefix, question, reply = builder.pair(rng, 2000, fact, 0.5, others)
    assert len(prefix) == 2000
    assert spelled(form, question) == f"{fact.question}<|im_end|>\n<|im_start|>assistant\n"
    assert spelled(form, reply) == fact.reply
    document = spelled(form, prefix)
    assert 0.4 < document.index(fact.sentences[0]) / len(document) < 0.6
    assert all(sentence in document for other in others for sentence in other.sentences)


def test_depths_lean_to_the_far_start() -> None:
    rng = random.Random(0)
    drawn = [depths(rng, 10) for _ in range(200)]
    assert all(min(some) < FIRST_DEPTH for some in drawn)
    far = sum(depth < 0.15 for some in drawn for depth in some) / 2000
    assert 0.48 < far < 0.6
    assert depths(rng, 0) == []


def test_a_template_without_an_end_is_refused(builder: ExampleBuilder) -> None:
    other = copy.deepcopy(builder.tokenizer)
    other.chat_template = (
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"
    )
    with pytest.raises(ValueError, match="does not end answers"):
        ExampleBuilder(other, builder.books).with_facts(random.Random(0), 1000, 1)


def test_absent_questions_come_in_their_share(builder: ExampleBuilder) -> None:
    rng = random.Random(3)
    examples = [builder.with_facts(rng, 3000, 8) for _ in range(40)]
    said = [spelled(builder.format, one.ids[start:end]) for one in examples for start, end in one.answers]
    share = sum(ABSENT_ANSWER in reply for reply in said) / len(said)
    assert share == pytest.approx(ABSENT_SHARE, abs=0.07)
