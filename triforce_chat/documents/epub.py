"""EPUB files: the spine's documents in order, read in memory and never unpacked to disk."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from urllib.parse import unquote
from zipfile import ZipFile

from bs4 import BeautifulSoup, Tag

from triforce_chat.documents.archive import Archive
from triforce_chat.documents.encoding import decode
from triforce_chat.documents.epub_contents import Entry, entries, placed
from triforce_chat.documents.html import parse_html
from triforce_chat.documents.model import Heading, Parsed, check_length
from triforce_chat.documents.soup import soup
from triforce_chat.errors import DocumentError

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"


def parse_epub(data: bytes) -> Parsed:
    """Sections of every document in the spine. Raises ``DocumentError`` for DRM, bombs and other ZIPs."""
    with ZipFile(BytesIO(data)) as file:
        archive = Archive(file)
        package = _package_name(archive)
        opf = _xml(archive, package)
        names = _spine(opf, posixpath.dirname(package))
        present = [name for name in names if name in archive]
        archive.require(present)
        _refuse_drm(archive, present)
        chapters = _chapters(archive, present)
        contents = _contents(archive, opf, posixpath.dirname(package))
    texts, sections = _texts(chapters)
    headings = placed(contents, sections, texts) or _headings(chapters, sections)
    notices = _notices(chapters.values(), len(names) - len(present))
    return Parsed(texts, _title(opf), notices=notices, headings=headings)


def _chapters(archive: Archive, names: Iterable[str]) -> dict[str, Parsed]:
    """The documents by name. Raises ``DocumentError`` as soon as they hold too much text."""
    found: dict[str, Parsed] = {}
    length = 0
    for name in names:
        found[name] = parse_html(archive.read(name))
        length += sum(map(len, found[name].texts))
        check_length(length)
    return found


def _contents(archive: Archive, opf: BeautifulSoup, folder: str) -> list[Entry]:
    """The table of contents; nothing where there is none that can be read."""
    items = _tags(opf, "item")
    nav = [item for item in items if "nav" in str(item.get("properties", "")).split()]
    ncx = [item for item in items if "ncx" in str(item.get("media-type", ""))]
    for name in (_path(folder, item) for item in (*nav, *ncx)):
        if name in archive and (found := entries(_xml(archive, name), posixpath.dirname(name))):
            return found
    return []


def _headings(chapters: Mapping[str, Parsed], sections: Mapping[str, Sequence[int]]) -> tuple[Heading, ...]:
    """The headings in the documents themselves, of a book without a table of contents."""
    return tuple(
        replace(heading, page=sections[name][heading.page - 1] + 1)
        for name, chapter in chapters.items()
        for heading in chapter.headings
        if heading.page <= len(sections[name])
    )


def _xml(archive: Archive, name: str) -> BeautifulSoup:
    return soup(decode(archive.read(name)).text)


def _package_name(archive: Archive) -> str:
    root = _tags(_xml(archive, CONTAINER), "rootfile") if CONTAINER in archive else []
    declared = [str(tag.get("full-path", "")) for tag in root]
    others = [name for name in archive.file.namelist() if name.endswith(".opf")]
    found = next((name for name in [*declared, *others] if name in archive), None)
    if found is None:
        raise DocumentError("a ZIP archive, not an EPUB or an office document")
    return found


def _spine(opf: BeautifulSoup, folder: str) -> list[str]:
    items = {str(item.get("id")): item for item in _tags(opf, "item")}
    order = dict.fromkeys(str(ref.get("idref")) for ref in _tags(opf, "itemref"))
    chosen = [items[name] for name in order if name in items]
    return [_path(folder, item) for item in chosen if "html" in str(item.get("media-type", "html"))]


def _path(folder: str, item: Tag) -> str:
    href = unquote(str(item.get("href", "")).split("#")[0])
    return posixpath.normpath(posixpath.join(folder, href))


def _refuse_drm(archive: Archive, names: Iterable[str]) -> None:
    if ENCRYPTION not in archive:
        return
    references = _tags(_xml(archive, ENCRYPTION), "cipherreference")
    locked = {unquote(str(tag.get("uri", ""))) for tag in references}
    if not locked.isdisjoint(names):
        raise DocumentError("the EPUB is protected (DRM) and cannot be read")


def _tags(soup: BeautifulSoup, name: str) -> list[Tag]:
    return soup.find_all(re.compile(rf"(?:[^:]+:)?{name}$"))


def _title(opf: BeautifulSoup) -> str:
    return next((tag.get_text() for tag in _tags(opf, "title")), "")


def _texts(chapters: Mapping[str, Parsed]) -> tuple[list[str], dict[str, list[int]]]:
    """The sections of all documents, and the numbers of each one's."""
    texts: list[str] = []
    sections: dict[str, list[int]] = {}
    for name, chapter in chapters.items():
        # Covers and ornaments have no text; as empty sections they would look like scans.
        own = [text for text in chapter.texts if text.strip()]
        sections[name] = list(range(len(texts), len(texts) + len(own)))
        texts += own
    return texts, sections


def _notices(chapters: Iterable[Parsed], missing: int) -> tuple[str, ...]:
    notices = dict.fromkeys(notice for chapter in chapters for notice in chapter.notices)
    lost = f"{missing} chapter file{'s' * (missing > 1)} missing from the EPUB"
    return (*notices, *([lost] if missing else []))
