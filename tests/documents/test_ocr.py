"""Scanned pages read by tesseract: here a script that stands in for it."""

from __future__ import annotations

import builtins
import io
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pypdf import PdfWriter
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.documents import read
from triforce_chat.documents.ocr import Tesseract
from triforce_chat.errors import DocumentError

Install = Callable[[str], None]


def scan(*pages: str | tuple[int, int] | None) -> bytes:
    """A page of text for each string, a scanned page for each image size, an empty one for None."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1)
    for page in pages:
        if isinstance(page, str):
            canvas.drawString(72, 720, page)
        elif page is not None:
            image = Image.new("RGB", page, (page[0] % 256, 0, 0))
            canvas.drawImage(ImageReader(image), 50, 50, 200, 200)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Pages: text, a scan of 100 x 80 pixels, nothing, another scan, one with an ornament only."""
    made = tmp_path / "scan.pdf"
    made.write_bytes(scan("Printed words.", (100, 80), None, (120, 90), (20, 90)))
    return made


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program called tesseract, and nothing else, on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(script: str) -> None:
        program = folder / "tesseract"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)

    return put


# A PNG's width is at bytes 16 to 19, its height at 20 to 23.
SIZES = """
[ "$*" = "stdin stdout" ] || exit 3
set -- $(/usr/bin/head -c 24 | /usr/bin/od -An -tu1 -j16)
printf 'read %d x %d\\r\\nsecond line\\n\\f' $(($3 * 256 + $4)) $(($7 * 256 + $8))
"""


def test_scanned_pages_keep_their_numbers(path: Path, install: Install) -> None:
    install(SIZES)
    document = read(str(path), ocr=True)
    assert [(page.number, page.text) for page in document.pages] == [
        (1, "Printed words.\n"),
        (2, "read 100 x 80\nsecond line\n"),
        (3, ""),
        (4, "read 120 x 90\nsecond line\n"),
        (5, ""),
    ]
    assert document.warning == "pages 3, 5 contain no text: scanned?"


def test_a_page_that_is_turned(path: Path, install: Install) -> None:
    install(SIZES)
    writer = PdfWriter(clone_from=path)
    writer.pages[1].rotate(90)
    writer.write(path)
    assert read(str(path), ocr=True).pages[1].text.startswith("read 80 x 100\n")


def test_without_the_flag_nothing_is_run(path: Path, install: Install) -> None:
    install("exit 1")
    assert read(str(path)).empty_pages == (2, 3, 4, 5)


def test_a_page_that_fails_is_named(path: Path, install: Install) -> None:
    install(f'[ -e "$0.once" ] && exit 1\n: > "$0.once"\n{SIZES}')
    document = read(str(path), ocr=True)
    assert document.empty_pages == (3, 4, 5)
    assert document.warning is not None
    assert document.warning.endswith("tesseract could not read page 4")


def test_a_page_that_takes_too_long_is_given_up(install: Install, tmp_path: Path) -> None:
    install("exec /bin/sleep 60")
    assert Tesseract(str(tmp_path / "bin" / "tesseract"), seconds=0.1).text(Image.new("L", (99, 99))) is None


def test_images_that_cannot_be_read() -> None:
    class Damaged:
        @property
        def images(self) -> Any:
            raise ValueError("no image")

    assert Tesseract("none").page(Damaged()) is None


@pytest.mark.usefixtures("install")  # an empty PATH
def test_without_tesseract_one_line_and_exit_code_3(path: Path) -> None:
    result = CliRunner().invoke(app, ["ask", str(path), "What?", "--ocr"])
    assert result.exit_code == 3
    line = "pages 2-5 without text, and --ocr needs tesseract: install it or leave out --ocr"
    assert result.stderr == f"error: {path}: {line}\n"


@pytest.mark.usefixtures("install")
def test_nothing_is_needed_where_every_page_has_text(tmp_path: Path) -> None:
    path = tmp_path / "text.pdf"
    path.write_bytes(scan("Printed words."))
    assert read(str(path), ocr=True).text == "Printed words.\n"


def test_without_pillow_one_line(path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(SIZES)
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DocumentError, match="needs Pillow: pip install pillow"):
        read(str(path), ocr=True)
