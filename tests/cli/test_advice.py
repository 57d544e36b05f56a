"""What ``ask`` says on stderr where stdout is a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from support.consoles import written
from support.documents import opened

from triforce_chat.chat.events import ChatEvent
from triforce_chat.cli.ask import answer_once
from triforce_chat.engine.events import Finished, Text
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import Settings
from triforce_chat.ui.terminal import Screen

TEXT = "CHAPTER I\n\n" + "The lamp was out. " * 40 + "\n\nCHAPTER II\n\nA sea chest. " + "It rained. " * 60


@pytest.mark.parametrize(
    ("answer", "quiet", "advice"),
    [
        ("The document does not say.", False, "“sea chest” appears in standard input ch. II, l. 3"),
        ("The document does not say.", True, ""),
        ("A lamp.", False, ""),
    ],
)
def test_a_denial_in_a_pipe_says_where_the_words_stand(answer: str, quiet: bool, advice: str) -> None:
    def ask(_question: str, *, sources: bool) -> Iterator[ChatEvent]:
        assert not sources  # nobody would see them
        yield Text((1,), answer)
        yield Finished("stop", 1, 0, 1, 0.1, 0.1, 0.1)

    documents = [opened(TEXT.encode())]
    session = SimpleNamespace(
        ask=ask, documents=documents, context_limit=99, settings=Settings(), schema=None
    )
    screen = Screen(Console(file=io.StringIO()), Console(file=io.StringIO(), width=200), "bare")
    asked = "What was in the sea chest?"
    answer_once(cast(Any, session), asked, Options(quiet=quiet), screen, cast(Any, None))
    assert written(screen.out) == f"{answer}\n"
    assert written(screen.err).strip() == advice


@pytest.mark.parametrize(
    ("reason", "quiet", "remark"),
    [
        ("length", False, "stopped at the limit of 1 token\n--max-tokens allows longer answers\n"),
        (
            "repetition",
            False,
            "stopped after 1 token because the answer repeats itself\n--loop-guard 0 lets an answer repeat itself\n",
        ),
        ("length", True, ""),
        ("stop", False, ""),
    ],
)
def test_an_answer_that_was_cut_short_is_not_taken_for_a_whole_one_in_a_pipe(
    reason: Any, quiet: bool, remark: str
) -> None:
    def ask(_question: str, *, sources: bool) -> Iterator[ChatEvent]:  # noqa: ARG001
        yield Text((1,), "A lamp")
        yield Finished(reason, 1, 0, 1, 0.1, 0.1, 0.1)

    session = SimpleNamespace(ask=ask, documents=[], context_limit=99, settings=Settings(), schema=None)
    out, err = Console(file=io.StringIO()), Console(file=io.StringIO(), width=200)
    screen = Screen.of(out, err, quiet=quiet)
    answer_once(cast(Any, session), "What?", Options(quiet=quiet), screen, cast(Any, None))
    assert written(out) == "A lamp\n"
    assert written(err) == remark
