"""Tokenizers in the styles of all presets', with vocabularies of a few hundred tokens, and their chat templates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from support.tiny_models import save_sentencepiece
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


def all_styles(folder: Path) -> dict[str, Style]:
    """Each style by its name; ``folder`` receives the files of each."""
    folders = iter([folder / str(number) for number in range(7)])
    for each in range(7):
        (folder / str(each)).mkdir()
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
