"""Everything that can be set for a command: the settings, and what concerns one run, its documents and its output."""

from __future__ import annotations

from dataclasses import dataclass

from triforce_chat.errors import UsageError
from triforce_chat.settings.settings import SPECIFICATIONS, Parameters, Settings
from triforce_chat.settings.specification import setting, specifications
from triforce_chat.suggestions import did_you_mean

NOTIFICATIONS = ("off", "bell", "osc9", "osc777")


@dataclass(frozen=True, slots=True)
class Options(Parameters):
    """Options that every command with a model shares, as flags, file and environment gave them."""

    system: str | None = setting(None, "System prompt.", example="Answer in one sentence.")
    role: str | None = setting(
        None,
        "System prompt from a file: a path, or a name in the roles folder next to the configuration file.",
        example="editor",
    )
    no_cache: bool = setting(
        False, "Neither read nor write the document cache on disk.", flags=("--no-cache",)
    )
    cache_size: float | None = setting(
        None,
        "Limit the document cache to this many GB (default: a quarter of the free disk space).",
        flag_minimum=0,
        example=20.0,
    )
    pages: str | None = setting(None, "Only these pages, as in 1-80,90.", persistent=False)
    chapters: str | None = setting(
        None, "Only these chapters, as in 1-4,7, or one named by words of its title.", persistent=False
    )
    until: str | None = setting(
        None, "Read nothing after this page or chapter, as in 120, IV or 'chapter 4'.", persistent=False
    )
    password: str | None = setting(None, "Password for encrypted documents.", persistent=False)
    ocr: bool = setting(False, "Use tesseract to read PDF pages that have no text.", flags=("--ocr",))
    json: bool = setting(False, "Print one JSON object.", flags=("--json",), persistent=False)
    jsonl: bool = setting(False, "Print every event as a JSON line.", flags=("--jsonl",), persistent=False)
    quiet: bool = setting(False, "Print only the answer.", flags=("--quiet", "-q"))
    plain: bool = setting(
        False, "Whole lines only, for screen readers: no panel, colour or redrawing.", flags=("--plain",)
    )
    notify: str = setting(
        "off",
        f"Notify when a long read or answer ends: {', '.join(NOTIFICATIONS)}.",
        choices=NOTIFICATIONS,
    )
    vi: bool = setting(False, "Use vi key bindings at the chat prompt.", flags=("--vi",))
    debug: bool = setting(False, "Show tracebacks.", flags=("--debug",), persistent=False)

    def __post_init__(self) -> None:
        if self.notify not in NOTIFICATIONS:
            hint = did_you_mean(self.notify, NOTIFICATIONS)
            raise UsageError(f"no notify '{self.notify}'; choose one of {', '.join(NOTIFICATIONS)}{hint}")

    @property
    def system_text(self) -> str | None:
        """The system prompt, of the role if one is named. Raises UsageError."""
        from triforce_chat.settings.roles import read_role

        return self.system if self.role is None else read_role(self.role)

    @property
    def settings(self) -> Settings:
        """The settings among the options, checked. Raises UsageError."""
        return Settings(**{spec.name: getattr(self, spec.name) for spec in SPECIFICATIONS})


OPTIONS = specifications(Options)
