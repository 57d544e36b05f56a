"""A document from the web, within limits of size, time and redirects."""

from __future__ import annotations

import time
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import PurePosixPath
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from triforce_chat.documents.addresses import is_url
from triforce_chat.errors import DocumentError

LARGEST = 64 << 20  # bytes
SECONDS = 60.0  # for everything
SILENCE = 15.0  # seconds without a byte
REDIRECTS = 5
CHUNK = 1 << 16  # bytes
_SUFFIXES = {
    "application/pdf": ".pdf",
    "application/epub+zip": ".epub",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
}


def download(url: str) -> tuple[bytes, str]:
    """The bytes at an address, and the suffix that tells their format. Raises ``DocumentError``."""
    opener = build_opener(_Redirects())
    ends = time.monotonic() + SECONDS
    try:
        with opener.open(Request(url, headers={"User-Agent": "triforce-chat"}), timeout=SILENCE) as response:
            return _read(response, ends), _suffix(response)
    except HTTPError as error:
        error.close()
        reason = " ".join(str(error.reason).partition("\n")[0].split())
        raise DocumentError(f"the server answers {error.code} {reason}".rstrip()) from None
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        told = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise DocumentError(f"cannot be fetched ({told})") from None


class _Redirects(HTTPRedirectHandler):
    """Follows a few redirects, never to another kind of address or from an encrypted to an open one."""

    max_redirections = REDIRECTS

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not is_url(newurl) or (req.type == "https" and not newurl.lower().startswith("https:")):
            fp.close()
            raise DocumentError("the server leads to an address that is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(response: HTTPResponse, ends: float) -> bytes:
    parts, size = [], 0
    while chunk := response.read1(CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > LARGEST:
            raise DocumentError(f"larger than {LARGEST >> 20} MiB; download it first")
        if time.monotonic() > ends:
            raise DocumentError(f"not fetched within {SECONDS:.0f} s; download it first")
    return b"".join(parts)


def _suffix(response: HTTPResponse) -> str:
    named = PurePosixPath(unquote(urlsplit(response.url).path)).suffix.lower()
    return _SUFFIXES.get(response.headers.get_content_type(), named)
