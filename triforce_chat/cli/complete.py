"""What a shell offers after a flag; where it offers nothing, the shell offers files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


def among(choices: Iterable[str]) -> Complete:
    """Offer those of the choices that begin as the user did."""
    names = tuple(choices)

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def models(incomplete: str) -> list[str]:
    """Offer the models that have a name."""
    from triforce_chat.models.presets import PRESETS

    return among(preset.name for preset in PRESETS)(incomplete)


def answering(incomplete: str) -> list[str]:
    """Offer the models that have a name, and what leaves the choice to the program."""
    return among(("auto",))(incomplete) + models(incomplete)


def drafts(incomplete: str) -> list[str]:
    """Offer the models that have a name, and what stands for a choice or for none."""
    return among(("auto", "none"))(incomplete) + models(incomplete)
