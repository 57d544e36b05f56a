"""Adapter folders: a LoRA (arXiv 2106.09685) in PEFT's format, and the rotary embeddings it was trained with.

The low-rank product is added to the weights once, while they are loaded, so that an adapter costs no speed. Beside
weights that stay in their quantized blocks it is computed separately in every forward.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triforce_chat.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, ROPE = "adapter_config.json", "adapter_model.safetensors", "rope.json"
FP32 = 4  # bytes
PREFIX = "base_model.model."  # PEFT's name of the model inside its wrapper
# PEFT features that change the meaning of the two matrices.
UNSUPPORTED = ("use_dora", "use_rslora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")


@dataclass(frozen=True, slots=True)
class Adapter:
    """The configuration of an adapter folder; ``merge`` reads its weights."""

    folder: Path
    base: str  # preset, folder or hub id of the model it was trained on
    rank: int
    scale: float  # lora_alpha / r
    rope: Mapping[str, Any]  # rope_parameters of transformers
    context: int  # tokens, max_position_embeddings


def matrix_name(path: str, side: str) -> str:
    """PEFT's name of matrix A or B (``side``) for the module at ``path``."""
    return f"{PREFIX}{path}.lora_{side}.weight"


def is_adapter(folder: Path) -> bool:
    """True if the folder holds an adapter rather than a whole model."""
    return (folder / CONFIG).is_file()


def read_adapter(folder: Path) -> Adapter:
    """Read adapter_config.json and rope.json. Raises ModelError if they are missing or invalid."""
    for name in (WEIGHTS, ROPE):
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: an adapter, but {name} is missing; copy or train it again")
    config, rope = _object(folder / CONFIG), _object(folder / ROPE)
    _check_type(folder, config)
    try:
        return Adapter(
            folder=folder,
            base=_base(folder, config["base_model_name_or_path"]),
            rank=int(config["r"]),
            scale=config["lora_alpha"] / config["r"],
            rope=dict(rope["rope_parameters"]),
            context=int(rope["max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"{folder}: the adapter's configuration lacks {error.args[0]!r}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{folder}: the adapter's configuration is invalid ({error})") from error


def merge(model: Any, adapter: Adapter) -> None:
    """Add ``scale * B @ A`` to the weights it was trained for, in place; to the products of quantized ones.

    A: [rank, in], B: [out, rank], the weight: [out, in]. Raises ModelError, leaving the
    model unchanged, if the adapter belongs to another model.
    """
    import torch

    from triforce_chat.engine.forward.quantized import QuantizedLinear
    from triforce_chat.models.sharding import add_product

    found = [_module(model, adapter, path, pair) for path, pair in _pairs(adapter).items()]
    with torch.no_grad():
        for module, down, up in found:
            if isinstance(module, QuantizedLinear):
                module.add_product(up, down, adapter.scale)
            else:
                device = module.weight.device
                add_product(module.weight, up.to(device), down.to(device), adapter.scale)


def fp32_bytes(adapter: Adapter) -> int:
    """Bytes of the adapter's matrices in fp32, which is how they stay beside quantized weights. Raises ModelError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(adapter.folder / WEIGHTS, framework="numpy") as file:
            names = file.keys()  # it cannot be iterated over
            return sum(FP32 * math.prod(file.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError) as error:
        raise _damaged(adapter) from error


def _damaged(adapter: Adapter) -> ModelError:
    return ModelError(f"{adapter.folder}: {WEIGHTS} is damaged; copy or train it again")


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.parent}: {path.name} cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.parent}: {path.name} does not describe an adapter")
    return value


def _check_type(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder}: an adapter of type {kind!r}; only LORA is supported")
    unsupported = [name for name in UNSUPPORTED if config.get(name)]
    if config.get("bias", "none") != "none":
        unsupported.append("bias")
    if unsupported:
        raise ModelError(
            f"{folder}: the adapter uses {unsupported[0]}, which is not supported; train it without"
        )


def _base(folder: Path, named: Any) -> str:
    """The base model's name for ``resolve``; a relative path may start at the adapter's folder."""
    if not isinstance(named, str) or not named:
        raise ModelError(f"{folder}: the adapter does not name its base model")
    local = folder / named
    return str(local) if local.is_dir() else named


def _pairs(adapter: Adapter) -> dict[str, dict[str, Tensor]]:
    """Module path -> {"A": lora_A, "B": lora_B}."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(adapter.folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise _damaged(adapter) from error
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        path, _, side = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        if not path or side not in ("A", "B") or not name.startswith(PREFIX):
            raise ModelError(f"{adapter.folder}: {name} is not a LoRA weight")
        pairs.setdefault(path, {})[side] = tensor
    if not pairs:
        raise ModelError(f"{adapter.folder}: {WEIGHTS} contains no weights")
    return pairs


def _module(
    model: Any, adapter: Adapter, path: str, pair: Mapping[str, Tensor]
) -> tuple[Any, Tensor, Tensor]:
    """(module with a weight [out, in], A [rank, in], B [out, rank]), checked."""
    from triforce_chat.engine.forward.quantized import QuantizedLayer

    if len(pair) != 2:
        raise ModelError(f"{adapter.folder}: {path} has only lora_{min(pair)}")
    try:
        module = model.get_submodule(path)
        shape = module.shape if isinstance(module, QuantizedLayer) else module.weight.shape
    except AttributeError:
        raise ModelError(
            f"{adapter.folder}: the model has no {path}; it is not this adapter's base"
        ) from None
    down, up = pair["A"], pair["B"]
    for side, found in (("A", down.shape[0]), ("B", up.shape[-1])):
        if found != adapter.rank:
            raise ModelError(
                f"{adapter.folder}: lora_{side} of {path} has rank {found}, {CONFIG} says {adapter.rank}"
            )
    product = (up.shape[0], *down.shape[1:])
    if product != tuple(shape):
        raise ModelError(
            f"{adapter.folder}: {path} is {_sizes(shape)} in the model, {_sizes(product)} "
            "in the adapter; it is not this adapter's base"
        )
    return module, down, up


def _sizes(shape: Any) -> str:
    return " x ".join(str(size) for size in shape)
