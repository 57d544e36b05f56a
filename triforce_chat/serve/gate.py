"""Who may come in: the bearer of the token, or without one a program on this machine."""

from __future__ import annotations

import hmac
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triforce_chat.serve.refusal import Refusal
from triforce_chat.serve.responses import refused

# A page in a browser can give a name of its own the address 127.0.0.1, but it cannot lie about the name.
OWN_NAMES = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class Gate:
    """Middleware in front of everything. A token is asked for where there is one, else the name is checked."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._reason(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refused(reason) if reason else self.app)(scope, receive, send)

    def _reason(self, headers: Headers) -> Refusal | None:
        if self.token is None:
            if OWN_NAMES.fullmatch(headers.get("host", "")):
                return None
            return Refusal(403, "call this server localhost or 127.0.0.1", "host_not_allowed")
        kind, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode())
        if same and kind.lower() == "bearer":
            return None
        challenge = {"WWW-Authenticate": "Bearer"}
        return Refusal(401, "the API key is missing or wrong", "invalid_api_key", None, challenge)
