"""A random model with a byte-level tokenizer, shared by the session tests of one module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.byte_tokenizer import BYTE_VOCABULARY, CHATML, END
from support.chat_sessions import CONTEXT
from support.tiny_models import mute_special_tokens, save_model, save_tokenizer
from tokenizers import decoders

from triforce_chat.engine.engine import Engine
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.settings import Settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    save_model(made, vocab_size=len(BYTE_VOCABULARY), max_position_embeddings=CONTEXT, initializer_range=0.3)
    save_tokenizer(made, BYTE_VOCABULARY)
    mute_special_tokens(made)
    (made / "chat_template.jinja").write_text(CHATML)
    return made


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Engine, LoadedModel]:
    engine, model = load_engine(EngineSpec(Settings(model=str(folder), device="cpu")))
    model.tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    assert model.eos_ids == {0, END}
    return engine, model
