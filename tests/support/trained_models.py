"""Tiny targets that can read and be asked: random weights behind a trained tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from support.long_texts import prose, trained_tokenizer
from support.tiny_models import save_weights
from triforce_chat.chat.template import ChatFormat
from triforce_chat.lab.tasks.books import Book
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.models.load import LoadedModel, load_model


def save_target(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A model folder with a chat template, made for 512 tokens; a wide spread gives decided logits."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = trained_tokenizer()
    torch.manual_seed(seed)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "initializer_range": 0.2}
    save_weights(folder, **{**sizes, **changes})
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path) -> LoadedModel:
    return load_model(str(folder), attention="sdpa")


def builder_of(loaded: LoadedModel, books: int = 2) -> ExampleBuilder:
    text = ChatFormat(loaded.tokenizer).text
    return ExampleBuilder(loaded.tokenizer, [Book.of(f"Book {i}", prose(i, 60), text) for i in range(books)])
