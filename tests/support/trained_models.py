"""Tiny targets that can read and be asked: random weights behind a trained tokenizer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from support.long_texts import prose, trained_tokenizer
from support.tiny_models import save_weights
from triforce_chat.chat.template import ChatFormat
from triforce_chat.lab.tasks.books import Book
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.training.context import ContextRecipe, ContextTraining
from triforce_chat.lab.training.selfchat import Row
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
    text = ChatFormat(loaded.tokenizer).encode
    return ExampleBuilder(loaded.tokenizer, [Book.of(f"Book {i}", prose(i, 60), text) for i in range(books)])


LENGTHS = (1200, 1250, 1300)


def recipe(**changes: Any) -> ContextRecipe:
    usual: dict[str, Any] = {"factor": 4.0, "rank": 2, "alpha": 2.0, "rate": 1e-2, "minutes": 1e6}
    return ContextRecipe(**{**usual, "lengths": LENGTHS, "tokens": LENGTHS[0], "steps": 7, **changes})


def chats(seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    return [Row([rng.randrange(3, 300) for _ in range(20 + 5 * i)], 4 + i) for i in range(6)]


def training(loaded: LoadedModel, builder: ExampleBuilder, folder: Path, **changes: Any) -> ContextTraining:
    few = recipe(chats_per_step=3, readings_per_step=2, **changes)
    return ContextTraining(loaded, builder, (chats(), chats(1)), few, folder)
