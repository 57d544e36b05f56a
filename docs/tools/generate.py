"""Writes the generated parts of the documentation: reference pages, and tables between markers in all other pages.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. With ``--check`` nothing is written, and the exit
code is 1 if something would change.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import archive
import profiles
import quality
import reference
import speed
import texts
from records import ROOT

MODULES = archive, profiles, quality, reference, speed, texts
TABLES = {name: make for module in MODULES for name, make in module.TABLES.items()}
assert len(TABLES) == sum(len(module.TABLES) for module in MODULES), "two tables have the same name"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DOCS = ROOT / "docs"


def main(check: bool) -> int:
    """Write what changed, or with ``check`` only say so; returns the exit code."""
    used: set[str] = set()
    wanted = {page: filled(page.read_text("utf-8"), used) for page in pages()}
    wanted |= {DOCS / "reference" / f"{name}.md": make() for name, make in reference.PAGES.items()}
    stale = [page for page, text in wanted.items() if not page.exists() or page.read_text("utf-8") != text]
    problems = [
        *broken_links(),
        *(f"no page shows the table {name}" for name in sorted(TABLES.keys() - used)),
    ]
    if check:
        problems += [f"{page.relative_to(ROOT)} is stale: run docs/build and commit it" for page in stale]
    else:
        for page in stale:
            page.parent.mkdir(exist_ok=True)
            page.write_text(wanted[page], "utf-8")
    print("".join(f"{problem}\n" for problem in problems), end="", file=sys.stderr)
    return int(bool(problems))


def broken_links() -> list[str]:
    """Links to missing files in the pages outside of docs/, which Sphinx does not see."""
    return [
        f"{name} links to {link}, which does not exist"
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
        for link in LINK.findall((ROOT / name).read_text("utf-8"))
        if not (ROOT / link).exists()
    ]


def pages() -> list[Path]:
    """All pages that may hold tables."""
    found = [page for page in sorted(DOCS.rglob("*.md")) if not {"reference", "_build"} & set(page.parts)]
    return [ROOT / "README.md", *found]


def filled(text: str, used: set[str]) -> str:
    """The text with its tables as the records have them."""

    def insert(found: re.Match[str]) -> str:
        used.add(found[2])
        return f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}"

    return MARKED.sub(insert, text)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
