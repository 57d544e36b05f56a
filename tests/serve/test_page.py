"""The server's own page in a real browser: a question, streaming, sources, an abort, a reload, a phone's window."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.browser import CHROMIUM, Page, browser
from support.fakes import answer_events
from support.serving import Running, serving, until

from triforce_chat.chat.events import ChatEvent, Source, Sourced
from triforce_chat.serve.app import ServedModel
from triforce_chat.serve.chat_request import ChatCompletionRequest

SOURCED = Sourced((Source("The Book", "page", 7, 0.61, "The keeper <b>lit</b> the lamp."),), (), 0.1)
SERVED = ServedModel("tiny", 1000, ("The Book",))
PHONE, DESK = (360, 640), (1200, 800)


class Pausing:
    """Says two words, then waits for ``may`` before it says the others."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.closed: list[str] = []

    def answer(self, request: ChatCompletionRequest) -> Generator[ChatEvent, None, None]:
        events = answer_events(f"<i>You asked</i> {request.question} and I say so.", prompt=100, cached=10)
        try:
            yield from events[:8]
            while not self.may.wait(0.01):
                yield events[0]
            yield from events[8:]
            yield SOURCED
        finally:
            self.closed.append(request.question)


@pytest.fixture
def pausing() -> Pausing:
    return Pausing()


@pytest.fixture
def server(pausing: Pausing) -> Iterator[Running]:
    with serving(pausing.answer, SERVED) as running:
        yield running


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "profile") as made:
        yield made


def ask(page: Page, question: str) -> None:
    page.run(f"document.getElementById('question').value = '{question}'")
    page.run("document.getElementById('send').click()")


def text(page: Page) -> str:
    said: str = page.run("document.body.innerText")
    return said


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_a_conversation(
    server: Running, pausing: Pausing, page: Page, size: tuple[int, int], tmp_path: Path
) -> None:
    page.open(server.base_url.removesuffix("v1"), *size)
    page.until("document.title == 'The Book'")
    ask(page, "Why?")
    page.until("document.body.innerText.includes('<i>You')")  # streams, and shows markup as text
    assert "I say so" not in text(page)
    pausing.may.set()
    page.until("document.querySelector('.sources') != null")
    assert "<i>You asked</i> Why? and I say so." in text(page)
    assert "The Book p. 7 (61 %): “The keeper <b>lit</b> the lamp.”" in text(page)
    page.picture(tmp_path / "page.png")
    assert page.run("document.documentElement.scrollWidth") <= size[0]
    assert page.run("document.getElementById('send').getBoundingClientRect().height") >= 44  # for a thumb
    page.call("Page.reload")
    page.until("document.querySelector('.sources') != null")
    ask(page, "And then?")
    page.until("document.body.innerText.includes('And then? and I say so.')")
    assert server.jobs[-1].request.turns == (("Why?", "<i>You asked</i> Why? and I say so."),)


def test_an_abort_stops_the_answer(server: Running, pausing: Pausing, page: Page) -> None:
    page.open(server.base_url.removesuffix("v1"), *DESK)
    ask(page, "Why?")
    page.until("document.body.innerText.includes('<i>You')")
    page.run("document.getElementById('send').click()")
    until(lambda: pausing.closed == ["Why?"])
    page.until("document.getElementById('send').textContent == 'Ask'")
    pausing.may.set()
    ask(page, "Again?")
    page.until("document.body.innerText.includes('Again? and I say so.')")


def test_an_error_is_shown(server: Running, page: Page) -> None:
    page.open(server.base_url.removesuffix("v1"), *DESK)
    server.worker.close()
    ask(page, "Why?")
    page.until("document.querySelector('.error')?.textContent == 'the server is shutting down'")


def test_the_page_runs_nothing_from_elsewhere(server: Running) -> None:
    reply = server.http.get(server.base_url.removesuffix("v1"))
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "http" not in reply.text.replace("http-equiv", "")
