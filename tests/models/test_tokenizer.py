"""A kept tokenizer says what transformers' own says: ids, texts, places, special tokens and conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError
from support.tiny_models import save_model, save_sentencepiece, write_gguf
from support.tokenizer_styles import SPECIALS, STYLES, all_styles

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.errors import ModelError
from triforce_chat.models.chat_template import render
from triforce_chat.models.end_tokens import repair_gguf_tokenizer
from triforce_chat.models.load import load_config, load_model
from triforce_chat.models.registry import resolve
from triforce_chat.models.tokenizer import Tokenizer, write

Pair = tuple[Any, Tokenizer]  # transformers' and what is kept of it
TEXTS = [
    "",
    " ",
    "It was a dark  and\tstormy night;\r\n\r\nthe rain fell in torrents.",
    "Grüße, naïve café, 東京, Ελλάδα, שלום, 🙂👩‍👩‍👧, e\u0301 é, \ufb01, \u200b\ufeff",
    "3.14159 1,000,000 don't I'LL x=1;y=2",
    "".join(SPECIALS),
    "a <|im_end|>b</s> c <unk>",
    "\0\x1b[31m\udc80".encode("utf-8", "replace").decode(),
]
few = settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
ANY_TEXT = st.lists(st.one_of(st.sampled_from(SPECIALS), st.text(max_size=6)), max_size=8).map("".join)


def kept(theirs: Any, folder: Path) -> Pair:
    folder.mkdir()
    write(theirs, folder)
    return theirs, Tokenizer.read(folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("tokenizers")
    styles = all_styles(folder)
    return {name: kept(style.tokenizer, folder / name) for name, style in styles.items()}


def assert_same_ids(pair: Pair, text: str) -> None:
    theirs, own = pair
    for special in (False, True):
        for split in (False, True):
            options = {"add_special_tokens": special, "split_special_tokens": split}
            expected = theirs(text, return_offsets_mapping=True, verbose=False, **options)
            found = own(text, return_offsets_mapping=True, verbose=False, **options)
            assert found["input_ids"] == expected["input_ids"]
            assert found["offset_mapping"] == expected["offset_mapping"]
    assert own(text)["input_ids"] == theirs(text)["input_ids"]
    assert own.encode(text) == theirs.encode(text)


def assert_same_text(pair: Pair, ids: list[int]) -> None:
    theirs, own = pair
    for skip in (False, True):
        expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert own.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("name", STYLES)
@few
@given(ANY_TEXT)
@example(TEXTS[2])
@example(TEXTS[3])
@example(TEXTS[5])
def test_any_text_has_the_same_ids_and_comes_back_alike(pairs: dict[str, Pair], name: str, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert_same_ids(pairs[name], text)
    assert_same_text(pairs[name], pairs[name][1].encode(text))


@pytest.mark.parametrize("name", STYLES)
def test_several_texts_at_once(pairs: dict[str, Pair], name: str) -> None:
    theirs, own = pairs[name]
    expected = theirs(TEXTS, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    assert own(TEXTS, add_special_tokens=False, split_special_tokens=True)["input_ids"] == expected


@pytest.mark.parametrize("name", STYLES)
def test_every_token(pairs: dict[str, Pair], name: str) -> None:
    theirs, own = pairs[name]
    assert own.get_vocab() == theirs.get_vocab()
    assert own.get_added_vocab() == theirs.get_added_vocab()
    assert str(own.added_tokens_decoder) == str(theirs.added_tokens_decoder)
    assert len(own) == len(theirs)
    for role in ("unk_token", "bos_token", "eos_token", "eos_token_id"):
        assert getattr(own, role) == getattr(theirs, role)
    for number in range(len(own)):
        assert_same_text(pairs[name], [number])
    assert own.decode(torch.tensor([3, 4])) == own.decode((3, 4)) == theirs.decode([3, 4])
    assert own.decode(3) == theirs.decode(3)


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize(
    "roles", ["user", "system user", "user assistant user", "system user assistant user"]
)
def test_conversations(pairs: dict[str, Pair], name: str, roles: str) -> None:
    forms = [ChatFormat(each) for each in pairs[name]]
    asked = [Message(role, forms[0].encode(f"{role} says")) for role in roles.split()]
    assert forms[1].render(asked) == forms[0].render(asked)
    assert forms[1].structural == forms[0].structural
    assert forms[1].stop == forms[0].stop


TEMPLATES = [
    "{% for m in messages %}{{ loop.index }}{{ m['content'] | trim }}{% break %}{% endfor %}",
    "{%- for m in messages %}\n  {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}\n{% endfor %}{{ bos_token or 'none' }}{{ eos_token }}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ dict(a='<b>') | tojson }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}",
    "{{ enable_thinking }}{{ add_generation_prompt }}{{ tools is none }}{{ documents is none }}{{ missing }}",
    "{% macro both(m) %}{{ m.role }}: {{ m.content }}\n{% endmacro %}{% for m in messages %}{{ both(m) }}{% endfor %}",
    "{{ strftime_now('%Y') }}{{ messages[0]['content'].split('e') | join('|') }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_whatever_a_template_uses(pairs: dict[str, Pair], template: str) -> None:
    messages = [
        {"role": "user", "content": "where <is> the inn?"},
        {"role": "assistant", "content": "  there\n"},
    ]
    options: dict[str, Any] = {"chat_template": template, "add_generation_prompt": True}
    options["enable_thinking"] = False
    for theirs, own in pairs.values():
        expected = theirs.apply_chat_template(messages, tokenize=False, **options)
        assert own.apply_chat_template(messages, tokenize=False, **options) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._private = 1 %}",
        "{{ raise_exception.__globals__ }}",
    ],
)
def test_a_template_stays_in_its_sandbox(template: str) -> None:
    with pytest.raises(SecurityError):
        render(template + "{{ ''.__class__.__mro__ }}", [], True)


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("form", ["byte level", "sentencepiece", "gguf"])
def test_what_a_loaded_model_has(tmp_path: Path, form: str) -> None:
    from transformers import AutoConfig, AutoTokenizer

    place, options = tmp_path, {}
    if form == "gguf":
        place, options = write_gguf(tmp_path / "tiny.gguf"), {"gguf_file": "tiny.gguf"}
    else:
        save_model(tmp_path)
        save_sentencepiece(tmp_path) if form == "sentencepiece" else None
    theirs = AutoTokenizer.from_pretrained(tmp_path, **options)
    if form == "gguf":
        repair_gguf_tokenizer(theirs, AutoConfig.from_pretrained(tmp_path, **options))
    for _ in ("first", "second"):
        own = load_model(str(place), attention="sdpa").tokenizer
        assert isinstance(own, Tokenizer)
        assert own.get_vocab() == theirs.get_vocab()
        assert own.special_tokens_map == theirs.special_tokens_map
        assert own.chat_template == theirs.chat_template
        for text in TEXTS:
            assert_same_ids((theirs, own), text)
            assert_same_text((theirs, own), own.encode(text))


@pytest.mark.usefixtures("empty_cache")
def test_a_tokenizer_of_another_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: object())
    with pytest.raises(ModelError, match="cannot be run by the tokenizers library"):
        load_model(str(tmp_path), attention="sdpa")


@pytest.fixture(scope="module")
def of_the_small_model() -> Pair:
    from transformers import AutoTokenizer

    source = resolve("smollm2-135m")
    assert source.gguf_file
    theirs = AutoTokenizer.from_pretrained(source.folder, gguf_file=source.gguf_file)
    repair_gguf_tokenizer(theirs, load_config(source))
    own = load_model("smollm2-135m", attention="sdpa").tokenizer
    assert isinstance(own, Tokenizer)
    return theirs, own


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_the_small_model_s_own(text: str, of_the_small_model: Pair) -> None:
    theirs, own = of_the_small_model
    assert_same_ids((theirs, own), text)
    assert_same_text((theirs, own), own.encode(text))
    assert own.get_vocab() == theirs.get_vocab()
    forms = [ChatFormat(each) for each in (theirs, own)]
    for roles in (("user",), ("system", "user"), ("user", "assistant", "user")):
        asked = [Message(role, forms[0].encode(text)) for role in roles]
        assert forms[1].render(asked) == forms[0].render(asked)
