"""Access control: clients send the token; without a token only programs on this machine are admitted."""

from __future__ import annotations

import hmac
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triforce_chat.serve.api_error import ApiError
from triforce_chat.serve.responses import error_response

# DNS rebinding: a web page can make its own host name resolve to 127.0.0.1, but the Host header still holds that name.
LOCAL_HOSTS = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class AuthMiddleware:
    """Rejects HTTP requests without the token. If there is no token, it checks the Host header instead."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        public = self.token is not None and scope.get("path") == "/"  # the page asks for the token itself
        error = None if public or scope["type"] != "http" else self._error(Headers(scope=scope))
        await (error_response(error) if error else self.app)(scope, receive, send)

    def _error(self, headers: Headers) -> ApiError | None:
        if self.token is None:
            if LOCAL_HOSTS.fullmatch(headers.get("host", "")):
                return None
            return ApiError(403, "the host must be localhost or 127.0.0.1", "host_not_allowed")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(token.strip().encode("latin-1"), self.token.encode())
        if same and scheme.lower() == "bearer":
            return None
        challenge = {"WWW-Authenticate": "Bearer"}
        return ApiError(401, "the API key is missing or wrong", "invalid_api_key", None, challenge)
