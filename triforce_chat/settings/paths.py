"""Where this program keeps the user's files; nothing is created here.

The folders follow the system's conventions (XDG on Linux).
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

from triforce_chat.cache_folder import APP, cache_folder, named_folder

CONFIG_VARIABLE = "TRIFORCE_CHAT_CONFIG"


def config_file() -> Path:
    """The file with the user's settings; TRIFORCE_CHAT_CONFIG overrides the system's place."""
    return (
        named_folder(CONFIG_VARIABLE) or platformdirs.user_config_path(APP, appauthor=False) / "config.toml"
    )


def data_folder() -> Path:
    """The folder for data that other programs of the user may read."""
    return platformdirs.user_data_path(APP, appauthor=False)


def state_folder() -> Path:
    """The folder for what must outlive a run and cannot be made again: sessions and typed questions."""
    return platformdirs.user_state_path(APP, appauthor=False)


def history_file() -> Path:
    """The questions that were typed."""
    return state_folder() / "history"


def sessions_file() -> Path:
    """The SQLite database of the sessions."""
    return state_folder() / "sessions.db"


def models_folder() -> Path:
    """Models that were converted or unpacked; others stay in the hub's own cache."""
    return cache_folder() / "models"


def kv_folder() -> Path:
    """Keys and values of documents that were read: the document cache."""
    return cache_folder() / "kv"


def cpu_speed_file() -> Path:
    """The measured speeds of this machine's CPU, as JSON."""
    return cache_folder() / "cpu-speed.json"


def attention_file() -> Path:
    """The attention kernels that were fastest on this machine's GPU, as JSON."""
    return cache_folder() / "attention.json"


def calibration_file() -> Path:
    """The step times and the acceptance that planners have measured on this machine, as JSON."""
    return cache_folder() / "calibration.json"


def failed_download_mark() -> Path:
    """An empty file whose time is that of the last failed download of a model that the program had chosen."""
    return cache_folder() / "download-failed"


def all_paths() -> dict[str, Path]:
    """Every place by its name in ``triforce-chat paths``."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return {
        "config": config_file(),
        "data": data_folder(),
        "state": state_folder(),
        "history": history_file(),
        "sessions": sessions_file(),
        "cache": cache_folder(),
        "models": models_folder(),
        "hub": Path(HF_HUB_CACHE),
        "kv": kv_folder(),
    }
