"""Finds the tokens that end an answer."""

from __future__ import annotations

from typing import Any

from tokenizers import normalizers

from triforce_chat.errors import ModelError

# A base model's config often names only the end-of-text token, while its chat template ends turns with another.
END_MARKERS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|eom_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
)
NORMALIZED = ("qwen2", "qwen3")  # families whose published tokenizers normalize texts to NFC


def end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The end token ids of the generation config, the config, the tokenizer, and well-known special tokens.

    Raises ModelError for something else in their place.
    """
    configs = (getattr(model, "generation_config", None), model.config, tokenizer)
    declared = [_as_ids(getattr(config, "eos_token_id", None)) for config in configs]
    return frozenset[int]().union(*declared, _marker_ids(tokenizer))


def repair_gguf_tokenizer(tokenizer: Any, config: Any) -> None:
    """Give a tokenizer read from GGUF the special tokens of the config, its family's normalizer, and exact decoding.

    Some versions of transformers guess the tokens and the decoding, and took the beginning-of-text token for the end
    token; they know the normalizer, which the file does not name, only when they read the tokenizer they saved.
    """
    for role in ("bos_token", "eos_token", "pad_token"):
        number = getattr(config, f"{role}_id", None)
        if isinstance(number, int):
            setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(number))
    tokenizer.clean_up_tokenization_spaces = False
    if config.model_type in NORMALIZED and tokenizer.backend_tokenizer.normalizer is None:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()


def _as_ids(value: Any) -> frozenset[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(number) is int for number in ids):
        raise ModelError(f"eos_token_id is {value!r:.40}, neither the id of a token nor a list of them")
    return frozenset(ids)


def _marker_ids(tokenizer: Any) -> frozenset[int]:
    special = {
        token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    return frozenset(special[marker] for marker in END_MARKERS if marker in special)
