"""What this machine's CPU is good at, measured once and kept in the cache folder.

Decoding a token reads every weight once and computes only two operations with each, so a CPU waits for its memory, and
the time of a token is the bytes of the weights over the bandwidth at which products of a matrix and a vector read them.
That bandwidth belongs to the machine and not to the model: it can be measured in a fraction of a second, before any
model is downloaded. A step of a model reaches about half of it (``SHARE``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from triforce_chat.loading.json_file import read_object, write_object
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models.describe import Description
from triforce_chat.models.memory import processor
from triforce_chat.settings.paths import cpu_speed_file

# Rows and columns of the measured matrix: 128 MiB or more, more than most processors' caches hold.
SIDE = 8192
# Rows of a product: it takes a millisecond or so, short enough that programs which share the cores let some pass.
ROWS = 512
DURATION = 0.5  # seconds of products
UNDISTURBED = 0.8  # share of that time for which the threads must have run, or other programs had the cores
# The share of the bandwidth that a step of a model reaches. Its products are hundreds of small ones with barriers
# between them, and norms, attention and sampling come on top. On two cores of a Xeon that read 28 GB/s, models of
# 0.49 and 1.5 billion fp32 weights read 15 and 8 to 15 GB/s; on two of an EPYC that read 29 GB/s, one of 0.49 billion
# bfloat16 weights read 15 GB/s.
SHARE = 0.5
# The same for quantized blocks, which cost more arithmetic for each byte. On two cores of a Xeon that read 32 GB/s,
# Q4_K_M files of 0.39 and 0.98 GB were read at 8 and 10 GB/s.
STORED_SHARE = 0.3
# The product that decides about bfloat16: as many rows as matrix units need to show, and 2 ms where there are none.
PRODUCT_ROWS, PRODUCT_SIDE, PRODUCT_REPEATS = 64, 1024, 5
PAYS = 1.5  # a bfloat16 product must be so many times as fast as an fp32 one


def ms_per_token(model: Description, dtype: torch.dtype = torch.float32) -> float:
    """Estimated milliseconds of a decoding step on this machine's CPU, with weights of that dtype or as stored."""
    if model.stored:
        return 1000 * model.stored.step_bytes / (STORED_SHARE * bandwidth(torch.float32))
    return 1000 * step_bytes(Dimensions.of(model.fields), dtype) / (SHARE * bandwidth(dtype))


def step_bytes(model: Dimensions, dtype: torch.dtype) -> int:
    """Bytes of the weights that a decoding step reads: all but an embedding, of which it reads one row."""
    return dtype.itemsize * (model.parameters() - (0 if model.tied else model.embedding))


def bandwidth(dtype: torch.dtype) -> float:
    """Bytes per second at which the product of a matrix of that dtype and a vector reads the matrix here.

    It is measured the first time, and again as long as other programs disturbed the measurement.
    """
    path, key = cpu_speed_file(), f"{_key()}, {dtype} matrix"
    known = read_object(path)
    rate = known.get(key)
    if isinstance(rate, float) and math.isfinite(rate) and rate > 0:
        return rate
    rate, undisturbed = measure(dtype)
    if undisturbed:
        write_object(path, {**known, key: rate})
    return rate


def bfloat16_pays() -> bool:
    """Whether this CPU multiplies matrices in bfloat16 natively, and so faster than in fp32.

    Such CPUs (AMX, AVX-512 BF16) read a prompt several times as fast in bfloat16 and need half the memory; on others
    bfloat16 is emulated and up to hundreds of times slower. It is measured the first time.
    """
    path, key = cpu_speed_file(), f"{_key()}, bfloat16"
    known = read_object(path).get(key)
    if isinstance(known, bool):
        return known
    pays = bfloat16_gain() >= PAYS
    write_object(path, {**read_object(path), key: pays})
    return pays


def bfloat16_gain() -> float:
    """How many times as fast a product of matrices is in bfloat16 as in fp32; takes milliseconds, or up to a second."""
    x, weight = torch.ones(PRODUCT_ROWS, PRODUCT_SIDE), torch.ones(PRODUCT_SIDE, PRODUCT_SIDE)
    narrow = x.bfloat16(), weight.bfloat16()
    full = half = math.inf
    for _ in range(PRODUCT_REPEATS):  # in turns, so that other programs disturb both alike
        full, half = min(full, _seconds(linear, x, weight)), min(half, _seconds(linear, *narrow))
        if half > 10 * full:
            break  # emulated, and slow
    return full / half


def measure(dtype: torch.dtype) -> tuple[float, bool]:
    """Measure that bandwidth with the threads that torch now uses: (bytes per second, undisturbed).

    The matrix is read again and again, block by block. Of every block the fastest product counts, because other
    programs only ever slow one down. Takes under a second, or a few where the dtype is emulated.
    """
    matrix = torch.ones(SIDE, SIDE, dtype=dtype)  # not zeros, which the system may leave unallocated
    vector, blocks = torch.ones(1, SIDE, dtype=dtype), matrix.split(ROWS)
    best = [math.inf] * len(blocks)
    started, ran = time.perf_counter(), time.process_time()
    while math.inf in best or time.perf_counter() < started + DURATION:
        best = [
            min(known, _seconds(linear, vector, block)) for known, block in zip(best, blocks, strict=True)
        ]
    possible = torch.get_num_threads() * (time.perf_counter() - started)
    return matrix.nbytes / sum(best), time.process_time() - ran >= UNDISTURBED * possible


def _seconds(product: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> float:
    started = time.perf_counter()
    product(first, second)
    return time.perf_counter() - started


def _key() -> str:
    """What a measurement is valid for: a cache folder may be shared by machines and outlive a version of torch."""
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
