"""The rounds of a calibration: they measure plain decoding and every drafter."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.plan import Plan

# A calibration runs so many rounds without a draft, and drafts of so many tokens by each arm, the first of which still
# include preparations: of CUDA graphs, of caches, and of the plans of a level below. Two lengths tell what each token
# takes from what a draft takes besides.
SURVEY_PLAIN, SURVEY_DRAFTS, SURVEY_WARMUPS = 4, (4, 9, 4, 9), 2
EVERYTHING = 1 << 30  # rounds; more than any calibration has


def prescribe(agenda: deque[Plan], plain: bool, able: Sequence[Arm], left: int) -> None:
    """Add rounds that measure those arms, and with ``plain`` plain decoding; only ``left`` of the last ones remain."""
    undrafted = [Plan(0)] * (SURVEY_PLAIN if plain else 0)
    agenda.extend([*undrafted, *(Plan(n, arm) for arm in able for n in SURVEY_DRAFTS)])
    while len(agenda) > left:
        agenda.popleft()
    for arm in able:
        drafts = sum(plan.arm is arm for plan in agenda)
        arm.warmups = min(SURVEY_WARMUPS, max(0, drafts - 1))  # the last one counts in any case
