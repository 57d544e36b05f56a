"""The few terminal functions that the live region uses, to see what is left on the screen."""

from __future__ import annotations

import re

TOKEN = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen_of(output: str) -> list[str]:
    """The lines, scrollback included, after ``output``; fails on a sequence that it does not know."""
    lines, row, column, end = [""], 0, 0, 0
    for found in TOKEN.finditer(output):
        assert found.start() == end, f"unknown sequence at {output[end : end + 20]!r}"
        end = found.end()
        count, code, control, text = found.groups()
        if text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        elif control:
            row, column = (row + 1, 0) if control == "\n" else (row, 0)
            lines += [""] * (row + 1 - len(lines))
        elif code == "A":
            row -= int(count or 1)
            assert row >= 0, "the cursor left the screen"
        elif code == "B":
            row += int(count or 1)
            assert row < len(lines), "the cursor left the lines that were written"
        elif code == "K":
            lines[row] = ""
        else:
            assert code in "mhl", f"unknown code {code}"
    assert end == len(output)
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")
