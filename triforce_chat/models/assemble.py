"""Puts models together from modules and weights, where that needs nothing of transformers' modelling code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from triforce_chat.engine.forward import attention as own_attention
from triforce_chat.engine.forward.modules import LanguageModel, supports
from triforce_chat.engine.forward.quantized import Matrix, QuantizedEmbedding, QuantizedLinear
from triforce_chat.errors import ModelError
from triforce_chat.models.completeness import SAFETENSORS_INDEX, indexed_files
from triforce_chat.models.configuration import Configuration, for_transformers
from triforce_chat.models.draft_head import OF_TARGET, is_built_on_target

SAFETENSORS = "model.safetensors"
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
GENERATION = "generation_config.json"


def own_modules(config: Any, attention: str) -> bool:
    """Whether a model that is to use this attention function can consist of this program's modules."""
    return attention == own_attention.NAME and supports(config)


def empty_model(config: Any, attention: str, dtype: torch.dtype, device: torch.device) -> Any:
    """A model for that device whose weights are yet to be put in their places."""
    if own_modules(config, attention):
        return LanguageModel(config, dtype, device)
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            for_transformers(config), dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    base = model.base_model
    base.rotary_emb = type(base.rotary_emb)(model.config).to(device)  # computed, not stored
    return model


def put(model: nn.Module, name: str, weight: Tensor | Matrix) -> None:
    """Put a weight where ``model`` has one of that name. Raises ModelError if their shapes differ."""
    path, _, role = name.rpartition(".")
    module: Any = model.get_submodule(path)
    found = tuple(weight.shape)
    expected = tuple(getattr(module, role).shape)
    if found != expected:
        raise ModelError(f"{name} has the shape {found} in the file, and {expected} by its configuration")
    if isinstance(weight, Tensor):
        setattr(module, role, nn.Parameter(weight, requires_grad=False))
    elif isinstance(module, nn.Embedding):
        model.set_submodule(path, QuantizedEmbedding(weight))
    else:
        model.set_submodule(path, QuantizedLinear(weight, module.bias))


def read_model(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> LanguageModel | None:
    """The model of this program's modules in a folder of safetensors.

    None if it holds other tensors than those of the modules, which transformers may know how to read. Raises ModelError
    for tensors of other shapes.
    """
    model = LanguageModel(config, dtype, device)
    with ExitStack() as opened:
        files = [opened.enter_context(_opened(path, device)) for path in weight_files(folder)]
        found = {name: (file, name) for file in files for name in file.keys()}  # noqa: SIM118 (no iterator)
        if config.tie_word_embeddings and EMBEDDING not in found and OUTPUT in found:
            found[EMBEDDING] = found.pop(OUTPUT)  # transformers writes what both share under either name
        if found.keys() != expected_names(model, folder):
            return None
        for name, (file, stored) in found.items():
            put(model, name, file.get_tensor(stored).to(dtype))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.generation_config = generation_config(folder)
    return model.requires_grad_(False).eval()


def _opened(path: Path, device: torch.device) -> Any:
    path.open("rb").close()  # of whatever cannot be read, safetensors says that it is missing
    return safe_open(path, "pt", device=str(device))


def weight_files(folder: Path) -> Iterator[Path]:
    if (folder / SAFETENSORS).is_file():
        yield folder / SAFETENSORS
        return
    yield from (folder / name for name in indexed_files(folder / SAFETENSORS_INDEX))


def expected_names(model: LanguageModel, folder: Path) -> set[str]:
    """The tensors that a folder must hold, no more and no less."""
    shared = {OUTPUT} if model.config.tie_word_embeddings else set()
    absent = {*OF_TARGET} if is_built_on_target(folder) else shared
    return {name for name, _ in model.named_parameters()} - absent


def generation_config(folder: Path) -> Any:
    """What the model's authors recommend, which names tokens that end an answer; None without such a file."""
    if not (folder / GENERATION).is_file():
        return None
    return Configuration(**json.loads((folder / GENERATION).read_text("utf-8")))


def as_transformers(model: Any) -> Any:
    """A model in modules of transformers, with the same weights; the model itself if it is one.

    They attend by any function that is registered there, and can be split over ranks.
    """
    if not isinstance(model, LanguageModel):
        return model
    from transformers import AutoModelForCausalLM

    own_attention.register()
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(
            for_transformers(model.config), dtype=model.dtype, attn_implementation=own_attention.NAME
        )
    own = dict(model.named_modules())
    leaves = [name for name, module in made.named_modules() if not any(module.children())]
    for name in leaves:
        if name in own:
            made.set_submodule(name, own[name])
    return made.requires_grad_(False).eval()
