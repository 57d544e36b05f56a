"""Documents straight from bytes, for tests."""

from __future__ import annotations

import io

from triforce_chat.documents import Document, apart, read
from triforce_chat.errors import DocumentError

PARSE_APART = apart.parse_apart  # as it is before ``conftest`` replaces it


def opened(data: bytes, password: str | None = None) -> Document:
    return read("-", password=password, stdin=io.BytesIO(data))


def refusal(data: bytes) -> str | None:
    try:
        opened(data)
    except DocumentError as error:
        return str(error)
    return None
