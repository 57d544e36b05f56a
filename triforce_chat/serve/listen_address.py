"""The address that the server listens on, checked before anything slow is loaded."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from triforce_chat.errors import UsageError


def require_extra() -> None:
    """Raises UsageError if the server's libraries are not installed."""
    if not all(find_spec(name) for name in ("starlette", "uvicorn")):
        raise UsageError("serve needs Starlette and uvicorn; install them: pip install starlette uvicorn")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address, and the token that clients must send.

    Raises UsageError if the token is malformed, or missing although other machines can reach the address.
    """

    host: str
    port: int  # 0 picks a free one
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host or repr('')} lets other machines in; set --token or TRIFORCE_CHAT_TOKEN"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the token must be printable ASCII")
        if self.token is not None and (not self.token or " " in self.token):
            raise UsageError("the token must not be empty or contain spaces")

    def bind(self) -> socket.socket:
        """A socket bound to the address, not listening yet. Raises UsageError if it cannot be bound."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return _bind(found[0])
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen on {self.host}:{self.port}: {reason}") from None


def _bind(resolved: tuple[Any, ...]) -> socket.socket:
    """A socket bound to one result of getaddrinfo."""
    family, kind, number, _, address = resolved
    made = socket.socket(family, kind, number)
    try:
        if os.name == "posix":  # on Windows this would let two programs listen on one port
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
    """The base URL for clients of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
