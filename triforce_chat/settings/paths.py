"""Where this program keeps things of the user; nothing is created here."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP = "triforce-chat"
CONFIG_VARIABLE = "TRIFORCE_CHAT_CONFIG"


def config_file() -> Path:
    """The file with the user's own defaults; TRIFORCE_CHAT_CONFIG names another than the system's."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return platformdirs.user_config_path(APP, appauthor=False) / "config.toml"


def data_folder() -> Path:
    return platformdirs.user_data_path(APP, appauthor=False)


def state_folder() -> Path:
    return platformdirs.user_state_path(APP, appauthor=False)


def history() -> Path:
    """The file with the questions that were typed."""
    return state_folder() / "history"


def all_paths() -> dict[str, Path]:
    """Every place by the name that people know it under."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from triforce_chat.models.cache import cache_folder
    from triforce_chat.storage.kv.shelf import users_folder
    from triforce_chat.storage.sessions.store import users_file

    return {
        "config": config_file(),
        "data": data_folder(),
        "state": state_folder(),
        "history": history(),
        "sessions": users_file(),
        "cache": cache_folder(),
        "models": cache_folder() / "models",
        "hub": Path(HF_HUB_CACHE),
        "kv": users_folder(),
    }
