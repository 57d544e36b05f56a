"""A part of a batch for one of several machines that do not know each other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from triforce_chat.batch.lines import Line
from triforce_chat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` parts of a batch, with the lines of all books that belong to it.

    A book's part depends on its path and the number of parts alone: other books may come and go.
    """

    index: int  # from 0
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "0/8", the first of eight parts. Raises UsageError."""
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise UsageError(
                f"'{text}' is not a shard; write 0/8 for the first of eight and 7/8 for the last"
            )
        return cls(int(found[1]), int(found[2]))

    def of(self, lines: Sequence[Line]) -> list[Line]:
        """The lines of this part, in their order."""
        return [line for line in lines if self._has(line.group)]

    def _has(self, group: str) -> bool:
        digest = hashlib.sha256(group.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index
