"""Documents from the web, against a server of this machine; folders and patterns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from triforce_chat.cli.serve import local
from triforce_chat.documents import download, read
from triforce_chat.documents.files import find_files
from triforce_chat.errors import DocumentError, UsageError


class Handler(BaseHTTPRequestHandler):
    """A text, a page, a redirect in circles, one out of the web, an endless answer and a slow one."""

    def do_GET(self) -> None:
        match self.path:
            case "/a%20book.txt" | "/page":
                kind = "text/html; charset=utf-8" if self.path == "/page" else "text/plain"
                self.answer(200, kind, "<p>Grüße".encode())
            case "/to-book":
                self.answer(302, location="/a%20book.txt")
            case "/circle":
                self.answer(302, location="/circle")
            case "/out":
                self.answer(302, location="file:///etc/passwd")
            case "/endless":
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    while True:
                        self.wfile.write(b"x" * 65_536)
            case "/slow":
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    for _ in range(100):
                        self.wfile.write(b"x")
                        time.sleep(0.05)
            case _:
                self.answer(404)

    def answer(self, code: int, kind: str = "text/plain", body: bytes = b"", location: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_document_from_the_web(site: str) -> None:
    found = read(f"{site}/a%20book.txt")
    assert (found.title, found.source, found.text) == ("a book", f"{site}/a%20book.txt", "<p>Grüße")
    assert read(f"{site}/page").text == "Grüße\n"
    assert read(f"{site}/to-book").text == "<p>Grüße"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/none", "the server answers 404"),
        ("/circle", "would lead to an infinite loop"),
        ("/out", "is not allowed"),
        ("/endless", "larger than 1 MiB"),
        ("/slow", "not fetched within 1 s"),
    ],
)
def test_limits(site: str, path: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 1 << 20)
    if path == "/slow":
        monkeypatch.setattr(download, "SECONDS", 1.0)
    with pytest.raises(DocumentError, match=says) as error:
        read(site + path)
    assert str(error.value).startswith(f"{site}{path}: ")
    assert "\n" not in str(error.value)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DocumentError, match=r"cannot be fetched \(Connection refused\)"):
        read("http://127.0.0.1:9/book.pdf")


def test_serve_fetches_nothing() -> None:
    assert local(["a.txt"]) == ["a.txt"]
    with pytest.raises(UsageError, match="serve reads files and fetches nothing"):
        local(["a.txt", "https://example.org/book.pdf"])


def test_folders_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("docs/a.md", "docs/deep/b.docx", "docs/.git/c.md", "docs/d.py", "e.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    assert find_files(["docs"]) == ["docs/a.md", "docs/deep/b.docx"]
    assert find_files(["*.txt", "docs/*.md", "e.txt"]) == ["e.txt", "docs/a.md"]
    assert find_files(["https://example.org/a", "-", "none"]) == ["https://example.org/a", "-", "none"]
