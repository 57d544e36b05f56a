"""The weights of a GGUF file in the format that they are stored in.

A CPU multiplies the file's blocks as they are: the file is mapped into memory, nothing is converted and nothing is
written. On a GPU the same numbers are laid out in another way, tensor by tensor; no expanded copy is ever made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn

from triforce_chat.engine.forward.quantized import Matrix, QuantizedEmbedding, QuantizedLinear
from triforce_chat.errors import ModelError
from triforce_chat.models.adapter import fp32_bytes
from triforce_chat.models.assemble import empty_model, put
from triforce_chat.models.completeness import check_loaded
from triforce_chat.models.dequantize import dequantize
from triforce_chat.models.failures import convert_errors
from triforce_chat.models.gguf_header import GgufHeader, TensorEntry, read_header
from triforce_chat.models.gguf_reader import QuickReader, StoredTensor, kind_of
from triforce_chat.models.placement import Placement
from triforce_chat.models.registry import ModelSource
from triforce_chat.models.stored_format import StoredWeights

if TYPE_CHECKING:
    from triforce_chat.models.load import Settle
    from triforce_chat.models.stored_format import Kinds

PLAIN = frozenset({Kind.F32, Kind.F16, Kind.BF16})  # one number each, no blocks
ARCHITECTURE, FILE_TYPE = "general.architecture", "general.file_type"
MOSTLY = "MOSTLY_"  # in the names of files' types
INTERLEAVING = ("llama",)  # architectures with which llama.cpp does so
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
BLOCK, NO_BLOCK = "blk", -1  # in the names of a block's tensors; what stands for none


class NotMultiplied(ModelError):
    """Quantized weights that cannot be multiplied as they are; the text says why."""


def stored_weights(source: ModelSource, place: Placement) -> StoredWeights | None:
    """The weights of a file that are to stay as they are; None if it has no quantized ones.

    Compiles nothing. Raises NotMultiplied where this machine or this program cannot multiply them, as far as that is
    known before, and ModelError for a damaged file.
    """
    if source.gguf_file is None:
        return None
    with convert_errors(source.name, str(place.device)):
        header = read_header(source.folder / source.gguf_file)
        kinds = Counter(kind_of(tensor) for tensor in header.tensors if is_matrix(tensor.shape))
        if PLAIN.issuperset(kinds):
            return None
        _check_kinds(header.tensors, place)
        if reason := place.reason(source.adapter is not None):
            raise NotMultiplied(reason)
        sizes = {tensor.name: _bytes(tensor, place) for tensor in header.tensors}
        whole = sum(sizes.values())
        row_by_row = sizes.get(EMBEDDING, 0) if OUTPUT in sizes else 0
        about = _layers(header.tensors), _blocks(header.tensors, sizes)
        stored = StoredWeights(_format(header, kinds), whole, whole - row_by_row, *about)
    return stored.with_adapter(fp32_bytes(source.adapter)) if source.adapter else stored


def _layers(tensors: Sequence[TensorEntry]) -> tuple[Kinds, ...]:
    """The kinds of the matrices of all blocks that differ in them."""
    blocks: dict[str, dict[str, Kind]] = {}
    for tensor in tensors:
        if is_matrix(tensor.shape):
            path, _, role = tensor.name.removesuffix(".weight").rpartition(".")
            blocks.setdefault(path, {})[role] = kind_of(tensor)
    ends = blocks.pop("", {})
    return tuple(sorted({tuple(sorted({**ends, **each}.items())) for each in blocks.values()}))


def _blocks(tensors: Sequence[TensorEntry], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of the matrices of each block; ``sizes``: of each tensor."""
    totals: Counter[int] = Counter()
    for tensor in tensors:
        if is_matrix(tensor.shape):
            totals[block_of(tensor.name)] += sizes[tensor.name]
    return tuple(size for block, size in sorted(totals.items()) if block != NO_BLOCK)


def block_of(name: str) -> int:
    """The number of the block that a tensor belongs to by its name, such as blk.3.attn_q.weight."""
    kind, _, rest = name.partition(".")
    number, _, _ = rest.partition(".")
    return int(number) if kind == BLOCK and number.isdigit() else NO_BLOCK


def is_matrix(shape: Sequence[int]) -> bool:
    return len(shape) == 2


def _check_kinds(tensors: Sequence[TensorEntry], place: Placement) -> None:
    """Raises NotMultiplied for the first kind of block that has no kernel."""
    others = [tensor for tensor in tensors if kind_of(tensor) not in {*place.kinds, *PLAIN}]
    if others:
        first = kind_of(others[0])
        alike = [tensor.name for tensor in others if tensor.kind == first]
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        able = ", ".join(sorted(kind.name for kind in {*place.kinds} - PLAIN))
        raise NotMultiplied(
            f"weights in {first.name} ({alike[0]}{more}) have no kernel; those in {able} have"
        )


def _format(header: GgufHeader, kinds: Counter[Kind]) -> str:
    """The file's own word, or the kind that most of its matrices have."""
    declared = header.entries.get(FILE_TYPE)
    try:
        name: str = gguf.LlamaFileType(declared.value if declared else -1).name
    except ValueError:
        name = kinds.most_common(1)[0][0].name
    return name.removeprefix(MOSTLY)


def _bytes(tensor: TensorEntry, place: Placement) -> int:
    kind = kind_of(tensor)
    if is_matrix(tensor.shape) and kind in place.kinds:
        return place.matrix_bytes(tensor.shape, kind)
    return math.prod(tensor.shape) * place.dtype.itemsize


def map_weights(
    source: ModelSource, config: Any, attention: str, place: Placement, settle: Settle | None = None
) -> Any:
    """The model with its weights from the GGUF file.

    ``settle`` gets the number of each layer and the layer as soon as it is complete, and may move it elsewhere. Raises
    ModelError for a file that is damaged or whose tensors do not fit its configuration.
    """
    assert source.gguf_file is not None
    reader = QuickReader(source.folder / source.gguf_file)  # before anything is allocated
    model = empty_model(config, attention, place.dtype, place.device)
    layers = model.base_model.layers
    for number, weights in groupby(_weights(model, reader, place), lambda found: found[0]):
        for _, name, weight in weights:
            put(model, name, weight)
        if settle and number != NO_BLOCK:
            check_loaded(source.name, _absent(layers[number], f"model.layers.{number}"))
            settle(number, layers[number])
    if config.tie_word_embeddings:
        _tie(model)
    check_loaded(source.name, _absent(model))
    return model.requires_grad_(False).eval()


def _absent(part: nn.Module, path: str = "") -> Iterator[str]:
    """The tensors of a model, or of its part with that path, that have no weights yet."""
    return (name for name, weight in part.named_parameters(path) if weight.is_meta)


def _weights(model: Any, reader: QuickReader, place: Placement) -> Iterator[tuple[int, str, Tensor | Matrix]]:
    """The file's tensors, block by block: (block, name in the model, numbers with the rows in transformers' order).

    llama.cpp orders the rows of queries and keys in another way for some families. Blocks lie within rows, so that
    whole rows change places.
    """
    architecture = bytes(reader.fields[ARCHITECTURE].parts[0]).decode()
    names = _names(model, architecture)
    interleaved = _interleaved(model.config) if architecture in INTERLEAVING else {}

    def ordered(data: np.ndarray[Any, Any], tensor: StoredTensor) -> Tensor:
        heads = next((heads for part, heads in interleaved.items() if part in tensor.name), None)
        return torch.from_numpy(data if heads is None else _halves(data, heads))

    for tensor in sorted(reader.tensors, key=lambda each: block_of(each.name)):
        kind, data, block = tensor.tensor_type, tensor.data, block_of(tensor.name)
        if tensor.name not in names:
            continue
        if is_matrix(data.shape) and kind in place.kinds:
            yield block, names[tensor.name], place.matrix(ordered(data, tensor), kind)
        else:
            numbers = ordered(dequantize(data, kind), tensor)
            yield block, names[tensor.name], numbers.to(place.device, place.dtype)


def _interleaved(config: Any) -> dict[str, int]:
    """The heads of the matrices that llama.cpp orders in its own way, by a part of their names."""
    return {".attn_q.": config.num_attention_heads, ".attn_k.": config.num_key_value_heads}


def _halves(data: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The rows of each head, of which the two that are rotated together are neighbours, with half a head between."""
    pairs = data.reshape(heads, len(data) // heads // 2, 2, *data.shape[1:])
    return pairs.swapaxes(1, 2).reshape(data.shape)


def _names(model: Any, architecture: str) -> dict[str, str]:
    """The names of the model's tensors by those in a file of that architecture."""
    known = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    named = gguf.get_tensor_name_map(known[architecture], model.config.num_hidden_layers)
    parts = ((name, *name.rpartition(".")) for name in model.state_dict())
    return {f"{named.get_name(path)}.{role}": name for name, path, _, role in parts}


def _tie(model: Any) -> None:
    """Make the output matrix the embedding's."""
    into = model.get_input_embeddings()
    if isinstance(into, QuantizedEmbedding):
        model.set_output_embeddings(QuantizedLinear(into.matrix, None))
    else:
        model.get_output_embeddings().weight = into.weight
