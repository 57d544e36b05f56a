"""The rounds of a calibration: they measure plain decoding and every drafter."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.plan import Plan

# A calibration runs so many rounds without a draft, and so many drafts of as many tokens by each arm, the first of
# which still include preparations: of CUDA graphs, of caches, and of the plans of a level below.
SURVEY_PLAIN, SURVEY_DRAFTS, SURVEY_WARMUPS, SURVEY_TOKENS = 4, 4, 2, 4
EVERYTHING = 1 << 30  # rounds; more than any calibration has


def prescribe(agenda: deque[Plan], plain: bool, able: Sequence[Arm], left: int) -> None:
    """Add rounds that measure those arms, and with ``plain`` plain decoding; only ``left`` of the last ones remain."""
    undrafted = [Plan(0)] * (SURVEY_PLAIN if plain else 0)
    agenda.extend([*undrafted, *(Plan(SURVEY_TOKENS, arm) for arm in able for _ in range(SURVEY_DRAFTS))])
    while len(agenda) > left:
        agenda.popleft()
    for arm in able:
        drafts = sum(plan.arm is arm for plan in agenda)
        arm.warmups = min(SURVEY_WARMUPS, max(0, drafts - 1))  # the last one counts in any case
