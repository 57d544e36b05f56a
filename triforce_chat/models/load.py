"""Weights and tokenizer in memory, ready for the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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
from triforce_chat.models import sharding
from triforce_chat.models.adapter import merge
from triforce_chat.models.architecture import check_config, check_declared
from triforce_chat.models.ends import end_ids, settle_gguf_tokenizer
from triforce_chat.models.failures import explained
from triforce_chat.models.gguf_header import check_gguf
from triforce_chat.models.progress import Report, unheard
from triforce_chat.models.quiet import quiet
from triforce_chat.models.registry import ModelSource, resolve
from triforce_chat.models.rope import stretched, stretches

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A frozen model in evaluation mode with what the engine needs to know about it."""

    name: str
    source: ModelSource
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int  # tokens it was made for
    vocab_size: int  # width of its logits
    eos_ids: frozenset[int]  # any of them ends an answer
    sampling: Mapping[str, float]  # what its authors recommend; empty when nothing is known
    draft: str | None = None  # name of the model that drafts for it, once that is settled
    offloaded: bool = False  # its keys and values lie in host memory, or some layers' do
    largest_budget: int = 4096  # tokens that a retrieval cache may take, as memory was planned


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: str,
    report: Report = unheard,
    tokenizer: PreTrainedTokenizerBase | None = None,
    context: int = 0,
    ranks: int = 1,
) -> LoadedModel:
    """Resolve ``name`` and load it on ``device`` with the registered attention function ``attention``.

    ``tokenizer`` serves a model that has none of its own. A ``context`` beyond the one that a model with YaRN
    was made for stretches its positions. ``ranks`` processes of one torch.distributed group that call this
    together get a part of the weights each. Nothing is written to the screen. Raises ModelError
    for a model that cannot be found, read or run, and OutOfMemory when it does not fit.
    """
    source = resolve(name, report=report)
    config = configuration(source, context)
    with explained(name, device), quiet():
        tokenizer = _tokenizer(source, config, tokenizer)
        model = _weights(source, config, device, dtype, attention, ranks)
        if source.adapter is not None:
            merge(model, source.adapter)
    return _loaded(source, model, tokenizer)


def check_ranks(name: str, ranks: int, sizes: Mapping[str, int], report: Report = unheard) -> None:
    """Raise UsageError unless ``ranks`` processes can share the model; reads no weights.

    ``sizes`` replace those of the model's configuration.
    """
    config = configuration(resolve(name, report=report))
    sharding.check_ranks(name, config, ranks, {**sharding.shared_sizes(config), **sizes})


def check_draft(target: LoadedModel, draft: LoadedModel) -> None:
    """Raise ModelError unless every token that has a text has the same id in both models.

    The logits may differ in width: what pads them stands for no token.
    """
    theirs, own = (live_tokens(each.tokenizer, each.vocab_size) for each in (target, draft))
    differing = {token for token, _ in theirs ^ own}
    if not differing:
        return
    pair = f"draft {draft.name} cannot draft for {target.name}"
    if len(own) != len(theirs):
        raise ModelError(
            f"{pair}: its vocabulary has {len(own):,} tokens, the target's {len(theirs):,}; "
            "choose a draft of the same family"
        )
    raise ModelError(
        f"{pair}: both vocabularies have {len(own):,} tokens, but {len(differing):,} of them "
        "differ in text or id; choose a draft of the same family"
    )


def meaning(tokenizer: Any) -> str:
    """A hash of what token ids mean."""
    tokens = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:32]


def live_tokens(tokenizer: Any, width: int) -> set[tuple[str, int]]:
    """Tokens with a text, and their ids, for which logits of that width have a place."""
    return {(token, number) for token, number in tokenizer.get_vocab().items() if number < width}


def tokens_of(source: ModelSource) -> set[tuple[str, int]]:
    """The live tokens of a model whose weights are not loaded. Raises ModelError."""
    config = configuration(source)
    with explained(source.name, "cpu"), quiet():
        return live_tokens(_tokenizer(source, config, None), config.vocab_size)


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


def configuration(source: ModelSource, context: int = 0) -> Any:
    """The model's configuration with the rotary embeddings and the context that preset or adapter give it.

    A ``context`` beyond that stretches YaRN. Reads no weights. Raises ModelError for a model that cannot be run.
    """
    if source.gguf_file is None:
        check_declared(source.name, _declared(source))
    else:
        check_gguf(source.folder / source.gguf_file)
    with explained(source.name, "cpu"), quiet():
        config = _config(source)
        check_config(source.name, config)
        if context > config.max_position_embeddings and stretches(config.rope_parameters):
            reach = stretched(config.rope_parameters, context)
            config.rope_parameters, config.max_position_embeddings = reach
        return config


def _config(source: ModelSource) -> Any:
    config = AutoConfig.from_pretrained(source.folder, **_options(source))
    preset, adapter = source.preset, source.adapter
    rope = adapter.rope if adapter else preset.rope if preset else {}
    if rope:
        config.rope_parameters = dict(rope)
    config.max_position_embeddings = _context(source, config)
    return config


def _context(source: ModelSource, config: Any) -> int:
    """Tokens that the model's rotary embeddings are right for."""
    if source.adapter is not None:
        return source.adapter.context
    if source.preset is not None:
        return source.preset.context
    made_for: int = config.max_position_embeddings
    # Beyond its original length such a model needs dual chunk attention; up to there it attends plainly.
    chunked = getattr(config, "dual_chunk_attention_config", None) or {}
    unchunked: int = chunked.get("original_max_position_embeddings", made_for)
    return min(made_for, unchunked)


def _tokenizer(source: ModelSource, config: Any, other: Any) -> Any:
    if other is not None and source.gguf_file is None and not has_tokenizer(source.folder):
        return other
    tokenizer = AutoTokenizer.from_pretrained(source.folder, **_options(source))
    if source.gguf_file is not None:
        settle_gguf_tokenizer(tokenizer, config)
    if source.preset is not None and tokenizer.chat_template is None:
        tokenizer.chat_template = source.preset.template
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder brings a tokenizer of its own."""
    return any((folder / name).is_file() for name in TOKENIZERS)


def _weights(
    source: ModelSource, config: Any, device: str, dtype: torch.dtype, attention: str, ranks: int
) -> Any:
    if ranks == 1:
        place = (
            {} if device == "cpu" else {"device_map": {"": device}}
        )  # straight there, no copy in CPU memory
        return _read(source, config, dtype, attention, place)
    if source.gguf_file:  # its reader knows no parts
        return sharding.split(_read(source, config, dtype, attention, {}), ranks).to(device)
    with sharding.sharded_loading(device):
        return _read(source, config, dtype, attention, sharding.options(ranks))


def _read(
    source: ModelSource, config: Any, dtype: torch.dtype, attention: str, place: Mapping[str, Any]
) -> Any:
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
        source=source,
        model=model,
        tokenizer=tokenizer,
        context=model.config.max_position_embeddings,
        vocab_size=vocab_size,
        eos_ids=frozenset(number for number in end_ids(model, tokenizer) if number < vocab_size),
        sampling=source.preset.sampling if source.preset else MappingProxyType({}),
    )
