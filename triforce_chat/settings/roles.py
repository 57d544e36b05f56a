"""Roles: system prompts kept in files, each under the name of its file."""

from __future__ import annotations

from pathlib import Path

from triforce_chat.errors import UsageError
from triforce_chat.settings.paths import config_file

ENDINGS = (".md", ".txt")
MAX_BYTES = 1 << 16


def roles_folder() -> Path:
    """Where roles are looked up by name."""
    return config_file().parent / "roles"


def role_names() -> list[str]:
    """The roles that there are."""
    try:
        return sorted(path.stem for path in roles_folder().iterdir() if path.suffix in ENDINGS)
    except OSError:
        return []


def read_role(name: str) -> str:
    """The text of a role, or of a file. Raises UsageError."""
    path = _path_of(name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"the role {path} is longer than {MAX_BYTES:,} bytes")
        return data.decode("utf-8-sig").strip()
    except OSError as error:
        raise UsageError(f"the role {path} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise UsageError(f"the role {path} is not UTF-8 text") from None


def _path_of(name: str) -> Path:
    named = [roles_folder() / f"{name}{ending}" for ending in ENDINGS if name in role_names()]
    found = next((path for path in (*named, Path(name).expanduser()) if path.is_file()), None)
    if found is None:
        known = ", ".join(role_names()) or f"none; put a text file into {roles_folder()}"
        raise UsageError(f"no role and no file '{name}'; roles: {known}")
    return found
