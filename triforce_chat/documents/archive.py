"""ZIP archives whose members are read in memory, within bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zipfile import ZipFile

from triforce_chat.errors import DocumentError

MAX_UNPACKED = 128 << 20  # bytes with markup, which may be ten times the text
ENCRYPTED_FLAG = 1


@dataclass(frozen=True, slots=True)
class Archive:
    """Reads members of a ZIP file whose declared sizes stay within ``MAX_UNPACKED`` together."""

    file: ZipFile

    def read(self, name: str) -> bytes:
        self.require([name])
        return self.file.read(name)  # zipfile stops at the declared size

    def require(self, names: Iterable[str]) -> None:
        """Raises ``DocumentError`` for members that are locked or too large, before reading any."""
        members = [self.file.getinfo(name) for name in names]
        if any(member.flag_bits & ENCRYPTED_FLAG for member in members):
            raise DocumentError("the file is encrypted and cannot be read")
        if sum(member.file_size for member in members) > MAX_UNPACKED:
            raise DocumentError(f"the file unpacks to more than {MAX_UNPACKED >> 20} MiB; refused")

    def __contains__(self, name: str) -> bool:
        return name in self.file.NameToInfo
