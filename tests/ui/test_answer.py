from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from rich.cells import cell_len
from rich.console import Console
from support.consoles import written
from support.fakes import LIMIT, ScriptedConversation, answer_events, tally_of
from support.terminal_emulator import screen_of

from triforce_chat.chat.conversation import Turn
from triforce_chat.chat.events import ChatEvent
from triforce_chat.cli.chat import show_restored
from triforce_chat.engine.events import Calibrated, Finished, Forgot, Prefilled, Rebuilt, Text, Verified
from triforce_chat.settings.options import Options
from triforce_chat.storage.sessions.serialization import dump_statistics, load_tally
from triforce_chat.storage.sessions.session_opener import Restored
from triforce_chat.ui import formatting
from triforce_chat.ui.answer import show_answer, show_turn
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.terminal import Detail, Interrupt, Leave, Screen

ANSWER = "The harbour is *never* named.\n\nNot once.\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(detail: Detail, width: int = 100) -> Screen:
    out = Console(
        file=io.StringIO(), width=width, height=24, force_terminal=detail == "live", color_system=None
    )
    return Screen(out, Console(file=io.StringIO(), width=100), detail)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def pressing(events: Sequence[ChatEvent], at: int, times: int, log: list[str]) -> Iterator[ChatEvent]:
    """Press Ctrl-C before the event ``at``."""
    try:
        for index, event in enumerate(events):
            for _ in range(times if index == at else 0):
                press()
            yield event
    except GeneratorExit:
        log.append("closed")
        raise


@pytest.mark.parametrize(
    ("terminal", "environ", "options", "detail"),
    [
        (True, {}, {}, "live"),
        (True, {}, {"plain": True}, "plain"),
        (True, {}, {"quiet": True}, "bare"),
        (True, {"NO_COLOR": "1"}, {}, "live"),
        (True, {"TERM": "dumb"}, {}, "plain"),
        (False, {}, {}, "bare"),
        (False, {"FORCE_COLOR": "1"}, {}, "bare"),
    ],
)
def test_detail(terminal: bool, environ: dict[str, str], options: dict[str, bool], detail: Detail) -> None:
    out = Console(file=Terminal() if terminal else io.StringIO(), _environ=environ)
    out._environ = environ
    assert Screen.of(out, out, **options).detail == detail


def test_bare_is_the_answer_and_nothing_else() -> None:
    bare = screen("bare")
    tally = show_answer(iter(answer_events("\x1b[2Ja *b*\n\nc")), bare)
    assert written(bare.out) == "a *b*\n\nc\n"
    assert written(bare.err) == ""
    assert tally.finished is not None


def test_a_line_end_is_not_doubled() -> None:
    bare = screen("bare")
    show_answer(iter(answer_events(ANSWER)), bare)
    assert written(bare.out) == ANSWER


def test_reading_alone_writes_nothing() -> None:
    bare = screen("bare")
    show_answer(iter(answer_events("")[:4]), bare)
    assert written(bare.out) == ""


def test_plain_tells_the_rest_in_lines_on_stderr() -> None:
    plain = screen("plain")
    show_answer(iter(answer_events(ANSWER)), plain)
    assert written(plain.out) == ANSWER
    assert written(plain.err).splitlines()[:3] == [
        "reading: 25 %, 11,000 of 41,000 tokens",
        "reading: 50 %, 21,000 of 41,000 tokens",
        "reading: 75 %, 31,000 of 41,000 tokens",
    ]
    assert (
        "; 20.0 ms/token; 4.0 tokens per round; drafts accepted: target 75 %, retrieval 80 %"
        in written(plain.err).splitlines()[-1]
    )


def measuring() -> list[ChatEvent]:
    """The events of an answer before which the machine is measured."""
    events = answer_events(ANSWER)
    at = 1 + max(n for n, event in enumerate(events) if isinstance(event, Prefilled))
    return [*events[:at], *(Calibrated(done, 48) for done in (0, 4, 48)), *events[at:]]


def test_measuring_is_said_once() -> None:
    plain, bare = screen("plain"), screen("bare")
    show_answer(iter(measuring()), plain)
    assert written(plain.err).splitlines().count(formatting.MEASURING) == 1
    assert written(plain.out) == ANSWER
    show_answer(iter(measuring()), bare)
    assert written(bare.err) == ""


def test_the_panel_says_what_it_waits_for() -> None:
    panel, shown = EnginePanel("auto", LIMIT), []
    for event in measuring():
        panel.add(event)
        console = Console(file=io.StringIO(), width=100)
        console.print(panel)
        shown.append(formatting.MEASURING in written(console))
    assert shown.count(True) == 2


@pytest.mark.parametrize("width", [80, 120])
def test_live_leaves_the_answer_once_and_one_line(width: int) -> None:
    live = screen("live", width)
    show_answer(iter(answer_events(ANSWER)), live, title="stack", limit=LIMIT)
    lines = [line.strip() for line in screen_of(written(live.out)) if line.strip()]
    assert lines[:2] == ["The harbour is never named.", "Not once."]
    assert len(lines) == 3
    assert lines[2].startswith("16 tokens · 20.0 ms/token")
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("detail", ["live", "plain", "bare"])
def test_ctrl_c_closes_the_engine_and_keeps_what_was_said(detail: Detail) -> None:
    log: list[str] = []
    events = answer_events("one two three four five six seven eight nine ten")
    shown = screen(detail)
    before = signal.getsignal(signal.SIGINT)
    tally = show_answer(pressing(events, 7, 1, log), shown)
    assert log == ["closed"]
    assert signal.getsignal(signal.SIGINT) is before
    assert tally.text == "one two thre"
    assert "one two thre" in written(shown.out)
    assert tally.finished is not None
    assert (tally.finished.reason, tally.finished.completion_tokens) == ("interrupted", 4)


def test_ctrl_c_stops_a_prefill() -> None:
    plain = screen("plain")
    tally = show_answer(pressing(answer_events("never said"), 1, 1, []), plain)
    assert tally.text == ""
    assert "stopped while reading, 21,000 of 41,000 tokens done" in written(plain.err)


def test_the_second_ctrl_c_leaves_with_the_terminal_restored() -> None:
    live, before = screen("live"), signal.getsignal(signal.SIGINT)
    with pytest.raises(Leave):
        show_answer(pressing(answer_events(ANSWER), 9, 2, []), live)
    assert signal.getsignal(signal.SIGINT) is before
    assert written(live.out).rpartition("\x1b[?25l")[2].count("\x1b[?25h") == 1


def test_a_late_second_ctrl_c_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupt, "WINDOW", 0.0)
    with Interrupt() as interrupt:
        press()
        press()
    assert interrupt.requested


def test_an_error_in_the_middle_keeps_the_text() -> None:
    def failing() -> Iterator[ChatEvent]:
        yield Text((1,), "half")
        raise MemoryError

    bare = screen("bare")
    with pytest.raises(MemoryError):
        show_answer(failing(), bare)
    assert written(bare.out) == "half\n"


def ticking(step: float) -> Callable[[], float]:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step
        return now

    return clock


def drawn(panel: EnginePanel, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=24)
    console.print(panel)
    return written(console).splitlines()


@pytest.mark.parametrize("width", [50, 80, 160])
def test_the_panel_says_what_was_forgotten(width: int) -> None:
    """While the prompt is read, and as long as the answer grows; an endless conversation has no limit to show."""
    panel, line = EnginePanel("stack", 0), "12,340 tokens of 20,532"
    panel.add(Prefilled(done=31_000, total=41_000, cached=1_000, seconds=3.0))
    assert not any("forgotten" in each for each in drawn(panel, width))
    panel.add(Forgot(12_340, 20_532))
    for event in (None, Prefilled(41_000, 41_000, 0, 4.0), Text((1,), "a")):
        if event is not None:
            panel.add(event)
        (shown,) = (each for each in drawn(panel, width) if "forgotten" in each)
        assert line in shown
    assert not any("context" in each for each in drawn(panel, width))
    panel.add(Finished("stop", 41_000, 0, 1, 4.0, 4.1, 0.1))
    assert f"forgotten: {line}" in formatting.summary(panel.tally)
    stored = load_tally(dump_statistics(panel.tally), [1], "a")
    assert stored.forgot == panel.tally.forgot


def test_panel_while_reading() -> None:
    panel = EnginePanel("stack", LIMIT)
    panel.add(Prefilled(done=31_000, total=41_000, cached=1_000, seconds=3.0))
    lines = drawn(panel)
    assert len(lines) == 4
    assert "76 %   31,000 / 41,000 tokens" in lines[1]
    assert "10,000 tokens/s   1.0 s left   2 % from the cache" in lines[2]


@pytest.mark.parametrize("plain_measured", [True, False])
def test_panel_while_answering(plain_measured: bool) -> None:
    panel = EnginePanel("stack", LIMIT, ticking(0.1), most=512)
    panel.add(Prefilled(41_000, 41_000, 0, 5.0))
    panel.add(Rebuilt(41_000, "first", 0.1))
    panel.add(Verified("retrieval", 6, 5, "draft"))
    panel.add(Verified("target", 4, 4, "retrieval", 160.0, plain_measured))
    panel.add(Text((1, 2, 3, 4, 5), "abc"))
    panel.add(Rebuilt(41_002, "acceptance", 0.1))
    panel.add(Verified("retrieval", 6, 5, "draft"))
    lines = drawn(panel, 120)
    assert lines[0].startswith("╭─ stack ─")
    assert "drafting          draft model → retrieval cache " in lines[1]
    assert "target ━━━━━━━━━━━━━━━━━━━━ 100 %   retrieval ━━━━━━━━━━━━━━━━━━━━ 83 %" in lines[2]
    # 5 tokens in 0.4 s, where plain decoding takes 160 ms for each
    how = "measured" if plain_measured else "expected"
    assert f"12.5 tokens/s   2.0x plain decoding ({how})   80.0 ms/token " in lines[3]
    assert "retrieval cache   built twice, last 3 tokens ago because acceptance fell " in lines[4]
    assert "tokens per round  5.0   █ drafts accepted" in lines[5]
    assert "                    ^ cache built" in lines[6]
    assert " 5 of at most 512 tokens · context 41,005 / 131,072 tokens (31 %)" in lines[7]


def decoded_plainly(*plain_ms: float) -> EnginePanel:
    """A panel after tokens decoded without drafts; ``plain_ms``: what each took, 0.0 where that was not known yet."""
    panel = EnginePanel("stack", LIMIT, ticking(0.1), most=512)
    panel.add(Prefilled(41_000, 41_000, 0, 5.0))
    for each in plain_ms:
        panel.add(Verified("target", 0, 0, "", each, True))
    panel.add(Text((1, 2, 3, 4), "abcd"))
    panel.add(Finished("length", 41_000, 0, 4, 5.0, 0.1, 0.8))
    return panel


def test_a_machine_that_becomes_slower_makes_no_answer_quicker() -> None:
    """Nothing is drafted, and plain decoding takes three times as long for the last half."""
    panel = decoded_plainly(100.0, 100.0, 300.0, 300.0)
    assert "1.0x plain decoding (measured)" in "".join(drawn(panel, 120))


def test_rounds_before_plain_decoding_was_measured_say_nothing_of_its_time() -> None:
    panel = decoded_plainly(0.0, 0.0, 200.0, 200.0)
    assert "1.0x plain decoding (measured)" in "".join(drawn(panel, 120))


@pytest.mark.parametrize("width", [50, 64, 73, 74, 80])
def test_a_narrow_panel_has_all_figures(width: int) -> None:
    panel = EnginePanel("stack", LIMIT, ticking(0.05), most=512)
    panel.add(Prefilled(41_000, 41_000, 0, 5.0))
    for number in range(40):
        if number == 30:
            panel.add(Rebuilt(41_150, "first", 0.1))
        panel.add(Verified("retrieval", 6, 5, "draft"))
        panel.add(Verified("target", 4, 4, "retrieval", 160.0, False))
        panel.add(Text((1, 2, 3, 4, 5), "abc"))
    lines = "\n".join(drawn(panel, width))
    drafts = ("draft model → retrieval cache", " 100 %", " 83 %", "built once, 50 tokens ago")
    figures = (
        "33.1 tokens/s ",
        "5.3x plain",
        "(expected)",
        "per round",
        " 5.0 ",
        "█ drafts accepted",
        " ^ cache",
    )
    assert [text for text in (*drafts, *figures, "200 of ", " context ") if text not in lines] == []


@pytest.mark.parametrize(("width", "rows"), [(50, 2), (74, 2), (80, 1)])
@pytest.mark.parametrize("reason", ["stride", "acceptance", "rewind"])
def test_why_the_cache_was_built_again_is_told_at_any_width(
    width: int, rows: int, reason: Literal["stride", "acceptance", "rewind"]
) -> None:
    panel = EnginePanel("stack", LIMIT, ticking(0.1))
    panel.add(Prefilled(41_000, 41_000, 0, 5.0))
    for number in range(12):
        panel.add(Text((number,), "a"))
        panel.add(Rebuilt(41_000 + number, reason if number else "first", 0.1))
    lines = drawn(panel, width)
    built = next(at for at, line in enumerate(lines) if "built 12 times, last 1 token ago" in line)
    assert f"because {formatting.REASONS[reason]} " in lines[built + rows - 1]


def test_panel_without_drafts() -> None:
    panel = EnginePanel("stack", LIMIT, ticking(0.1))
    panel.add(Prefilled(41_000, 41_000, 0, 5.0))
    panel.add(Verified("target", 0, 0))
    panel.add(Text((1,), "a"))
    lines = drawn(panel)
    assert "none: plain decoding" in lines[1]
    assert "no drafts yet" in lines[2]
    assert "plain decoding (" not in lines[3]
    assert "not needed yet" in lines[4]


@pytest.mark.parametrize(("width", "height"), [(40, 6), (50, 8), (73, 8), (80, 8), (120, 8)])
def test_the_panel_never_wraps(width: int, height: int) -> None:
    panel = EnginePanel("a stack with a long name, longer than the panel is wide, to see what happens", LIMIT)
    heights = set()
    for event in answer_events(ANSWER)[3:]:
        panel.add(event)
        lines = drawn(panel, width)
        assert {len(line) for line in lines} == {width}
        heights.add(len(lines))
    assert heights == {height}


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.04, "0.0 s"), (9.96, "10 s"), (99.6, "1 min 40 s"), (7_260, "2 h 01 min")]
)
def test_duration(seconds: float, said: str) -> None:
    assert formatting.duration(seconds) == said


def test_summary_names_the_length_limit() -> None:
    tally = tally_of([Text((1, 2), "x"), Finished("length", 10, 0, 2, 1.0, 1.1, 0.5)])
    assert formatting.summary(tally)[0] == "stopped at the limit of 2 tokens"


@pytest.mark.parametrize(
    ("values", "marks", "width", "bars", "under"),
    [
        ([0, 1, 2, 4, 7], [0, 3], 80, "▁▂▃▅█", "^  ^"),
        ([0, 0], [], 80, "▁▁", ""),
        ([], [], 80, "", ""),
        ([8] * 50 + [0] * 50, [0, 99], 10, "█████▁▁▁▁▁", "^        ^"),
        ([1, 1, 4, 4, 4], [4], 2, "▃█", " ^"),
    ],
)
def test_sparkline(values: list[int], marks: list[int], width: int, bars: str, under: str) -> None:
    assert formatting.sparkline(values, marks, width) == (bars, under)


def test_quarters_are_told_once_and_quick_work_has_none() -> None:
    quarters = formatting.QuarterProgress()
    assert [quarters.reached(done, 8) for done in range(9)] == [0, 0, 25, 0, 50, 0, 75, 0, 100]
    assert formatting.QuarterProgress().reached(8, 8) == formatting.QuarterProgress().reached(0, 0) == 0


def test_plain_writes_whole_sentences() -> None:
    plain = screen("plain")
    pieces: list[str] = []
    plain.out.file.write = pieces.append  # type: ignore[method-assign, assignment]
    show_answer(iter(answer_events("It is 3.5 m. Not\nmore than that! And so on", level=False)), plain)
    assert pieces == ["It is 3.5 m. Not\n", "more than that! ", "And so on", "\n"]


@pytest.mark.parametrize("detail", ["live", "plain", "bare"])
def test_an_answer_goes_on_behind_what_was_said(detail: Detail) -> None:
    shown = screen(detail)
    tally = show_answer(iter(answer_events(" and *on*.")), shown, previous="Settled.\n\nIt goes on")
    assert tally.text == " and *on*."
    out = written(shown.out)
    if detail == "live":
        assert screen_of(out)[0] == "It goes on and on."
    else:
        assert out == " and *on*.\n"


@pytest.mark.parametrize(("width", "height"), [(80, 8), (40, 6)])
def test_wide_characters_in_the_panel(width: int, height: int) -> None:
    panel = EnginePanel("検索 4,096 + 小さな 👩‍🚀 e\u0301", LIMIT, ticking(0.1))
    for event in answer_events(ANSWER):
        panel.add(event)
        lines = drawn(panel, width)
        assert {cell_len(line) for line in lines} == {width}
        assert len(lines) <= height


def test_fit() -> None:
    assert formatting.fit_line(["検索", "検索"], 9) == "検索"
    assert formatting.fit_line(["abc", "def", "ghi"], 9) == "abc · def"
    assert formatting.fit_line(["longer than that"], 3) == "longer than that"


class PressingFile(io.StringIO):
    """Somebody presses Ctrl-C on reading "six"."""

    def write(self, text: str) -> int:
        if "six" in text:
            press()
        return super().write(text)


def test_a_stopped_answer_is_a_turn_of_the_conversation() -> None:
    conversation = ScriptedConversation("one two three four five six seven eight nine ten")
    show_answer(
        conversation.ask("q"), Screen(Console(file=PressingFile()), Console(file=io.StringIO()), "bare")
    )
    assert [turn.answer for turn in conversation.turns] == ["one two three four five six seven ei"]


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("Why?", "> Why?\n"),
        ("a line\n" * 3711, "> a line\n" + "a line\n" * 4 + "… and 3,706 more lines\n"),
        ("x" * 200_000, f"> {'x' * 999}…\n"),
    ],
)
def test_of_a_long_question_the_beginning_is_shown_again(question: str, shown: str) -> None:
    on = screen("plain")
    show_turn(Turn(question, "So.", tally_of(answer_events("So."))), on)
    assert written(on.out) == f"{shown}So.\n"


def test_of_a_long_question_without_an_answer_a_line_is_shown() -> None:
    on = screen("plain")
    restored = Restored("one", 1, 0.0, (), False, "a line\n" * 3711)
    show_restored(restored, Options(), on)
    last = written(on.err).splitlines()[-1]
    assert last.startswith("its last question has no answer: a line a line")
    assert len(last) < 100


def test_an_unknown_time_of_the_first_token_is_not_told() -> None:
    tally = tally_of(answer_events("So it was."))
    assert tally.finished is not None
    assert len(formatting.first_token(tally)) == 1
    tally.finished = replace(tally.finished, first_token_s=0.0)
    assert formatting.first_token(tally) == []
