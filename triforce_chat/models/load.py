"""Loads weights and tokenizer into memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from triforce_chat.engine.cache.quantization import format_name
from triforce_chat.errors import ModelError
from triforce_chat.models import sharding
from triforce_chat.models.adapter import merge
from triforce_chat.models.architecture import check_config, check_declared
from triforce_chat.models.assemble import own_modules, read_model
from triforce_chat.models.configuration import Configuration
from triforce_chat.models.draft_head import (
    DraftHead,
    check_answers,
    read_draft_head,
)
from triforce_chat.models.draft_vocabulary import DraftVocabulary, read_draft_vocabulary
from triforce_chat.models.end_tokens import end_token_ids
from triforce_chat.models.failures import convert_errors, one_line_of
from triforce_chat.models.gguf_cache import converted
from triforce_chat.models.gguf_header import check_gguf, forget
from triforce_chat.models.metadata_cache import cached_metadata
from triforce_chat.models.model_cache import CacheUnusable
from triforce_chat.models.placement import Placement, placement
from triforce_chat.models.progress import Note, Report, ignore_note, ignore_progress
from triforce_chat.models.registry import ModelSource, resolve
from triforce_chat.models.rope import is_yarn, stretch_yarn
from triforce_chat.models.silence_logs import silence_logs
from triforce_chat.models.stored_format import StoredWeights
from triforce_chat.models.stored_weights import NotMultiplied, map_weights, stored_weights
from triforce_chat.models.tokenizer import Tokenizer, vocabulary_hash

if TYPE_CHECKING:
    from torch import nn

    from triforce_chat.engine.forward.streamed_weights import StreamedWeights

Settle = Callable[[int, "nn.Module"], None]  # puts a decoder layer, by its number, in its place
CONFIG = "config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in evaluation mode without gradients, and its properties that the engine needs."""

    name: str
    source: ModelSource
    model: Any  # of this program's modules, or of transformers
    tokenizer: Tokenizer
    context: int  # tokens it was made for
    vocab_size: int  # width of its logits
    eos_ids: frozenset[int]  # any of them ends an answer
    sampling: Mapping[str, float]  # its authors' recommendation; empty if unknown
    draft: str | None = None  # name of its draft model, once chosen
    offloaded: bool = False  # keys and values of some or all layers are in host memory
    largest_budget: int = 4096  # tokens of the retrieval cache, by the memory plan
    draft_vocabulary: DraftVocabulary | None = None  # of a draft that knows only some of its target's tokens
    head: DraftHead | None = None  # of a draft that is built on its target, which has yet to be joined to it
    stored: StoredWeights | None = None  # of a GGUF file, if they stay as they are
    kv: torch.dtype | None = None  # of keys and values, if they are kept in another dtype than the weights'
    attention: tuple[str, str] = ("sdpa", "triton")  # kernels on a GPU for a prefill and for few tokens
    streamed: StreamedWeights | None = None  # of its layers, if some are in host memory

    @property
    def format(self) -> str:
        """The format of the weights: float32, bfloat16, Q4_K_M."""
        return self.stored.format if self.stored else self.format_of_rest

    @property
    def format_of_rest(self) -> str:
        """The dtype of what is not quantized."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def kv_format(self) -> str:
        """The format of keys and values, if it differs from that of the weights; else empty."""
        return "" if self.kv in (None, self.model.dtype) else format_name(self.kv)


def ignore_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuses nothing."""


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: str,
    report: Report = ignore_progress,
    tokenizer: Tokenizer | None = None,
    context: int = 0,
    ranks: int = 1,
    note: Note = ignore_note,
    keep_format: bool = False,
    before_weights: Callable[[Tokenizer], None] = ignore_tokenizer,
    settle: Settle | None = None,
) -> LoadedModel:
    """Resolve ``name`` and load it on ``device`` with the registered attention function ``attention``.

    With this program's own function the model consists of this program's modules, as far as these fit.
    ``tokenizer``: of the target that it is to draft for, used if the model has none of its own. A ``context`` beyond
    the one that a YaRN model was made for stretches its positions. If ``ranks`` processes of one torch.distributed
    group call this together, each gets a part of the weights. With ``keep_format``, without ranks, the
    quantized weights of a GGUF file stay as they are, and the rest is in fp32 on a CPU; otherwise, or if they cannot be
    multiplied, what the file is converted into is kept in the cache. ``note`` receives the reason if one of these is
    impossible. ``before_weights`` gets the tokenizer, and may refuse the rest. With ``settle`` weights are read into
    main memory, or those that keep their format onto the device layer by layer, from where it moves each layer to its
    place. Nothing is written to the screen. Raises ModelError for a model that cannot be found, read or run, and
    OutOfMemory if it does not fit.
    """
    source = resolve(name, report=report)
    if tokenizer is None:
        check_answers(name, source.folder)
    place = placement(torch.device(device), dtype)
    stored = stored_weights_of(source, place, note) if keep_format else None
    files = source if stored else expanded(source, device, dtype, report, note, ranks)
    config = load_config(files, context)
    with convert_errors(name, device), silence_logs():
        tokenizer = _tokenizer(files, config, tokenizer)
        before_weights(tokenizer)
        if stored:
            model = map_weights(files, config, attention, place, settle)
        else:
            model = _weights(files, config, "cpu" if settle else device, dtype, attention, ranks)
        if source.adapter is not None:
            merge(model, source.adapter)
        if settle and not stored:
            _settle(model, device, settle)
    forget()
    return _loaded(source, model, tokenizer, stored)


def stored_weights_of(
    source: ModelSource, place: Placement, note: Note = ignore_note
) -> StoredWeights | None:
    """The weights that stay as they are, once the kernels that multiply them are compiled.

    None if there are none, or if they cannot be multiplied, with a note. Raises ModelError for a damaged file.
    """
    try:
        stored = stored_weights(source, place)
        if stored is None:
            return None
        if reason := place.compile(note):
            raise NotMultiplied(reason)
    except NotMultiplied as problem:
        note(expansion(source.gguf_file or source.name, str(problem)))
        return None
    return stored


def expansion(file: str, reason: str) -> str:
    """What becomes of quantized weights that cannot stay as they are, and why."""
    return f"{file} is expanded, which takes more memory and time: {reason}"


def expanded(
    source: ModelSource, device: str, dtype: torch.dtype, report: Report, note: Note, ranks: int = 1
) -> ModelSource:
    """The safetensors of a model; its GGUF file where the cache of any rank cannot keep the conversion."""
    if source.gguf_file is None:
        return source
    kept = source
    try:
        kept = converted(source, str(dtype).removeprefix("torch."), partial(load_config, source), report)
    except CacheUnusable as error:
        note(f"{source.gguf_file} is converted again at every start: {error}")
    # Ranks that load safetensors wait for none, but those that split a whole model wait for all.
    return kept if ranks == 1 or sharding.all_agree(kept is not source, device) else source


def check_ranks(name: str, ranks: int, sizes: Mapping[str, int], report: Report = ignore_progress) -> None:
    """Raises UsageError unless the model can be split over ``ranks`` processes; reads no weights.

    ``sizes`` override those of the model's configuration.
    """
    config = load_config(resolve(name, report=report))
    sharding.check_ranks(name, config, ranks, {**sharding.divided_sizes(config), **sizes})


def check_draft(target: LoadedModel, draft: LoadedModel) -> None:
    """Raises ModelError unless the draft's tokens are the target's: all with the same ids, or those it says it knows.

    The logits may differ in width, because padding columns belong to no token. A draft that is built on its target must
    have been built on one of as many channels.
    """
    if draft.head is not None:
        _check_head(target, draft, draft.head)
    if draft.draft_vocabulary is not None:
        _check_draft_vocabulary(target, draft, draft.draft_vocabulary)
        return
    if draft.tokenizer is target.tokenizer and draft.vocab_size == target.vocab_size:
        return  # it has none of its own: a tenth of a second for the tokens of a large vocabulary
    theirs, own = (usable_tokens(each.tokenizer, each.vocab_size) for each in (target, draft))
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


def _check_draft_vocabulary(target: LoadedModel, draft: LoadedModel, vocabulary: DraftVocabulary) -> None:
    if vocabulary.tokenizer != vocabulary_hash(target.tokenizer):
        raise ModelError(
            f"draft {draft.name} cannot draft for {target.name}: it was made for another tokenizer"
        )
    ids = vocabulary.target_ids
    if not 0 < len(ids) == draft.vocab_size - 1 or int(ids.max()) >= target.vocab_size:
        raise ModelError(f"draft {draft.name} is damaged: its weights and its vocabulary differ in size")


def _check_head(target: LoadedModel, draft: LoadedModel, head: DraftHead) -> None:
    width, channels = head.embed.shape
    if draft.draft_vocabulary is None or width != draft.model.config.hidden_size:
        raise ModelError(f"draft {draft.name} is damaged: its files do not fit each other")
    if channels != target.model.config.hidden_size:
        raise ModelError(
            f"draft {draft.name} cannot draft for {target.name}: it was built on a model of {channels:,} channels, "
            f"not of {target.model.config.hidden_size:,}"
        )


def usable_tokens(tokenizer: Any, width: int) -> set[tuple[str, int]]:
    """(token, id) of all tokens whose ids are below the ``width`` of the logits."""
    return {(token, number) for token, number in tokenizer.get_vocab().items() if number < width}


def read_small_files(source: ModelSource) -> None:
    """Read configuration and tokenizer, so that a later start finds both kept. Raises ModelError."""
    config = load_config(source)
    if source.gguf_file or has_tokenizer(source.folder):  # a draft may have none
        with convert_errors(source.name, "cpu"), silence_logs():
            _tokenizer(source, config, None)


def tokens_of(source: ModelSource) -> set[tuple[str, int]]:
    """The usable tokens of a model whose weights are not loaded. Raises ModelError."""
    config = load_config(source)
    with convert_errors(source.name, "cpu"):
        return usable_tokens(_tokenizer(source, config, None), config.vocab_size)


def _read_config_json(source: ModelSource) -> dict[str, Any]:
    try:
        config = json.loads((source.folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{source.name}: config.json cannot be read ({one_line_of(error)})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{source.name}: config.json does not describe a model")
    return config


def load_config(source: ModelSource, context: int = 0) -> Any:
    """The model's configuration, with the rotary embeddings and the context of its preset or adapter.

    A larger ``context`` stretches YaRN. Reads no weights. Raises ModelError if the model is not supported.
    """
    if source.gguf_file is None:
        check_declared(source.name, _read_config_json(source))
    else:
        check_gguf(source.folder / source.gguf_file)
    with convert_errors(source.name, "cpu"):
        config = _config(source)
        check_config(source.name, config)
        if context > config.max_position_embeddings and is_yarn(config.rope_parameters):
            reach = stretch_yarn(config.rope_parameters, context)
            config.rope_parameters, config.max_position_embeddings = reach
        return config


def _config(source: ModelSource) -> Configuration:
    def write(folder: Path) -> None:
        from triforce_chat.models.auto_classes import write_config  # imports transformers

        write_config(source, folder)

    with cached_metadata("config", source, write) as folder:
        config = Configuration(**json.loads((folder / CONFIG).read_text("utf-8")))
    preset, adapter = source.preset, source.adapter
    rope = adapter.rope if adapter else preset.rope if preset else {}
    if rope:
        config.rope_parameters = dict(rope)
    config.max_position_embeddings = _context(source, config)
    return config


def _context(source: ModelSource, config: Any) -> int:
    """The number of tokens that the model's rotary embeddings were made for."""
    if source.adapter is not None:
        return source.adapter.context
    if source.preset is not None:
        return source.preset.context
    made_for: int = config.max_position_embeddings
    # Beyond this length the model needs dual chunk attention, which is not implemented here.
    chunked = getattr(config, "dual_chunk_attention_config", None) or {}
    unchunked: int = chunked.get("original_max_position_embeddings", made_for)
    return min(made_for, unchunked)


def _tokenizer(source: ModelSource, config: Any, other: Any) -> Any:
    if other is not None and source.gguf_file is None and not has_tokenizer(source.folder):
        return other

    def write(folder: Path) -> None:
        from triforce_chat.models.auto_classes import write_tokenizer  # imports transformers

        write_tokenizer(source, config, folder)

    with cached_metadata("tokenizer", source, write) as folder:
        tokenizer = Tokenizer.read(folder)
    if source.preset is not None and tokenizer.chat_template is None:
        tokenizer.chat_template = source.preset.template
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """True if a model folder contains a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZERS)


def _weights(
    source: ModelSource, config: Any, device: str, dtype: torch.dtype, attention: str, ranks: int
) -> Any:
    if ranks == 1 and source.gguf_file is None and own_modules(config, attention):
        made = read_model(source.folder, config, dtype, torch.device(device))
        if made is not None:
            return made
    from triforce_chat.models.auto_classes import read_by_transformers  # takes seconds

    if ranks == 1:
        # A device map loads straight onto the device, without a copy in CPU memory.
        placement = {} if device == "cpu" else {"device_map": {"": device}}
        return read_by_transformers(source, config, dtype, attention, placement)
    if source.gguf_file:  # its reader cannot load parts
        return sharding.split(read_by_transformers(source, config, dtype, attention, {}), ranks).to(device)
    with sharding.sharded_loading(device):
        return read_by_transformers(source, config, dtype, attention, sharding.options(ranks))


def _settle(model: Any, device: str, settle: Settle) -> None:
    """Move layer by layer to its place, and everything else to the device."""
    for number, layer in enumerate(model.base_model.layers):
        settle(number, layer)
    for name, part in model.base_model.named_children():
        if name != "layers":
            part.to(device)
    model.get_output_embeddings().to(device)


def _loaded(source: ModelSource, model: Any, tokenizer: Any, stored: StoredWeights | None) -> LoadedModel:
    vocab_size = model.config.vocab_size
    return LoadedModel(
        name=source.name,
        source=source,
        model=model,
        tokenizer=tokenizer,
        context=model.config.max_position_embeddings,
        vocab_size=vocab_size,
        eos_ids=frozenset(number for number in end_token_ids(model, tokenizer) if number < vocab_size),
        sampling=source.preset.sampling if source.preset else MappingProxyType({}),
        draft_vocabulary=read_draft_vocabulary(source.folder),
        head=read_draft_head(source.folder),
        stored=stored,
    )
