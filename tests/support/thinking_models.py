"""A small model that thinks: real weights, in which each token decides the next one alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch

from support.byte_tokenizer import BYTE_VOCABULARY
from support.tiny_models import save_model

MARKERS = ["<think>", "</think>"]
THOUGHT, ANSWER = (
    "hm, so",
    "Verin!",
)  # what the model thinks and says, whatever it is asked; no letter comes twice
# The structure of Qwen3's template: thoughts can be switched off, and stand only behind the last question.
TEMPLATE = """
{%- set seen = namespace(question=0) %}
{%- for message in messages if message.role == 'user' %}{% set seen.question = messages.index(message) %}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- set said = message.content %}
{%- if message.role == 'assistant' %}
{%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
{%- if '</think>' in said %}
{%- set thought, said = said.split('</think>')[0].split('<think>')[-1], said.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > seen.question or (keep_thoughts is defined and thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
{%- endif %}
{%- endif %}
{{- said + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n</think>' }}{% endif %}
{%- endif %}"""
KEEPS = "{% set keep_thoughts = true %}" + TEMPLATE  # a template that repeats earlier thoughts
ALWAYS = TEMPLATE.replace("enable_thinking is defined and enable_thinking is false", "true").replace(
    "'<think>\n</think>'", "'<think>\n'"
)  # one that begins the thought itself


def save_thinking_model(folder: Path, template: str = TEMPLATE) -> Path:
    """Save a model that answers everything with ``THOUGHT`` between markers and then ``ANSWER``."""
    from safetensors.torch import load_file, save_file
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(5)
    vocabulary = [*BYTE_VOCABULARY, *MARKERS]
    save_model(folder, vocab_size=len(vocabulary), max_position_embeddings=8192, initializer_range=0.3)
    save_thinking_tokenizer(folder, vocabulary)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    chain = ["Ċ", MARKERS[0], *_bytes(THOUGHT), MARKERS[1], *_bytes(ANSWER), "<|im_end|>"]
    ids = tokenizer.convert_tokens_to_ids(chain)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if "o_proj" in name or "down_proj" in name:
            weight.zero_()
    embedded = torch.nn.functional.normalize(weights["model.embed_tokens.weight"], dim=-1)
    weights["lm_head.weight"].zero_()
    for before, after in pairwise(ids):
        weights["lm_head.weight"][after] += 4 * embedded[before]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "chat_template.jinja").write_text(template)
    return folder


def save_thinking_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    """A tokenizer of bytes in which the markers of thoughts are tokens, but not special ones, as Qwen3's are."""
    from tokenizers import AddedToken, Tokenizer, decoders

    from support.tiny_models import save_tokenizer

    save_tokenizer(folder, vocabulary)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    backend.save(str(folder / "tokenizer.json"))


def _bytes(text: str) -> list[str]:
    return [{" ": "Ġ"}.get(letter, letter) for letter in text]
