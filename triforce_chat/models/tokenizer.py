"""A model's tokenizer: the part of transformers' that this program uses, over the same library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from triforce_chat.models.chat_template import render

BACKEND, PROPERTIES = "tokenizer.json", "properties.json"  # files of a tokenizer that was written


class Tokenizer:
    """Texts to ids and back, under the names that transformers gives to all this."""

    def __init__(
        self, backend: Backend, special: Mapping[str, str], chat_template: Any, vocabulary: str
    ) -> None:
        """``special``: tokens by their roles (bos_token, eos_token, ...); ``vocabulary``: the hash of all."""
        self.backend_tokenizer, self.special_tokens_map = backend, dict(special)
        self.chat_template, self.vocabulary = chat_template, vocabulary
        # A file may declare them, for texts of one length.
        backend.no_truncation()
        backend.no_padding()

    @classmethod
    def read(cls, folder: Path) -> Tokenizer:
        """The tokenizer that ``write`` has written."""
        properties = json.loads((folder / PROPERTIES).read_text("utf-8"))
        return cls(Backend.from_file(str(folder / BACKEND)), **properties)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens_map.get("unk_token")

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.backend_tokenizer.token_to_id(self.eos_token)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Added tokens by their ids."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        return {token.content: number for number, token in sorted(self.added_tokens_decoder.items())}

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab()

    def __call__(
        self,
        text: str | list[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        verbose: bool = True,  # noqa: ARG002 (transformers would warn of long texts)
    ) -> dict[str, Any]:
        """input_ids of a text, or of each of several; with ``split_special_tokens`` nothing in them is special."""
        texts = [text] if isinstance(text, str) else text
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        backend = self.backend_tokenizer
        encode = backend.encode_batch if return_offsets_mapping else backend.encode_batch_fast
        found = encode(texts, add_special_tokens=add_special_tokens)
        columns: dict[str, list[Any]] = {"input_ids": [each.ids for each in found]}
        if return_offsets_mapping:
            columns["offset_mapping"] = [each.offsets for each in found]
        return {name: rows[0] if isinstance(text, str) else rows for name, rows in columns.items()}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    def decode(
        self,
        ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The exact text of ids, which may be a tensor of them."""
        assert not clean_up_tokenization_spaces
        numbers = ids.tolist() if hasattr(ids, "tolist") else ids
        numbers = [numbers] if isinstance(numbers, int) else [*numbers]
        return self.backend_tokenizer.decode(numbers, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        *,
        chat_template: str,
        add_generation_prompt: bool,
        tokenize: bool = False,
        **switches: Any,
    ) -> str:
        """The text of a conversation. Raises whatever the template does."""
        assert not tokenize
        known = {**self.special_tokens_map, **switches}
        return render(chat_template, messages, add_generation_prompt, **known)


def write(tokenizer: Any, folder: Path) -> None:
    """Write what ``Tokenizer.read`` reads of one of transformers' tokenizers."""
    tokenizer.backend_tokenizer.save(str(folder / BACKEND), pretty=False)
    properties = {
        "special": tokenizer.special_tokens_map,
        "chat_template": tokenizer.chat_template,
        "vocabulary": vocabulary_hash(tokenizer),
    }
    (folder / PROPERTIES).write_text(json.dumps(properties), "utf-8")


def vocabulary_hash(tokenizer: Any) -> str:
    """A hash of a tokenizer's tokens and their ids."""
    if isinstance(tokenizer, Tokenizer):  # which takes a fifth of a second for a large vocabulary
        return tokenizer.vocabulary
    tokens = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:32]
