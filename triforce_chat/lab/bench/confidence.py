"""How far to trust a mean over few prompts: Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

# The 97.5th percentile by degrees of freedom, from 1 on.
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
NORMAL = 1.959964


def percentile(freedom: int) -> float:
    """The 97.5th percentile of the t distribution, right to 0.0005."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z, v = NORMAL, freedom  # Cornish and Fisher's expansion around the normal distribution
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / v**power for power, term in enumerate(terms, 1))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the mean of such values lies with a probability of 95 %; None for a single one."""
    if len(values) < 2:
        return None
    half = percentile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
