"""Reads models by transformers' auto classes.

Importing this takes seconds. What it writes of a configuration and a tokenizer is kept (``metadata_cache``) and read at
later starts without transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from triforce_chat.engine.forward.attention import register
from triforce_chat.errors import ModelError
from triforce_chat.models import tokenizer as written
from triforce_chat.models.completeness import check_loaded
from triforce_chat.models.configuration import for_transformers
from triforce_chat.models.draft_head import OF_TARGET, is_built_on_target
from triforce_chat.models.end_tokens import repair_gguf_tokenizer
from triforce_chat.models.failures import convert_errors
from triforce_chat.models.gguf_for_transformers import forget_metadata, quick_gguf
from triforce_chat.models.registry import ModelSource
from triforce_chat.models.silence_logs import silence_logs

CONFIG = "config.json"


def write_config(source: ModelSource, folder: Path) -> None:
    """Write all fields of a configuration, with transformers' defaults. Raises ModelError."""
    with convert_errors(source.name, "cpu"), silence_logs(), quick(source):
        config = AutoConfig.from_pretrained(source.folder, **options(source))
        (folder / CONFIG).write_text(json.dumps(config.to_dict()), "utf-8")


def write_tokenizer(source: ModelSource, config: Any, folder: Path) -> None:
    """Write a tokenizer; ``config``: of its model. Raises ModelError."""
    with convert_errors(source.name, "cpu"), silence_logs(), quick(source):
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **options(source))
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise ModelError(f"{source.name}: its tokenizer cannot be run by the tokenizers library")
        if source.gguf_file is not None:
            repair_gguf_tokenizer(tokenizer, config)
        written.write(tokenizer, folder)
    forget_metadata()


def read_by_transformers(
    source: ModelSource, config: Any, dtype: torch.dtype, attention: str, placement: Mapping[str, Any]
) -> Any:
    """The model in transformers' classes. Raises ModelError for a file that lacks weights."""
    register()
    with quick(source):
        model, info = AutoModelForCausalLM.from_pretrained(
            source.folder,
            config=for_transformers(config),
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=None if source.gguf_file else True,
            output_loading_info=True,
            **placement,
            **options(source),
        )
    of_target = OF_TARGET if is_built_on_target(source.folder) else ()
    check_loaded(source.name, set(info["missing_keys"]) - {*of_target})
    return model.requires_grad_(False).eval()


def options(source: ModelSource) -> dict[str, Any]:
    """Options of ``from_pretrained``: local files only, and never a model's own code."""
    found: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    return found | ({"gguf_file": source.gguf_file} if source.gguf_file else {})


def quick(source: ModelSource) -> AbstractContextManager[None]:
    """Within it transformers reads a GGUF file quickly."""
    return quick_gguf() if source.gguf_file else nullcontext()
