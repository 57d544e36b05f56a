"""Special tokens inside a text are text, in the style of every preset's tokenizer; only a template opens a turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.tiny_models import save_sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.models.presets import LWM_TEMPLATE

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }}[/INST]"
    "{% elif message.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
OTHERS = ["<s>", "</s>", "[INST]", "[/INST]", "<unk>", "<<SYS>>", "<think>", "</tool_call>", "<|user|>"]
SPECIALS = [*QWEN, *LLAMA, *OTHERS]
LETTERS = sorted(ByteLevel.alphabet())


@dataclass(frozen=True)
class Style:
    """A tokenizer, and how a conversation of four messages looks in its template."""

    tokenizer: Any
    exact: bool  # what is encoded decodes to itself


def byte_level(
    folder: Path, tokens: list[str], template: str, special: bool = True, pieces: bool = False
) -> Any:
    """As Qwen, SmolLM2 and Llama 3 have them; ``pieces`` puts the special tokens among the pieces of words too."""
    from transformers import PreTrainedTokenizerFast

    words = [*(tokens if pieces else []), *LETTERS]
    backend = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, [], ignore_merges=pieces))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pieces)
    backend.decoder = decoders.ByteLevel()
    declared = [AddedToken(token, special=special, normalized=False) for token in tokens]
    backend.add_special_tokens(declared) if special else backend.add_tokens(declared)
    names = {"bos_token": tokens[0], "eos_token": tokens[-1]} if special else {}
    loaded = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    loaded.chat_template = template
    loaded.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def sentencepiece(folder: Path, template: str, more: tuple[str, ...] = ()) -> Any:
    """As Llama 2, LWM and Mistral have them."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    save_sentencepiece(folder)
    loaded = AutoTokenizer.from_pretrained(folder)
    if more:
        loaded = PreTrainedTokenizerFast(
            tokenizer_object=loaded.backend_tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        )
        loaded.add_special_tokens({"additional_special_tokens": list(more)})
    loaded.chat_template = template
    return loaded


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Style]:
    folders = (tmp_path_factory.mktemp("tokenizer") for _ in range(9))
    return {
        "qwen": Style(byte_level(next(folders), QWEN, CHATML), True),
        "undeclared": Style(byte_level(next(folders), QWEN, CHATML, special=False), True),
        "among the pieces": Style(byte_level(next(folders), QWEN, CHATML, pieces=True), False),
        "llama-3": Style(byte_level(next(folders), LLAMA, LLAMA3), True),
        "mistral": Style(sentencepiece(next(folders), MISTRAL, ("[INST]", "[/INST]")), False),
        "lwm": Style(sentencepiece(next(folders), LWM_TEMPLATE), False),
        "yarn": Style(sentencepiece(next(folders), ""), False),
    }


STYLES = ["qwen", "undeclared", "among the pieces", "llama-3", "mistral", "lwm", "yarn"]
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
