"""Valid names that a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST_BEGINNING = 3  # characters of a name that say which one is meant


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """At most ``most`` of the known names that begin with ``name``, or else resemble it; case is ignored."""
    import difflib

    by_lower = {each.lower(): each for each in known}
    typed = name.lower()
    begun = [each for each in by_lower if len(typed) >= SHORTEST_BEGINNING and each.startswith(typed)]
    found = begun or difflib.get_close_matches(typed, by_lower, most)
    return [by_lower[each] for each in found[:most]]


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """A question for the end of an error, as in "; did you mean 'small'?"; empty if no known name is near."""
    found = [f"'{each}'" for each in nearest(name, known, most)]
    return f"; did you mean {' or '.join(found)}?" if found else ""
