"""Addresses in the web as names of documents."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"https?://", re.I)


def is_url(source: str) -> bool:
    """Whether a document is named by its address in the web."""
    return _URL.match(source) is not None


def name_of(url: str) -> str:
    """The last part of the address without its suffix; the server's name where there is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return PurePosixPath(unquote(parts.path)).stem or parts.netloc
