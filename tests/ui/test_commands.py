from __future__ import annotations

import io
import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from rich.console import Console
from support.chat_screen import Chat
from support.consoles import written

from triforce_chat.chat.events import ChatEvent
from triforce_chat.documents import Document, Page
from triforce_chat.errors import DocumentError, UsageError
from triforce_chat.ui.clipboard import copy_to_clipboard
from triforce_chat.ui.command_table import Next
from triforce_chat.ui.export import describe_document
from triforce_chat.ui.panel_help import ACCEPTED, CACHE, DRAFTING
from triforce_chat.ui.prompt import block_is_open, is_command, message_text
from triforce_chat.ui.terminal import Screen


def test_a_whole_chat() -> None:
    chat = Chat("Night.", "Day.")
    out, err = chat.ask("/doc book.pdf 1-3\n", "When?\n", "\n", "//slash\n", "/exit\n", "never asked\n")
    assert out == "Night.\nDay.\n"
    assert chat.conversation.questions == ["When?", "/slash"]
    assert chat.read == [("book.pdf", "1-3")]
    assert "added book.pdf: 5 pages (2, 4 without text), " in err
    assert (chat.code, chat.conversation.prefills) == (0, 1)


def test_an_error_is_one_line_and_the_chat_goes_on() -> None:
    chat = Chat("yes")
    out, err = chat.ask("/doc missing.pdf", "/nonsense", "still there?")
    assert out == "yes\n"
    assert err.startswith("error: missing.pdf cannot be read\nerror: there is no command /nonsense; /help")
    assert chat.code == UsageError.exit_code


def test_the_closest_command_is_suggested() -> None:
    assert "did you mean /stats?" in Chat().ask("/stat")[1]
    assert "there is no command /stat; did you mean /stats?" in Chat().ask("/help stat")[1]


def test_help_lists_every_command_with_its_arguments() -> None:
    _, err = Chat().ask("/help")
    for line in ("/doc PATH [PAGES]", "/compare QUESTION", "/set [NAME VALUE]", "/export FILE", "/quit"):
        assert line in err
    assert len(Chat().ask("/help doc")[1].splitlines()) == 1


def test_pages() -> None:
    chat = Chat()
    assert "no document yet" in chat.ask("/pages")[1]
    chat.ask("/doc book.pdf")
    assert chat.ask("/pages")[1] == "book.pdf: 5 pages (2, 4 without text)\n"
    shown = chat.ask("/pages 2-3,5")[1]
    assert shown == "book.pdf p. 2\n(no text)\nbook.pdf p. 3\nIt was day.\nbook.pdf p. 5\nEnd.\n"
    assert "no document has 99" in chat.ask("/pages 99")[1]
    assert "is not a page or a range of pages" in chat.ask("/pages x")[1]
    assert chat.ask("/pages 4-")[1].count("book.pdf") == 2


def test_chapters() -> None:
    chat = Chat()
    assert "no document yet" in chat.ask("/chapters")[1]
    chat.ask("/doc book.pdf")
    assert chat.ask("/chapters")[1] == "book.pdf: 2 chapters\n1  1 Night  p. 1\n2  2 Day    p. 3\n"
    assert chat.ask("/chapter 2")[1] == "book.pdf, 2 Day\nIt was day.End.\n"
    assert chat.ask("/chapter night")[1].startswith("book.pdf, 1 Night\n")
    assert "has no chapter 7; it has 1-2" in chat.ask("/chapter 7")[1]
    assert "/chapter needs a number" in chat.ask("/chapter")[1]


def test_set_and_system() -> None:
    chat = Chat()
    assert "temperature = 0.6\n" in chat.ask("/set")[1]
    assert chat.ask("/set temperature 0")[1] == "temperature = 0\n"
    assert chat.ask("/set top_p=0.5", "/set top_p")[1] == "top_p = 0.5\n" * 2
    assert "no setting heat; there are temperature" in chat.ask("/set heat")[1]
    assert chat.ask("/system Be brief.")[1] == "Be brief.\n"
    assert chat.ask('/system ""')[1] == "the system prompt is empty\n"


def test_stats_retry_tokens_clear() -> None:
    chat = Chat("one", "two")
    assert "ask something first" in chat.ask("/stats")[1]
    assert "nothing to retry" in chat.ask("/retry")[1]
    assert chat.ask("q", "/retry")[0] == "one\ntwo\n"
    assert chat.conversation.questions == ["q", "q"]
    stats = chat.ask("/stats")[1]
    assert "4.0 tokens per round" in stats
    assert "retrieval cache built once (first use), at token 41,000" in stats
    assert stats.count("retrieval cache built") == 1, "each figure is there once"
    assert "drafts accepted" not in stats, "the table has that"
    assert "75 %" in stats
    assert "context 0 / 131,072 tokens (0 %), 131,072 left" in chat.ask("/tokens")[1]
    chat.ask("/clear")
    assert chat.conversation.turns == []


def test_continue() -> None:
    chat = Chat("One", " and two")
    assert "there is no answer to continue" in chat.ask("/continue")[1]
    assert chat.ask("q", "/continue")[0] == "One\n and two\n"
    assert [turn.answer for turn in chat.conversation.turns] == ["One and two"]


def test_stats_draw_the_course_of_the_answer() -> None:
    chat = Chat("x" * 60)
    lines = chat.ask("q", "/stats")[1].splitlines()
    at = lines.index("accepted in each of 5 rounds, 3 to 3")
    assert lines[at + 1 : at + 3] == ["          █████", "built     ^"]


def test_plain_has_words_where_others_have_drawings() -> None:
    chat = Chat("x" * 60, detail="plain")
    said = "".join(chat.ask("q", "/stats", "/help doc"))
    assert "target: accepted 15, proposed 20, tested 20, rounds 5, acceptance 75 %\n" in said
    assert "accepted per round: 3.0 of 5 rounds, 3 to 3\ncache built in round: 1\n" in said
    assert "/doc PATH [PAGES]: Add a document to this chat, or those of a folder or pattern.\n" in said
    assert not re.search("[\u2500-\u259f]", said)


class TerminalFile(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_copy() -> None:
    chat = Chat("Zwölf\x1b[2J Boxer.\n")
    assert "there is no answer to copy" in chat.ask("/copy")[1]
    assert "standard output is not a terminal" in chat.ask("q", "/copy")[1]
    chat.out.file = TerminalFile()
    assert "sent 12 characters" in chat.ask("/copy")[1]


def test_what_a_copy_writes() -> None:
    screen = Screen(Console(file=TerminalFile()), Console(file=io.StringIO()), "bare")
    copy_to_clipboard("Zwölf", screen)
    assert written(screen.out) == "\x1b]52;c;WnfDtmxm\x07"
    with pytest.raises(UsageError, match="has 80,000 bytes"):
        copy_to_clipboard("ö" * 40_000, screen)
    with pytest.raises(UsageError, match="not a terminal that has one"):
        copy_to_clipboard(
            "x", Screen(Console(file=TerminalFile(), _environ={"TERM": "dumb"}), screen.err, "plain")
        )


def test_editor_needs_a_keyboard() -> None:
    chat = Chat("fine")
    out, err = chat.ask("/editor draft", "still there?")
    assert (out, "needs a keyboard" in err) == ("fine\n", True)


def test_export_as_json(tmp_path: Path) -> None:
    chat, file = Chat("Night."), tmp_path / "chat.json"
    chat.ask("/doc book.pdf", "When?", f"/save {file}")
    told = json.loads(file.read_text())
    assert told["documents"] == [{"title": "book.pdf", "unit": "page", "pages": [1, 2, 3, 4, 5]}]
    assert told["system"] == "You answer from the document."
    (turn,) = told["turns"]
    assert (turn["question"], turn["text"], turn["finish_reason"]) == ("When?", "Night.", "stop")
    assert turn["timing"]["ms_per_token"] == 20.0
    assert "ends in .md or .json" in chat.ask(f"/export {tmp_path / 'chat.txt'}", "/export")[1]
    assert len([*tmp_path.iterdir()]) == 1


def test_compare() -> None:
    chat = Chat("same")
    assert "needs a question" in chat.ask("/compare")[1]
    assert chat.ask("/compare why?")[0].startswith("with speculation:\nsame\nwithout:\nsame\ntokens/s")


def test_save_never_destroys_a_file_that_it_did_not_write(tmp_path: Path) -> None:
    chat, file = Chat("**Night**\x1b[2J."), tmp_path / "two words.md"
    chat.ask("/doc book.pdf", "When was it?", f"/export {file}")
    text = file.read_text()
    assert "- book.pdf: 5 pages" in text
    assert "\n> When was it?\n\n**Night**.\n\n*8 tokens · 20.0 ms/token" in text
    assert "wrote 1 turn" in chat.ask(f"/export {file}")[1]
    other = tmp_path / "other.md"
    other.write_text("precious")
    assert "exists; nothing was written" in chat.ask(f"/save {other}")[1]
    assert other.read_text() == "precious"
    assert "No such file" in chat.ask(f"/save {tmp_path}/no/where.md")[1]
    assert chat.code == 1


def test_a_path_with_spaces_and_digits(tmp_path: Path) -> None:
    file = tmp_path / "part 2"
    file.touch()
    chat = Chat()
    chat.ask(f"/doc {file}", f'/doc "{file}" 3-4', f"/doc {tmp_path}/part 7")
    assert chat.read == [(str(file), None), (str(file), "3-4"), (f"{tmp_path}/part", "7")]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", True),
        ("/hepl", True),
        ("//help", False),
        ("hello /help", False),
        ("", False),
        ("/ alone", False),
    ],
)
def test_is_command(text: str, command: bool) -> None:
    assert is_command(text, {"help"}) is command


def test_an_existing_path_begins_a_question(tmp_path: Path) -> None:
    assert not is_command(f"{tmp_path} is a folder, why?", {"help"})
    assert is_command(f"{tmp_path}/missing is a folder, why?", {"help"})


def test_blocks() -> None:
    assert block_is_open('"""')
    assert block_is_open('"""a\nb')
    assert not block_is_open('"""a\nb"""')
    assert message_text('"""\na\n  b\n"""') == "a\n  b"
    assert message_text("  plain ") == "plain"


def test_describe_cleans_the_title() -> None:
    assert describe_document(Document("a\x1b[2Jb", "x", (Page(1, "t"),), "section")) == "ab: 1 section"


def test_help_explains_the_panel() -> None:
    said = Chat().ask("/help panel")[1]
    assert all(label in said for label in (DRAFTING, ACCEPTED, CACHE, "tokens of the limit"))


def test_undo_and_edit() -> None:
    chat = Chat("one", "two", "three")
    assert "there is no question to remove" in chat.ask("/undo")[1]
    assert "no question to change" in chat.ask("/edit")[1]
    chat.ask("first?", "second?")
    assert "removed: second?" in chat.ask("/undo")[1]
    assert [turn.question for turn in chat.conversation.turns] == ["first?"]
    assert chat.ask("/edit changed?")[0] == "three\n"
    assert [turn.question for turn in chat.conversation.turns] == ["changed?"]
    assert "needs a keyboard or a question" in chat.ask("/edit")[1]


def test_a_folder_or_a_pattern_adds_all_of_its_documents(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "c.py"):
        (tmp_path / name).write_text("text")
    chat = Chat()
    chat.ask(f"/doc {tmp_path}")
    assert chat.read == [(str(tmp_path / "a.txt"), None), (str(tmp_path / "b.md"), None)]
    chat.ask(f"/doc {tmp_path}/*.md 1-2")
    assert chat.read[2:] == [(str(tmp_path / "b.md"), "1-2")]
    told = chat.ask(f"/doc {tmp_path}")[1]
    assert told == "a.txt is already in this chat\nb.md is already in this chat\n"
    assert [document.title for document in chat.conversation.documents] == ["a.txt", "b.md"]
    (tmp_path / "empty.txt").touch()
    (tmp_path / "new.txt").touch()
    assert chat.ask(f"/doc {tmp_path}")[1].startswith(
        f"{tmp_path}/empty.txt: empty, skipped\na.txt is already"
    )
    assert "empty.txt: empty" in chat.ask(f"/doc {tmp_path}/empty.txt")[1]
    assert chat.code == DocumentError.exit_code


def test_drop() -> None:
    chat = Chat()
    assert "no document to drop" in chat.ask("/drop")[1]
    chat.ask("/doc a.pdf", "/doc b.pdf", "/doc c.pdf")
    assert "/drop needs one of: 1 a.pdf, 2 b.pdf, 3 c.pdf" in chat.ask("/drop d.pdf")[1]
    assert "removed b.pdf" in chat.ask("/drop b.pdf")[1]
    assert "removed c.pdf" in chat.ask("/drop 2")[1]
    assert [document.title for document in chat.conversation.documents] == ["a.pdf"]


def test_retry_at_another_temperature() -> None:
    chat = Chat("one", "two", "three")
    chat.ask("/set temperature 0", "q")
    assert "nothing would change" in chat.ask("/retry")[1]
    seen: list[str] = []
    ask = chat.conversation.ask

    def watched(question: str) -> Generator[ChatEvent, None, None]:
        seen.append(chat.conversation.settings["temperature"])
        return ask(question)

    chat.conversation.ask = watched  # type: ignore[method-assign]
    assert chat.ask("/retry 0.7")[0] == "two\n"
    assert (seen, chat.conversation.settings["temperature"]) == (["0.7"], "0")
    assert chat.ask("/set top_p 0.5", "/retry")[0] == "three\n"  # now something would change


def test_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", str(tmp_path / "config.toml"))
    chat = Chat()
    assert "there are no roles yet" in chat.ask("/role")[1]
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "pirate.md").write_text("Answer like a pirate.\n")
    (tmp_path / "own.txt").write_text("Answer in verse.")
    assert "roles: pirate" in chat.ask("/role")[1]
    assert chat.ask("/role pirate")[1] == "Answer like a pirate.\n"
    assert chat.conversation.system == "Answer like a pirate."
    assert chat.ask(f"/role {tmp_path / 'own.txt'}")[1] == "Answer in verse.\n"
    assert "no role and no file 'cook'; roles: pirate" in chat.ask("/role cook")[1]


def test_going_on_with_another_model_or_session() -> None:
    chat = Chat("one")
    assert chat.ask("/model", "/model large", "never asked")[0] == ""
    assert chat.repl.next == Next(model="large")
    chat = Chat("one")
    assert "/session needs a name" in chat.ask("/session")[1]
    chat.ask("/session work")
    assert chat.repl.next == Next(session="work")
