"""Special tokens inside a text are text, in the style of every preset's tokenizer; only a template opens a turn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.tokenizer_styles import SPECIALS, STYLES, Style, all_styles

from triforce_chat.chat.template import ChatFormat, Message


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Style]:
    return all_styles(tmp_path_factory.mktemp("tokenizers"))


FOREIGN = st.lists(st.one_of(st.sampled_from(SPECIALS), st.text(max_size=6)), max_size=8).map("".join)
few = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


def special_ids(tokenizer: Any) -> set[int]:
    """Of all added tokens, whatever they are declared; the one for the unknown is no command."""
    return set(tokenizer.added_tokens_decoder) - {tokenizer.unk_token_id}


def counted(style: Style, *texts: str) -> Counter[int]:
    form = ChatFormat(style.tokenizer)
    roles = ("system", "user", "assistant", "user")
    ids = form.render([Message(role, form.encode(text)) for role, text in zip(roles, texts, strict=True)])
    return Counter(token for token in ids if token in special_ids(style.tokenizer))


@pytest.mark.parametrize("name", STYLES)
@few
@example("".join(SPECIALS), 0)
@example("".join(SPECIALS), 3)
@example("<|im_<|im_end|>end|>\0<|im_end|>", 1)
@given(FOREIGN, st.integers(0, 3))
def test_a_prompt_has_the_templates_own_special_tokens_only(
    styles: dict[str, Style], name: str, text: str, place: int
) -> None:
    texts = ["a", "b", "c", "d"]
    plain = counted(styles[name], *texts)
    texts[place] = text
    assert counted(styles[name], *texts) == plain


@pytest.mark.parametrize("name", [name for name in STYLES if name != "among the pieces"])
@few
@example("".join(SPECIALS))
@given(FOREIGN)
def test_no_character_is_lost(styles: dict[str, Style], name: str, text: str) -> None:
    style = styles[name]
    if "<unk>" in text and not style.exact:
        text = text.replace("<unk>", "")
    whole = text.encode("utf-8", "replace").decode()
    decoded = style.tokenizer.decode(
        ChatFormat(style.tokenizer).encode(text), clean_up_tokenization_spaces=False
    )
    assert decoded == whole if style.exact else decoded.replace(" ", "") == whole.replace(" ", "")


@pytest.mark.parametrize("name", STYLES)
@few
@example(["a", "", "".join(SPECIALS), "b"])
@given(st.lists(FOREIGN, max_size=4))
def test_several_texts_have_the_tokens_that_each_has_alone(
    styles: dict[str, Style], name: str, texts: list[str]
) -> None:
    form = ChatFormat(styles[name].tokenizer)
    assert form.encode_each(texts) == [form.encode(text) for text in texts]


@pytest.mark.parametrize("name", STYLES)
@few
@example("a <|im_end|> b</s>")
@example("".join(SPECIALS))
@given(FOREIGN)
def test_every_token_knows_where_it_ends(styles: dict[str, Style], name: str, text: str) -> None:
    form = ChatFormat(styles[name].tokenizer)
    ends = form.token_ends(text)
    assert len(ends) == len(form.encode(text))
    assert ends == sorted(ends)
    assert not ends or ends[-1] <= len(text)


@pytest.mark.parametrize("name", STYLES)
def test_what_a_model_said_opens_no_turn(styles: dict[str, Style], name: str) -> None:
    tokenizer = styles[name].tokenizer
    form = ChatFormat(tokenizer)
    words = form.encode("an answer")
    marks = special_ids(tokenizer) if name != "yarn" else {tokenizer.eos_token_id}
    assert form.without_structural([*words, *marks, *words]) == words + words


def test_titles_and_pages_are_text(styles: dict[str, Style]) -> None:
    from triforce_chat.prompts import prompt

    form = ChatFormat(styles["qwen"].tokenizer)
    heading = prompt("document").format(title="<|im_end|>{text}", text="\0").split("\0")[0]
    assert not special_ids(form.tokenizer) & set(form.encode(heading))
    assert "{text}" in heading


def test_many_undeclared_marks_take_no_time_each(styles: dict[str, Style]) -> None:
    form = ChatFormat(styles["undeclared"].tokenizer)
    ids = form.encode("<|im_end|>" * 20_000)
    assert len(ids) == 200_000
