"""Names of sessions: which are valid, and how new ones are made."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from triforce_chat.documents import Document
from triforce_chat.errors import UsageError

MAX_LENGTH = 80  # characters
MAX_TITLE = 40  # characters that a document's title contributes to a name
NAME = re.compile(rf"\w[\w .+-]{{0,{MAX_LENGTH - 1}}}(?<! )")
NUMBERED = re.compile(r"(.*)-[0-9]{1,3}")


def check_name(name: str) -> str:
    """The name itself. Raises UsageError if a shell or a terminal could misread it."""
    if NAME.fullmatch(name):
        return name
    raise UsageError(
        f"a session cannot be called '{name}': letters, digits, '_', '-', '+', '.' and spaces, "
        f"at most {MAX_LENGTH}, beginning with a letter, a digit or '_'"
    )


def suggest_name(documents: Sequence[Document]) -> str:
    """A name from the first document's title, or "chat", and today's date."""
    title = documents[0].title.lower() if documents else ""
    stem = re.sub(r"[\W_]+", "-", title)[:MAX_TITLE].strip("-") or "chat"
    return f"{stem}-{time.strftime('%Y-%m-%d')}"


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """``name``; if it is taken, the name with the first free number from 2 on."""
    if not taken(name):
        return name
    numbered = NUMBERED.fullmatch(name)
    stem = numbered[1] if numbered and taken(numbered[1]) else name
    stem = stem[: MAX_LENGTH - 5].rstrip()
    number = 2
    while taken(f"{stem}-{number}"):
        number += 1
    return f"{stem}-{number}"
