"""What sessions are called."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from triforce_chat.documents import Document
from triforce_chat.errors import UsageError

LONGEST = 80  # characters
STEM = 40  # characters that a title gives to a name
NAME = re.compile(rf"\w[\w .+-]{{0,{LONGEST - 1}}}(?<! )")
NUMBERED = re.compile(r"(.*)-[0-9]{1,3}")


def checked(name: str) -> str:
    """The name. Raises UsageError for one that a shell or a terminal could take for something else."""
    if NAME.fullmatch(name):
        return name
    raise UsageError(
        f"a session cannot be called '{name}': letters, digits, '_', '-', '+', '.' and spaces, "
        f"at most {LONGEST}, beginning with a letter, a digit or '_'"
    )


def suggested(documents: Sequence[Document]) -> str:
    """By the first document's title, or "chat", and the day."""
    title = documents[0].title.lower() if documents else ""
    stem = re.sub(r"[\W_]+", "-", title)[:STEM].strip("-") or "chat"
    return f"{stem}-{time.strftime('%Y-%m-%d')}"


def free(name: str, taken: Callable[[str], bool]) -> str:
    """The name, or if it is taken the same with the first number from 2 on that is not."""
    if not taken(name):
        return name
    numbered = NUMBERED.fullmatch(name)
    stem = numbered[1] if numbered and taken(numbered[1]) else name
    stem = stem[: LONGEST - 5].rstrip()
    number = 2
    while taken(f"{stem}-{number}"):
        number += 1
    return f"{stem}-{number}"
