"""What shared memory the kernels of usual models take on chips that need not be here, as Triton compiles them.

Run as ``python -m triforce_chat.lab.bench.chips [--capability 8.9 ...] [--all]``, without a GPU. It prints the most
that each kernel takes, and exits with 1 if one takes more than its chip has. Without ``--all``: of few models the
largest tiles. Kernels that differ in nothing but alignments are compiled once, and not to machine code.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from gguf import GGMLQuantizationType as Kind
from triton import knobs

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.quantization import FP8, INT4, INT8
from triforce_chat.engine.compile_ahead import Formats, Kernels, launch
from triforce_chat.engine.kernels import dry
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models import published
from triforce_chat.models.published import Fields
from triforce_chat.models.repack import weight_format

# Bytes of shared memory that a program may have, by compute capability.
CHIPS = MappingProxyType({"8.0": 166_912, "8.6": 101_376, "8.9": 101_376, "9.0": 232_448, "12.0": 101_376})
READS_FP8 = 8.9  # and every later one
# Of kernels whose tiles fill the chip, the constants that tell how large they are.
FILLING = MappingProxyType(
    {
        "_attend": ("height", "width", "dim", "num_stages"),
        "_attend_groups": ("height", "tile", "dim", "bits", "num_stages"),
        "_multiply": ("tokens", "depth", "height", "num_stages", "norms", "gates"),
        "_multiply_grouped": ("tokens", "parts"),
        "_score": ("height", "width", "dim"),
        "_attend_head": ("width", "dim", "tokens"),
        "_add_neurons": ("width", "tokens"),
    }
)
LARGEST = 2  # of a kernel's tiles
ALIKE = ("group", "lanes")  # constants that no tile depends on, but for whether there are lanes
BUDGET = Budget(4096)
BUFFERS = (131_072, BUDGET.capacity)
WINDOWS = (512, 1024, 2560)  # slots of a draft model's cache
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
KINDS = (Kind.Q4_0, Kind.Q4_K, Kind.Q5_0, Kind.Q5_K, Kind.Q6_K, Kind.Q8_0)


def shaped(fields: Fields, **changes: int) -> Dimensions:
    """The dimensions of a published model, some of them changed."""
    return Dimensions.of({**fields, **changes})


SMALL, GROUPED = shaped(published.SMOLLM2_135M), shaped(published.LLAMA_3_1_8B)
SMALL_DRAFT = shaped(
    published.SMOLLM2_135M,
    hidden_size=256,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=1024,
)
CODERS = shaped(published.QWEN2_5_CODER_0_5B), shaped(published.QWEN2_5_CODER_1_5B)
WIDE = shaped(published.LLAMA_3_2_1B, num_attention_heads=8, num_key_value_heads=1, head_dim=256)
TARGETS = (
    SMALL,
    *CODERS,
    shaped(published.QWEN2_5_CODER_1_5B, hidden_size=2048, num_attention_heads=16, intermediate_size=11_008),
    shaped(published.LLAMA_2_7B),
    GROUPED,
    shaped(published.QWEN2_5_7B),
    shaped(published.QWEN3_8B),
    shaped(published.CODELLAMA_34B),
    WIDE,
    shaped(published.SMOLLM2_135M, num_attention_heads=18, num_key_value_heads=18, head_dim=32),
)
DRAFTS = (SMALL_DRAFT, shaped(published.LLAMA_68M), SMALL)


def stored(kind: Kind) -> tuple[Formats, ...]:
    """The formats of two blocks as in files of ``kind``, whose ends and some of whose matrices have more bits."""
    block = dict.fromkeys(MATRICES, weight_format(kind))
    more = weight_format(Kind.Q6_K)
    return {**block, "token_embd": more, "output": more}, {**block, "attn_v": more, "ffn_down": more}


def usual() -> Iterator[Kernels]:
    """Two models with what fills a chip most: trees, weights in 4 and 8 bits, keys and values in 8 bits."""
    yield Kernels(GROUPED, torch.bfloat16, BUFFERS, BUDGET, int8=True, trees=64, kv=INT8)
    yield Kernels(CODERS[1], torch.bfloat16, BUFFERS[:1], layers=stored(Kind.Q4_K), kv=INT4)
    yield Kernels(SMALL_DRAFT, torch.bfloat16, WINDOWS[:1], drawn=SMALL.vocabulary)


def every(fp8: bool) -> Iterator[Kernels]:
    """The models that people run, and the formats of keys, values and weights."""
    bfloat16, others = torch.bfloat16, (torch.float16, torch.float32)
    for sizes in TARGETS:
        more: dict[str, Any] = {"quantized_copy": True, "trees": 512, "sequences": 4}
        yield Kernels(sizes, bfloat16, BUFFERS, BUDGET, int8=True, **more)
        yield Kernels(sizes, bfloat16, BUFFERS[:1], BUDGET, lists=True, int8=True)
    for sizes, kv in product((SMALL, TARGETS[4], GROUPED, WIDE), (None, INT8, INT4, *([FP8] if fp8 else []))):
        yield Kernels(sizes, bfloat16, BUFFERS, BUDGET, kv=kv, trees=64, sequences=4, own=768)
        for dtype in others:
            yield Kernels(sizes, dtype, BUFFERS, BUDGET, kv=kv, trees=64, quantized_copy=kv is None)
    for sizes, kind, dtype in product((*CODERS, GROUPED), KINDS, (bfloat16, *others)):
        yield Kernels(sizes, dtype, BUFFERS, BUDGET, layers=stored(kind), trees=64)
    for sizes, dtype, window in product(DRAFTS, (bfloat16, *others), WINDOWS):
        yield Kernels(sizes, dtype, [window], trees=512, sequences=4, drawn=sizes.vocabulary)
    yield Kernels(GROUPED, bfloat16, BUFFERS, BUDGET, int8=True, ranks=2)


def launches(models: Iterable[Kernels]) -> Iterator[dry.Launch]:
    """Of all kernels that the models launch, one of those that are tiled alike."""
    known = set[Any]()
    for model in models:
        for each in dry.recorded(partial(launch, model)).values():
            if (key := tiled(each)) not in known:
                known.add(key)
                yield each


def largest(found: Iterable[dry.Launch]) -> Iterator[dry.Launch]:
    """Those with the largest tiles of each kernel that fills the chip."""
    by_kernel = defaultdict[str, list[dry.Launch]](list)
    for each in found:
        by_kernel[each.kernel.__name__].append(each)
    for name, of_size in FILLING.items():
        sized = sorted(by_kernel[name], key=lambda each: prod(each.constants[part] + 1 for part in of_size))
        yield from sized[-LARGEST:]


def tiled(each: dry.Launch) -> Any:
    """What a launch's tiles depend on."""
    kinds = tuple(str(getattr(argument, "dtype", "")) for argument in each.arguments)
    given = {name: value for name, value in each.constants.items() if name not in ALIKE}
    return each.kernel.__name__, kinds, bool(each.constants.get("lanes")), tuple(sorted(given.items()))


def not_to_machine_code(_: Any = None, stages: dict[str, Any] | None = None, *__: Any) -> tuple[str, str]:
    """A hook of Triton's that leaves out the stages after the one that allocates shared memory."""
    if stages is not None:
        stages["ptx"] = lambda _, metadata: metadata.setdefault("name", "") and ""
        stages["cubin"] = lambda *_: b""
    return "not to machine code", ""


def taken(capability: str, everything: bool) -> Mapping[str, int]:
    """The most bytes of shared memory that variants of each kernel take."""
    most: dict[str, int] = {}
    knobs.compilation.always_compile = True
    knobs.runtime.add_stages_inspection_hook = not_to_machine_code
    with dry.without_gpu(int(capability.replace(".", "")), CHIPS[capability]):
        models = every(float(capability) >= READS_FP8) if everything else usual()
        for each in launches(models) if everything else largest(launches(models)):
            name, size = each.kernel.__name__, each.compile().metadata.shared
            most[name] = max(most.get(name, 0), size)
    return most


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Shared memory of kernels on chips that need not be here.")
    parser.add_argument("--capability", nargs="+", choices=CHIPS, default=list(CHIPS))
    parser.add_argument("--all", action="store_true", help="all models, formats and kernels")
    asked = parser.parse_args(arguments)
    failed = False
    for capability in asked.capability:
        for name, size in sorted(taken(capability, asked.all).items()):
            over = size > CHIPS[capability]
            failed = failed or over
            print(f"{capability:>5} {name:<20} {size:>8} of {CHIPS[capability]:>8}{'  TOO MUCH' * over}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
