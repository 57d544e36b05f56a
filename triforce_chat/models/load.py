"""Weights and tokenizer in memory, ready for the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from triforce_chat.errors import ModelError
from triforce_chat.models.architecture import check_config, check_declared
from triforce_chat.models.ends import end_ids, settle_gguf_tokenizer
from triforce_chat.models.failures import explained
from triforce_chat.models.progress import Report, unheard
from triforce_chat.models.quiet import quiet
from triforce_chat.models.registry import ModelSource, resolve


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A frozen model in evaluation mode with what the engine needs to know about it."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int  # tokens it was made for (max_position_embeddings)
    vocab_size: int  # width of its logits
    eos_ids: frozenset[int]  # any of them ends an answer
    sampling: Mapping[str, float]  # what its authors recommend; empty when nothing is known


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: str,
    report: Report = unheard,
) -> LoadedModel:
    """Resolve ``name`` and load it on ``device`` with the registered attention function ``attention``.

    Nothing is written to the screen. Raises ModelError for a model that cannot be found, read or run,
    and OutOfMemory when it does not fit.
    """
    source = resolve(name, report=report)
    if source.gguf_file is None:
        check_declared(name, _declared(source))
    with explained(name, device), quiet():
        config = AutoConfig.from_pretrained(source.folder, **_options(source))
        check_config(name, config)
        tokenizer = _tokenizer(source, config)
        model = _weights(source, config, device, dtype, attention)
    return _loaded(source, model, tokenizer)


def check_draft(target: LoadedModel, draft: LoadedModel) -> None:
    """Raise ModelError unless every token has the same id in both models."""
    pair = f"draft {draft.name} cannot draft for {target.name}"
    if draft.vocab_size != target.vocab_size:
        raise ModelError(
            f"{pair}: its vocabulary has {draft.vocab_size:,} tokens, the target's {target.vocab_size:,}; "
            "choose a draft of the same family"
        )
    differing = target.tokenizer.get_vocab().items() ^ draft.tokenizer.get_vocab().items()
    if differing:
        tokens = {token for token, _ in differing}
        raise ModelError(
            f"{pair}: both vocabularies have {target.vocab_size:,} tokens, but {len(tokens):,} of them "
            "differ in text or id; choose a draft of the same family"
        )


def _options(source: ModelSource) -> dict[str, Any]:
    """Local files only, and never code that came with a model."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    return options | ({"gguf_file": source.gguf_file} if source.gguf_file else {})


def _declared(source: ModelSource) -> dict[str, Any]:
    try:
        config = json.loads((source.folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{source.name}: config.json cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{source.name}: config.json does not describe a model")
    return config


def _tokenizer(source: ModelSource, config: Any) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(source.folder, **_options(source))
    if source.gguf_file is not None:
        settle_gguf_tokenizer(tokenizer, config)
    return tokenizer


def _weights(source: ModelSource, config: Any, device: str, dtype: torch.dtype, attention: str) -> Any:
    place = {} if device == "cpu" else {"device_map": {"": device}}  # straight there, no copy in CPU memory
    model, info = AutoModelForCausalLM.from_pretrained(
        source.folder,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        use_safetensors=None if source.gguf_file else True,
        output_loading_info=True,
        **place,
        **_options(source),
    )
    if info["missing_keys"]:  # transformers would run on with random numbers in their place
        raise ModelError(
            f"{source.name}: its weights lack {min(info['missing_keys'])}; download the model again"
        )
    return model.requires_grad_(False).eval()


def _loaded(source: ModelSource, model: Any, tokenizer: Any) -> LoadedModel:
    vocab_size = model.config.vocab_size
    return LoadedModel(
        name=source.name,
        model=model,
        tokenizer=tokenizer,
        context=model.config.max_position_embeddings,
        vocab_size=vocab_size,
        eos_ids=frozenset(number for number in end_ids(model, tokenizer) if number < vocab_size),
        sampling=source.preset.sampling if source.preset else MappingProxyType({}),
    )
