"""Where this program keeps everything that can be made again; the engine and the settings both need to know."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP = "triforce-chat"
CACHE_VARIABLE = "TRIFORCE_CHAT_CACHE"


def named_folder(variable: str) -> Path | None:
    """The path that an environment variable names, if it is set."""
    named = os.environ.get(variable)
    return Path(named).expanduser().absolute() if named else None


def cache_folder() -> Path:
    """The folder for everything that can be made again; TRIFORCE_CHAT_CACHE overrides the system's place."""
    return named_folder(CACHE_VARIABLE) or platformdirs.user_cache_path(APP, appauthor=False)
