"""Where the server listens, checked before anything slow is loaded."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from triforce_chat.errors import UsageError


def require_extra() -> None:
    """Raise UsageError where the libraries of the server are not installed."""
    if not all(find_spec(name) for name in ("starlette", "uvicorn")):
        raise UsageError(
            "serve needs Starlette and uvicorn; install them: pip install 'triforce-chat[serve]'"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """An address and the token that its clients must bear. Raises UsageError for an open door."""

    host: str
    port: int  # 0: any free one
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host or repr('')} lets other machines in; set --token or TRIFORCE_CHAT_TOKEN"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the token must be printable ASCII")
        if self.token is not None and (not self.token or " " in self.token):
            raise UsageError("the token must not be empty or hold spaces")

    def bound(self) -> socket.socket:
        """A socket with that address, not listening yet; raises UsageError where that cannot be."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return _bound(found[0])
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen on {self.host}:{self.port}: {reason}") from None


def _bound(found: tuple[Any, ...]) -> socket.socket:
    """A socket bound to one answer of getaddrinfo."""
    family, kind, number, _, address = found
    made = socket.socket(family, kind, number)
    try:
        if os.name == "posix":  # elsewhere this lets two programs listen on one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
