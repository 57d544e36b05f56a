"""The slash commands about documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import exists, expanduser

from triforce_chat.documents import Document
from triforce_chat.documents.files import find_files, read_found
from triforce_chat.errors import UsageError
from triforce_chat.ui import formatting, source_lines
from triforce_chat.ui.clean import clean
from triforce_chat.ui.command_table import PAGES, Choice, CommandTable
from triforce_chat.ui.document_views import show_chapter, show_chapters, show_hits, show_pages
from triforce_chat.ui.export import describe_document


class DocumentCommands(CommandTable):
    """Adding, removing, showing and searching documents."""

    def cmd_doc(self, arguments: str) -> None:
        """Add a document to this chat, or those of a folder or pattern.

        Usage: PATH [PAGES]
        """
        path, pages = _path_and_pages(arguments)
        if not path:
            raise UsageError("/doc needs a path: /doc PATH [PAGES], for instance /doc book.pdf 12-40")
        documents, skipped = read_found(
            find_files([path]), [path], lambda file: self._read_document(file, pages)
        )
        self._screen.note(*skipped)
        for document in documents:
            if self._has(document):
                self._screen.note(f"{clean(document.title)} is already in this chat")
                continue
            tokens = self._conversation.add(document)
            self._screen.note(f"added {describe_document(document)}, {formatting.count(tokens, 'token')}")
        self._show(self._conversation.prefill())

    def _has(self, document: Document) -> bool:
        """Whether the chat has these pages under this title."""
        there = self._conversation.documents
        return any((each.title, each.pages) == (document.title, document.pages) for each in there)

    def cmd_drop(self, name: str) -> None:
        """Remove a document from this chat, by its title or number in /pages.

        Usage: DOCUMENT
        """
        number = self._document_number(name)
        dropped = self._conversation.drop(number)
        self._screen.note(f"removed {clean(dropped.title)}; the conversation stays as it is")

    def complete_drop(self) -> Iterable[Choice]:
        return [
            (document.title, formatting.count(len(document.pages), document.unit))
            for document in self._conversation.documents
        ]

    def _document_number(self, name: str) -> int:
        """The index of the document that a user names. Raises UsageError."""
        titles = [document.title for document in self._conversation.documents]
        found = [at for at, title in enumerate(titles) if title == name]
        if not found and name.isdecimal() and 0 < int(name) <= len(titles):
            found = [int(name) - 1]
        if not found:
            there = ", ".join(f"{at} {clean(title)}" for at, title in enumerate(titles, 1))
            raise UsageError(f"/drop needs one of: {there}" if titles else "no document to drop")
        return found[0]

    def cmd_pages(self, arguments: str) -> None:
        """List the documents, or show pages as the model sees them.

        Usage: [PAGES]
        """
        documents = self._documents()
        if not arguments:
            return self._screen.note(*map(describe_document, documents))
        return show_pages(documents, arguments, self._screen)

    def cmd_chapters(self, _arguments: str) -> None:
        """List the chapters of the documents."""
        show_chapters(self._documents(), self._screen)

    def cmd_chapter(self, wanted: str) -> None:
        """Show a chapter as the model sees it.

        Usage: NUMBER|TITLE
        """
        if not wanted:
            raise UsageError(
                "/chapter needs a number or words of a title: /chapter NUMBER; /chapters lists them"
            )
        show_chapter(self._documents(), wanted, self._screen)

    def cmd_find(self, words: str) -> None:
        """Search the documents.

        Usage: WORDS
        """
        if not words:
            raise UsageError("/find needs words: /find WORDS")
        show_hits(self._documents(), words, self._screen)

    def _documents(self) -> Sequence[Document]:
        """The documents. Raises UsageError if there are none."""
        if not self._conversation.documents:
            raise UsageError("no document yet; add one with /doc PATH")
        return self._conversation.documents

    def cmd_sources(self, _arguments: str) -> None:
        """Show the pages that the last answer came from."""
        sourced = self.last.sourced if self.last else None
        if sourced is None:
            raise UsageError("there are no sources yet: ask something about a document first")
        for line in source_lines.details(sourced):
            self._screen.notes.print(line)


def _path_and_pages(arguments: str) -> tuple[str, str | None]:
    """Split the arguments of /doc; a page range counts as such only if the whole is not a file."""
    path, _, last = arguments.rpartition(" ")
    whole = arguments.strip("\"'")
    if path and PAGES.fullmatch(last) and not exists(expanduser(whole)):
        return path.strip(" \"'"), last
    return whole, None
