"""HTML as a browser shows it; EPUB in the order of its spine, within bounds."""

from __future__ import annotations

import io
import time
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.documents import opened, refusal

from triforce_chat.documents.html import parse_html
from triforce_chat.errors import DocumentError

CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
DRM = '<encryption><enc:CipherReference URI="OEBPS/{}"/></encryption>'


def opf(*chapters: str, title: str = "The &amp; Book") -> str:
    items = "".join(
        f'<opf:item id="i{n}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>'
        for n, name in enumerate(chapters)
    )
    order = "".join(f'<opf:itemref idref="i{n}"/>' for n in range(len(chapters)))
    meta = f"<opf:metadata><dc:title>{title}</dc:title></opf:metadata>"
    manifest = f'<opf:manifest><opf:item id="css" href="x.css" media-type="text/css"/>{items}</opf:manifest>'
    return f'<?xml version="1.0"?><opf:package>{meta}{manifest}<opf:spine>{order}</opf:spine></opf:package>'


def zipped(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def epub(chapters: dict[str, str | bytes], **extra: str) -> bytes:
    files: dict[str, str | bytes] = {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER}
    files["OEBPS/book.opf"] = opf(*chapters)
    files |= {f"OEBPS/{name}": data for name, data in reversed(chapters.items())}
    return zipped(files | dict(extra))


def texts(html: str | bytes) -> list[str]:
    return list(parse_html(html if isinstance(html, bytes) else html.encode()).texts)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One <b>bold</b>\n word</p><p>Two", "One bold word\n\nTwo\n"),
        ("a<br>b<br><br>c", "a\nb\n\nc\n"),
        ("<ul><li>x<li><p>y</p></ul>z", "- x\n- y\n\nz\n"),
        ("<table><tr><th>a</th><td>b</td></tr><tr><td>c</td></tr></table>", "a\tb\nc\n"),
        ("x<pre>  a\n    b</pre>y", "x\n\n  a\n    b\n\ny\n"),
        ("caf&eacute; &lt;b&gt; so\u00adft&#0;", "café <b> soft\ufffd\n"),
        ("<head><title>T</title><style>p{}</style><body>kept<!-- gone --><script>x()</script>", "kept\n"),
        ("<p>a<![CDATA[b]]></p>", "ab\n"),
        ("<br><br><p></p>start", "start\n"),
    ],
)
def test_html_layout(html: str, text: str) -> None:
    assert "".join(texts(html)) == text


def test_html_sections_and_title() -> None:
    page = "<html><title>Name</title><h1>Top</h1><h2>Sub</h2>a<h3>B</h3>b<h4>C</h4>c<h2>D</h2>d"
    parsed = parse_html(page.encode())
    assert parsed.texts == ["Top\n\nSub\n\na\n\n", "B\n\nb\n\nC\n\nc\n\n", "D\n\nd\n"]
    assert opened(page.encode()).title == "Name"


def test_html_without_headings_is_cut_like_text() -> None:
    page = "<h1>Book</h1>" + "".join(f"<p>CHAPTER {n}</p><p>{'Some words. ' * 60}</p>" for n in range(1, 4))
    assert [text.split("\n")[0] for text in texts(page)] == ["Book", "CHAPTER 2", "CHAPTER 3"]


def test_html_declared_encoding() -> None:
    page = '<html><meta charset="cp1251"><p>Привет'
    assert texts(page.encode("cp1251")) == ["Привет\n"]
    assert texts(page.encode()) == ["Привет\n"]
    assert texts(page.encode("utf-16")) == ["Привет\n"]


def test_deeply_nested_html() -> None:
    assert texts("<div>" * 20_000 + "deep") == ["deep\n"]


def test_spine_order_and_sections() -> None:
    document = opened(
        epub(
            {"z.xhtml": "<h1>One</h1><p>a</p><h2>Two</h2>b", "cover.xhtml": "<img/>", "a b.xhtml": "<p>c</p>"}
        )
    )
    assert (document.title, document.unit, document.warning) == ("The & Book", "section", None)
    assert [page.text for page in document.pages] == ["One\n\na\n\n", "Two\n\nb\n", "c\n"]


def test_missing_chapters_are_named() -> None:
    files = {
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": opf("a.html", "b.html"),
        "OEBPS/a.html": "a",
    }
    assert opened(zipped(dict(files))).warning == "1 chapter file missing from the EPUB"


def test_a_lost_container_is_survived() -> None:
    assert opened(zipped({"book.opf": opf("a.html"), "a.html": "words"})).text == "words\n"


def test_bombs_are_refused_before_they_are_read() -> None:
    chapter = b"<p>" + b"a" * (48 << 20)
    data = epub({f"{n}.html": chapter for n in range(3)})
    assert len(data) < 1 << 20
    began = time.process_time()
    with pytest.raises(DocumentError, match="unpacks to more than 128 MiB"):
        opened(data)
    assert time.process_time() - began < 2


def test_the_limit_is_one_of_text_not_of_markup() -> None:
    paragraph = f"<p {'class=x ' * 400}>word</p>"
    document = opened(epub({f"{n}.html": paragraph * 1000 for n in range(12)}))  # 38 MiB
    assert document.text.split() == ["word"] * 12_000
    with pytest.raises(DocumentError, match="the limit is 64 million characters"):
        opened(epub({f"{n}.html": b"<p>" + b"a" * (24 << 20) for n in range(3)}))


def test_entities_are_not_expanded() -> None:
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE x [<!ENTITY l0 "lol">{lol}]><p>&l11; fine</p>'
    document = opened(epub({"a.html": bomb}))
    assert len(document.text) < 3000
    assert "fine" in document.text


def test_protected_books_are_refused() -> None:
    with pytest.raises(DocumentError, match="protected"):
        opened(epub({"a.html": "x"}, **{"META-INF/encryption.xml": DRM.format("a.html")}))
    assert opened(epub({"a.html": "x"}, **{"META-INF/encryption.xml": DRM.format("font.otf")})).text == "x\n"


def test_encrypted_archives_are_refused() -> None:
    data = bytearray(epub({"a.html": "x"}))
    for at in (n for n in range(len(data)) if data[n : n + 4] == b"PK\x01\x02"):
        data[at + 8] |= 1
    with pytest.raises(DocumentError, match="encrypted"):
        opened(bytes(data))


def test_other_archives_are_refused() -> None:
    with pytest.raises(DocumentError, match="not an EPUB or an office document"):
        opened(zipped({"some/thing.xml": "<w/>"}))


def test_a_book_without_text_is_refused() -> None:
    with pytest.raises(DocumentError, match="no text"):
        opened(epub({"a.html": "<img/>"}))


SEED = epub({"a.html": "<h1>Title</h1><p>Some words.</p>"})
PLACES = st.integers(4, len(SEED) - 1)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(PLACES, st.binary(max_size=2)), min_size=1, max_size=8))
def test_mutations_raise_nothing_but_document_errors(edits: list[tuple[int, bytes]]) -> None:
    data = SEED
    for offset, new in edits:
        data = data[:offset] + new + data[offset + 1 :]
    assert "\n" not in (refusal(data) or "")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_markup_is_read(markup: str) -> None:
    assert "".join(texts(f"<html><p>begin</p>{markup}".encode())).startswith("begin")
