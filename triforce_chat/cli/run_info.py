"""What the JSON records of commands say of the model that answers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.chat.records import RunInfo
    from triforce_chat.chat.session import ChatSession


def run_info_of(options: Options, automatic: bool, session: ChatSession, load_s: float) -> RunInfo:
    """What the records say of the model; ``automatic``: the program has chosen it."""
    from triforce_chat.chat.records import RunInfo

    loaded = session.loaded
    weights = loaded.stored.format if loaded.stored else ""
    info = RunInfo(options.model, loaded.draft, options.stack, load_s, automatic, weights, loaded.kv_format)
    eviction = session.settings.eviction
    return (
        info if eviction is None else dataclasses.replace(info, endless=eviction.policy, keep=eviction.keep)
    )


def planned(run_info: RunInfo, session: ChatSession) -> RunInfo:
    """With the figures that the answer was planned by, which may have been measured just before it."""
    return dataclasses.replace(run_info, calibration=session.engine.plan_key)
