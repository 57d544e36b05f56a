"""The slash commands: each ``cmd_*`` method is one, with its docstring as help and ``complete_*`` for completion."""

from __future__ import annotations

from collections.abc import Iterable

from triforce_chat.ui.answer_commands import AnswerCommands
from triforce_chat.ui.command_table import Choice
from triforce_chat.ui.document_commands import DocumentCommands
from triforce_chat.ui.panel_help import EXPLAINED, PANEL
from triforce_chat.ui.session_commands import SessionCommands
from triforce_chat.ui.tables import show_table


class Commands(DocumentCommands, AnswerCommands, SessionCommands):
    """The slash commands of a conversation."""

    def cmd_help(self, name: str) -> None:
        """Show the commands, or one of them; /help panel explains the figures.

        Usage: [COMMAND]
        """
        wanted = name.removeprefix("/")
        if wanted == PANEL:
            return show_table(("figure", "meaning"), EXPLAINED, self._screen)
        shown = [self.named(wanted)] if wanted else self.all.values()
        rows = [[f"/{command.name} {command.arguments}".strip(), command.help] for command in shown]
        return show_table(("", ""), rows, self._screen)

    def complete_help(self) -> Iterable[Choice]:
        commands = [(command.name, command.help) for command in self.all.values()]
        return [*commands, (PANEL, "What each figure of the panel means.")]
