"""The slash commands about answers."""

from __future__ import annotations

from rich.text import Text

from triforce_chat.errors import UsageError
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean, one_line
from triforce_chat.ui.clipboard import copy_to_clipboard
from triforce_chat.ui.command_table import SHOWN_QUESTION, CommandTable
from triforce_chat.ui.compare import show_comparison
from triforce_chat.ui.statistics import show_statistics
from triforce_chat.ui.terminal import print_line
from triforce_chat.ui.thoughts import STYLE


class AnswerCommands(CommandTable):
    """Figures of the last answer, and asking again."""

    def cmd_stats(self, _arguments: str) -> None:
        """Show the statistics of the last answer."""
        tally = self.last
        if tally is None:
            raise UsageError("there are no statistics yet: ask something first")
        show_statistics(tally, self._screen)

    def cmd_thought(self, _arguments: str) -> None:
        """Show what the model thought before its last answer."""
        tally = self.last
        if tally is None or not tally.thought:
            raise UsageError(
                "the last answer has no thought; /set think on asks a model that can think for one"
            )
        style = STYLE if self._screen.detail == "live" else ""
        print_line(self._screen.notes, Text(clean(tally.thought), style))

    def cmd_compare(self, question: str) -> None:
        """Answer a question with and without speculation, side by side.

        Usage: QUESTION
        """
        if not question:
            raise UsageError("/compare needs a question: /compare QUESTION")
        limit = self._conversation.context_limit
        show_comparison(self._conversation.compare(question), self._screen, limit=limit)

    def cmd_continue(self, _arguments: str) -> None:
        """Continue an answer that was stopped, by you or by a limit."""
        turns = self._conversation.turns
        self._show(self._conversation.resume(), turns[-1].answer if turns else "")

    def cmd_copy(self, _arguments: str) -> None:
        """Copy the last answer to the clipboard of your terminal."""
        if not self._conversation.turns:
            raise UsageError("there is no answer to copy")
        text = clean(self._conversation.turns[-1].answer).strip()
        copy_to_clipboard(text, self._screen)
        self._screen.note(f"sent {formatting.count(len(text), 'character')} to the terminal's clipboard")

    def cmd_editor(self, text: str) -> None:
        """Write the question in $EDITOR; Ctrl-X Ctrl-E does the same.

        Usage: [TEXT]
        """
        self.draft = text

    def cmd_retry(self, temperature: str) -> None:
        """Answer the last question again, once at another temperature if one is given.

        Usage: [TEMPERATURE]
        """
        before = self._conversation.options()["temperature"]
        if not temperature and self._would_repeat():
            return self._screen.note(
                "nothing would change: at temperature 0 or with a seed the same answer comes again; "
                "/retry 0.7 draws another one"
            )
        if temperature:
            self._conversation.set_option("temperature", temperature)
        try:
            return self._show(self._conversation.retry())
        finally:
            if temperature:
                self._conversation.set_option("temperature", before)

    def _would_repeat(self) -> bool:
        """True if asking again under the same settings must give the last answer."""
        options, last = self._conversation.options(), self.last
        complete = last is not None and last.finished is not None and last.finished.reason != "interrupted"
        greedy = _as_number(options["temperature"]) == 0
        seeded = options.get("seed", "auto") != "auto"
        return complete and (greedy or seeded) and self.answered_with == self._conditions()

    def _conditions(self) -> tuple[object, ...]:
        conversation = self._conversation
        return (sorted(conversation.options().items()), conversation.system, len(conversation.documents))

    def remember_conditions(self) -> None:
        """Remember what an answer that was just made depended on."""
        self.answered_with = self._conditions()

    def cmd_undo(self, _arguments: str) -> None:
        """Remove the last question and its answer."""
        turn = self._conversation.undo()
        self._screen.note(f"removed: {formatting.shorten(one_line(turn.question), SHOWN_QUESTION)}")

    def cmd_edit(self, question: str) -> None:
        """Answer a changed question in place of the last one; without one, edit the last one at the prompt.

        Usage: [QUESTION]
        """
        if question:
            return self._show(self._conversation.revise(question))
        if not self._conversation.turns:
            raise UsageError("there is no question to change")
        self.prompted = f"/edit {self._conversation.turns[-1].question}"
        return None


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
