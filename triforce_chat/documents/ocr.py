"""Pages without text, read by tesseract where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from triforce_chat.documents.encoding import clean
from triforce_chat.documents.ranges import fold
from triforce_chat.errors import DocumentError

SECONDS = 120  # for one image
LEAST = 64  # pixels; images narrower or lower than that are ornaments


@dataclass(frozen=True, slots=True)
class Tesseract:
    """The program that recognizes text in images."""

    path: str
    seconds: float = SECONDS

    @staticmethod
    def for_pages(numbers: Sequence[int]) -> Tesseract:
        """The one on the PATH; raises ``DocumentError``, naming the pages it was needed for, without it."""
        path, pages = shutil.which("tesseract"), f"page{'s' * (len(numbers) > 1)} {fold(numbers)}"
        if path is None:
            raise DocumentError(
                f"{pages} without text, and --ocr needs tesseract: install it or leave out --ocr"
            )
        try:
            import PIL.Image  # noqa: F401  # pypdf takes images out of pages with it
        except ImportError:
            raise DocumentError(f"{pages} without text, and --ocr needs Pillow: pip install pillow") from None
        return Tesseract(path)

    def page(self, page: Any) -> str | None:
        """The text in the images of a pypdf page, in the file's order; None where one cannot be read."""
        try:
            found = [image.image for image in page.images]
            images = [each.rotate(-page.rotation, expand=True) for each in found if each is not None]
        except Exception:  # a damaged image raises almost anything
            return None
        texts = [self.text(image) for image in images if min(image.size) >= LEAST]
        return None if None in texts else "\n".join(text for text in texts if text)

    def text(self, image: Any) -> str | None:
        """The text in a Pillow image; None where tesseract fails or takes too long."""
        data = BytesIO()
        image.convert("RGB").save(data, "PNG")
        try:
            done = subprocess.run(
                [self.path, "stdin", "stdout"],
                input=data.getvalue(),
                capture_output=True,
                timeout=self.seconds,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return clean(done.stdout.decode("utf-8", "replace")).replace("\f", "").strip()
