"""Tables of what is read from files and written in a prescribed form: PDF text, and answers of JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from records import Json, number, record, rows, source, table

PDF, BOOKS, CLIENTS = "pdf-text", "structure", "cpu-many-clients"
BLIND, MENDED = "structure-collection-blind", "structure-collection"
RIGHT = ("chapters", "order")
WORD = "Microsoft Word"
PROGRAMS = {"LibreOffice": "LibreOffice", "pdfTeX": "TeX", "Skia": "Chromium", "ReportLab": "ReportLab"}


def pdf_text() -> str:
    """Our text beside pdftotext's, and both beside the true one, by the program that made the files."""
    header = (
        *("files made by", "files", "words: median", "10 %", "order: median", "10 %"),
        *("true order, ours: median", "10 %", "pdftotext's: median", "10 %"),
    )
    compared = [row for row in rows(PDF) if "words" in row]
    groups = {"all": compared} | {
        name: [row for row in compared if _program(row) == name]
        for name in (*PROGRAMS.values(), WORD, "other programs")
    }
    lines = [(name, str(len(group)), *_figures(group)) for name, group in groups.items()]
    return "\n".join((table(header, lines), _left_out(), source(PDF)))


def _program(row: Mapping[str, Any]) -> str:
    if WORD in row["program"].replace("®", ""):
        return WORD
    made = "true_order" in row  # by make_pdfs.py
    found = (name for mark, name in PROGRAMS.items() if made and mark in row["program"])
    return next(found, "other programs")


def _figures(group: Sequence[Json]) -> list[str]:
    names = ("words", "order", "true_order", "poppler_true_order")
    found = [sorted(row[name] for row in group if name in row) for name in names]
    return [
        number(figure, 3) if values else ""
        for values in found
        for figure in (_tenths(values) if values else (None, None))
    ]


def _tenths(values: Sequence[float]) -> tuple[float, float]:
    return median(values), values[len(values) // 10]


def _left_out() -> str:
    left = [f"`{row['file']}` ({row['left_out']})" for row in rows(PDF) if "left_out" in row]
    ligatures = record(PDF)["ligatures"]
    return f"Ligatures left: {ligatures}. Left out: {'; '.join(left)}.\n"


def structure() -> str:
    """The documents of each format whose chapters and reading order are right, and those that are not."""
    found = rows(BOOKS)
    lines = [
        (f"`{kind}`", str(len(group)), *(str(sum(row[name] for row in group)) for name in RIGHT))
        for kind in dict.fromkeys(row["format"] for row in found)
        for group in [rows(BOOKS, format=kind)]
    ]
    total = ("all", str(len(found)), *(str(record(BOOKS)[name]) for name in RIGHT))
    wrong = [f"`{row['file']}` ({_wrong(row)})" for row in found if not all(row[name] for name in RIGHT)]
    header = ("format", "documents", "chapters right", "reading order right")
    return "\n".join(
        (table(header, [*lines, total]), f"Wrong: {'; '.join(wrong) or 'none'}.\n", source(BOOKS))
    )


def collection() -> str:
    """Documents of other programs: what was right when they were read for the first time, and now."""
    header = (
        *("format", "documents", "chapters right at first sight", "now"),
        *("reading order right at first sight", "now"),
    )
    lines = [_before_and_now(kind) for kind in dict.fromkeys(row["format"] for row in rows(BLIND))]
    totals = (str(record(read)[name]) for name in RIGHT for read in (BLIND, MENDED))
    wrong = [
        f"`{row['file']}` ({_wrong(row)})" for row in rows(BLIND) if not all(row[name] for name in RIGHT)
    ]
    return "\n".join(
        (
            table(header, [*lines, ("all", str(len(rows(BLIND))), *totals)]),
            f"Wrong at first sight: {'; '.join(wrong)}.\n",
            source(BLIND, MENDED),
        )
    )


def _before_and_now(kind: str) -> tuple[str, ...]:
    found = [rows(read, format=kind) for read in (BLIND, MENDED)]
    right = (str(sum(row[name] for row in group)) for name in RIGHT for group in found)
    return f"`{kind}`", str(len(found[0])), *right


def _wrong(row: Json) -> str:
    counted = f"{row['found']} of {row['wanted']} chapters" if not row["chapters"] else ""
    missed = f"{row['missing']} of {row['sentences']} sentences missing, or out of order"
    return ", ".join(filter(None, (counted, missed if not row["order"] else "")))


def clients() -> str:
    """Who was answered by a server that got a conversation of very many messages, and when."""
    read = record(CLIENTS)
    asked, long = rows(CLIENTS)[:-1], rows(CLIENTS)[-1]
    header = ("asked", "answered", "median", "slowest")
    lines = [
        (
            f"{len({row['client'] for row in asked})} clients, {read['questions']} questions",
            f"{read['answered']} of {read['questions']}",
            f"{number(read['median_s'], 1)} s",
            f"{number(read['slowest_s'], 1)} s",
        ),
        (
            f"one client, {read['messages']:,} messages",
            "yes" if long["status"] == 200 else f"refused: {long['refusal']}",
            "",
            f"{number(long['seconds'], 1)} s",
        ),
    ]
    return f"{table(header, lines)}\n{source(CLIENTS)}"


def schema_answers() -> str:
    """Valid answers by temperature and stack."""
    name = "cpu-schema-answers"
    stacks = dict.fromkeys(row["stack"] for row in rows(name))
    lines = [
        (f"`{stack}`", *(_valid(rows(name, stack=stack, temperature=heat)) for heat in (0, 1)))
        for stack in stacks
    ]
    schemas = len({row["schema"] for row in rows(name)})
    header = (f"{schemas} schemas, valid answers", "T=0", "T=1")
    return f"{table(header, lines)}\n{source(name)}"


def _valid(found: Sequence[Json]) -> str:
    return f"{sum(row['valid'] for row in found):,} of {sum(row['answers'] for row in found):,}"


def schema_speed() -> str:
    """Tokens per second with a schema and without one."""
    header = ("model", "stack", "tokens/s without a schema", "with one", "ratio")
    names = ("cpu-schema-speed", "cpu-schema-speed-plain")
    lines = [
        (
            f"`{read['model']}`",
            f"`{read['stack']}`",
            number(read["tokens_per_s"], 1),
            number(read["with_schema"], 1),
            number(read["ratio"]),
        )
        for read in map(record, names)
    ]
    return f"{table(header, lines)}\n{source(*names)}"


TABLES: dict[str, Callable[[], str]] = {
    "pdf-text": pdf_text,
    "structure": structure,
    "structure-collection": collection,
    "many-clients": clients,
    "schema-answers": schema_answers,
    "schema-speed": schema_speed,
}
