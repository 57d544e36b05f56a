"""The slash commands about a session: its settings and system prompt, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import expanduser
from pathlib import Path

from triforce_chat.chat.conversation import SavedSession
from triforce_chat.errors import UsageError
from triforce_chat.settings.roles import read_role, role_names, roles_folder
from triforce_chat.settings.umask import write_named
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean
from triforce_chat.ui.command_table import WRITERS, Choice, CommandTable, Next
from triforce_chat.ui.tables import show_table


class SessionCommands(CommandTable):
    """Settings, system prompt and model; other sessions; files; the end."""

    def cmd_role(self, name: str) -> None:
        """List the roles, or use one, or a file, as the system prompt.

        Usage: [ROLE]
        """
        if not name:
            names = role_names()
            there = f"roles: {', '.join(names)}" if names else "there are no roles yet"
            return self._screen.note(f"{clean(there)}; they are the text files in {roles_folder()}")
        self._conversation.set_system(read_role(name))
        return self._screen.note(self._conversation.system or "the system prompt is empty")

    def complete_role(self) -> Iterable[Choice]:
        return [(name, "") for name in role_names()]

    def cmd_model(self, name: str) -> None:
        """Show the model, or switch to another one; documents and turns stay.

        Usage: [NAME]
        """
        if not name:
            return self._screen.note(self._model())
        return self._go_on(Next(model=name))

    def complete_model(self) -> Iterable[Choice]:
        return [(name, "") for name in self._models()]

    def cmd_session(self, name: str) -> None:
        """Switch to another session, or start a new one with this name.

        Usage: NAME
        """
        if not name:
            raise UsageError("/session needs a name: /session NAME; /sessions lists them")
        self._go_on(Next(session=name))

    def complete_session(self) -> Iterable[Choice]:
        return [(saved.name, ", ".join(saved.titles)) for saved in self._sessions()]

    def _go_on(self, wanted: Next) -> None:
        self._check(wanted)
        self.next, self.leaving = wanted, True

    def cmd_system(self, text: str) -> None:
        """Show or change the system prompt; "" clears it.

        Usage: [TEXT]
        """
        if text:
            self._conversation.set_system("" if text in ('""', "''") else text)
        self._screen.note(self._conversation.system or "the system prompt is empty")

    def cmd_set(self, arguments: str) -> None:
        """Show the settings, or change one.

        Usage: [NAME VALUE]
        """
        name, value = [*arguments.replace("=", " ", 1).split(None, 1), "", ""][:2]
        options = self._conversation.options()
        if value or (name and name not in options):
            self._conversation.set_option(name, value.strip())
            options = self._conversation.options()
        shown = {name: options[name]} if name in options else options
        self._screen.note(*(f"{name} = {value}" for name, value in shown.items()))

    def complete_set(self) -> Iterable[Choice]:
        return [(name, f"now {value}") for name, value in self._conversation.options().items()]

    def cmd_export(self, file: str) -> None:
        """Write the conversation to a file: .md for reading, .json with all measurements.

        Usage: FILE
        """
        path = Path(expanduser(file.strip("\"'")))
        write = WRITERS.get(path.suffix.lower())
        if write is None:
            raise UsageError("/export needs a file that ends in .md or .json: /export FILE")
        if path.exists() and path.resolve() not in self._saved:
            raise UsageError(f"{path} exists; nothing was written, choose another name")
        try:
            write_named(path, write(self._conversation))
        except ValueError:
            raise UsageError(f"{path} cannot be the name of a file; nothing was written") from None
        self._saved.add(path.resolve())
        self._screen.note(f"wrote {formatting.count(len(self._conversation.turns), 'turn')} to {path}")

    def cmd_save(self, file: str) -> None:
        """Write the conversation to a file, as /export does.

        Usage: FILE
        """
        self.cmd_export(file)

    def cmd_sessions(self, _arguments: str) -> None:
        """List the sessions; * marks this one."""
        saved = self._sessions()
        if saved:
            show_table(("session", "turns", "used", "documents"), [*map(_row, saved)], self._screen)
        if not any(each.current for each in saved):
            self._screen.note("this chat is saved as a session once you ask something")

    def cmd_tokens(self, _arguments: str) -> None:
        """Show how much of the context is used."""
        used, limit = self._conversation.context_used, self._conversation.context_limit
        left = f", {max(0, limit - used):,} left" if limit else ", without a limit"
        self._screen.note(f"context {formatting.context_usage(used, limit)}{left}")

    def cmd_clear(self, _arguments: str) -> None:
        """Start a new session with the same documents."""
        self._conversation.clear()
        self._screen.note("new session; the documents stay")

    def cmd_exit(self, _arguments: str) -> None:
        """Exit; Ctrl-D does the same."""
        self.leaving = True

    def cmd_quit(self, arguments: str) -> None:
        """Exit, as /exit does."""
        self.cmd_exit(arguments)


def _row(saved: SavedSession) -> list[str]:
    used, titles = formatting.local_time(saved.used), ", ".join(saved.titles)
    cells = (f"{saved.name}{' *' * saved.current}", f"{saved.turns:,}", used, titles)
    return [clean(cell) for cell in cells]
