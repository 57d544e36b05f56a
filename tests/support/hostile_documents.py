"""Documents made to hurt: little files that ask for endless time or memory, or that point out of themselves."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial

from support import seed_documents
from support.mutations import zipped
from support.seed_documents import page

MIB = 1 << 20
CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGES = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>"
FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
TEXT = b"BT /F 12 Tf 72 720 Td (A ship.) Tj ET\n"
CONTAINER = b'<container><rootfiles><rootfile full-path="b.opf"/></rootfiles></container>'

Bomb = tuple[str, str, Callable[[], bytes]]  # name, suffix of the file, how it is made


def pdf(objects: dict[int, bytes], trailer: bytes = b"") -> bytes:
    """A file of these objects, those of a page of text where there are none."""
    all_objects = {1: CATALOG, 2: PAGES, 3: PAGE, 4: stream(TEXT), 5: FONT} | objects
    out, places = io.BytesIO(), {}
    out.write(b"%PDF-1.7\n")
    for number, content in all_objects.items():
        places[number] = out.tell()
        out.write(b"%d 0 obj\n%b\nendobj\n" % (number, content))
    start, size = out.tell(), max(places) + 1
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
    for number in range(1, size):
        out.write(b"%010d %05d %c \n" % (places.get(number, 0), 0, b"n" if number in places else b"f"))
    out.write(b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start))
    return out.getvalue()


def stream(data: bytes, entries: bytes = b"", length: object = None) -> bytes:
    declared = str(len(data) if length is None else length).encode()
    return b"<< /Length %b %b >>\nstream\n%b\nendstream" % (declared, entries, data)


def flate(data: bytes, times: int = 1) -> bytes:
    for _ in range(times):
        data = zlib.compress(data, 9)
    return stream(data, b"/Filter [%b]" % (b"/FlateDecode " * times))


def zeros(size: int, ahead: bytes = b"") -> bytes:
    """The compressed form of ``size`` zeros, made without having them all."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(ahead)] + [packer.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(parts) + packer.flush()


def repeated_page(times: int, content: bytes) -> bytes:
    return pdf({2: b"<< /Type /Pages /Kids [%b] /Count %d >>" % (b"3 0 R " * times, times), 4: content})


def forms(levels: int, width: int) -> bytes:
    """Forms that draw forms that draw forms: ``width ** levels`` of them."""
    objects = {4: stream(b"/X10 Do ")}
    for level in range(levels):
        inner = b"/X%d Do " % (11 + level) * width if level + 1 < levels else TEXT
        names = b"<< /XObject << /X%d %d 0 R >> /Font << /F 5 0 R >> >>" % (11 + level, 11 + level)
        entries = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources " + names
        objects[10 + level] = stream(inner, entries)
    objects[3] = PAGE.replace(b"/Font <<", b"/XObject << /X10 10 0 R >> /Font <<")
    return pdf(objects)


def mapped(cmap: bytes) -> bytes:
    """A page whose font has this table from codes to characters."""
    names = b"/Subtype /Type0 /BaseFont /A /Encoding /Identity-H /DescendantFonts [5 0 R]"
    font = b"<< /Type /Font %b /ToUnicode 6 0 R >>" % names
    body = b"begincmap\n1 begincodespacerange\n<0000> <ffff>\nendcodespacerange\n" + cmap + b"\nendcmap"
    return pdf({5: font, 6: stream(body)})


def page_tree(depth: int) -> bytes:
    nodes = {n: b"<< /Type /Pages /Kids [%d 0 R] /Count 1 >>" % (n + 1) for n in range(10, 10 + depth)}
    return pdf({2: nodes[10], **nodes, 10 + depth: PAGE})


def doubling_tree(depth: int) -> bytes:
    """Every node has the next one twice: 2 ** depth pages."""
    nodes = {
        n: b"<< /Type /Pages /Kids [%d 0 R %d 0 R] /Count 2 >>" % (n + 1, n + 1)
        for n in range(10, 10 + depth)
    }
    return pdf({2: nodes[10], **nodes, 10 + depth: PAGE})


def object_stream(count: int, first: int, content: bytes, extends: bytes = b"") -> bytes:
    """A file with cross-references and objects in compressed streams, as of PDF 1.5."""
    body = b"%PDF-1.7\n"
    at = {}
    entries = b"/Type /ObjStm /N %d /First %d /Filter /FlateDecode %b" % (count, first, extends)
    for number, data in ((4, stream(TEXT)), (9, stream(zlib.compress(content), entries))):
        at[number] = len(body)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, data)
    rows = b"".join(struct.pack(">BIH", 2, 9, n) for n in range(3)) + struct.pack(">BIH", 1, at[4], 0)
    rows += struct.pack(">BIH", 2, 9, 3) + struct.pack(">BIH", 1, at[9], 0)
    table = b"/Type /XRef /W [1 4 2] /Root 1 0 R /Size 99 /Index [1 5 9 1]"
    return body + b"8 0 obj\n%b\nendobj\nstartxref\n%d\n%%%%EOF" % (stream(rows, table), len(body))


def cross_references(index: bytes, widths: bytes = b"[1 4 2]", more: bytes = b"") -> bytes:
    """A file whose table of cross-references says ``index`` of itself."""
    table = stream(bytes(64), b"/Type /XRef /Root 1 0 R /Size 9 /W %b /Index %b %b" % (widths, index, more))
    return pdf({}).split(b"xref")[0] + b"8 0 obj\n%b\nendobj\nstartxref\n%d\n%%%%EOF" % (
        table,
        len(pdf({}).split(b"xref")[0]),
    )


def encrypted(entries: bytes) -> bytes:
    return pdf({6: b"<< /Filter /Standard %b >>" % entries}, b"/Encrypt 6 0 R /ID [<00> <00>]")


def pdf_bombs() -> Iterator[Bomb]:
    cases: dict[str, Callable[[], bytes]] = {
        "flate 1000:1": lambda: pdf({4: stream(zeros(3 << 30), b"/Filter /FlateDecode")}),
        "flate of flate": lambda: pdf(
            {4: stream(zlib.compress(zeros(256 * MIB), 9), b"/Filter [/FlateDecode /FlateDecode]")}
        ),
        "flate 40 deep": lambda: pdf({4: flate(TEXT, 40)}),
        "flate of operators": lambda: pdf({4: flate(TEXT * 600_000)}),
        "flate of brackets": lambda: pdf({4: flate(b"[" * 20_000_000)}),
        "flate of an open string": lambda: pdf({4: flate(b"(" + b"\\(" * 10_000_000)}),
        "flate of digits": lambda: pdf({4: flate(b"9" * 30_000_000 + b" Tj")}),
        "flate of a name": lambda: pdf({4: flate(b"/" + b"#41" * 10_000_000)}),
        "flate of states": lambda: pdf({4: flate(b"q " * 10_000_000)}),
        "flate of letters": lambda: pdf({4: flate(b"BT /F 9 Tf (" + b"a" * 60_000_000 + b") Tj ET")}),
        "flate of kerning": lambda: pdf({4: flate(b"BT /F 9 Tf [" + b"(a) -9 " * 6_000_000 + b"] TJ ET")}),
        "flate of inline images": lambda: pdf({4: flate(b"BI /W 1 /H 1 ID x EI " * 2_000_000)}),
        "an inline image without end": lambda: pdf(
            {4: flate(b"BI /W 1 /H 1 /F /Fl ID " + b"E" * 20_000_000)}
        ),
        "lzw": lambda: pdf({4: stream(bytes(range(256)) * 40_000, b"/Filter /LZWDecode")}),
        "run lengths": lambda: pdf({4: stream(b"\x81 " * 500_000, b"/Filter /RunLengthDecode")}),
        "ascii 85": lambda: pdf({4: stream(b"z" * 1_000_000, b"/Filter /ASCII85Decode")}),
        "hexadecimal": lambda: pdf({4: stream(b"20" * 1_000_000, b"/Filter /ASCIIHexDecode")}),
        "jbig2": lambda: pdf({4: stream(b"\0" * 99, b"/Filter /JBIG2Decode")}),
        "odd filters": lambda: pdf({4: stream(TEXT, b"/Filter [/Crypt /X 3 null << >>]")}),
        "predictor": lambda: pdf(
            {4: stream(zeros(64 * MIB), b"/Filter /FlateDecode /DecodeParms << /Predictor 15 /Columns 1 >>")}
        ),
        "predictor of wide rows": lambda: pdf(
            {
                4: stream(
                    zeros(MIB), b"/Filter /FlateDecode /DecodeParms << /Predictor 12 /Columns 2147483647 >>"
                )
            }
        ),
        "many streams": lambda: pdf(
            {3: PAGE.replace(b"4 0 R", b"[" + b"4 0 R " * 90_000 + b"]"), 4: flate(TEXT * 9999)}
        ),
        "length of gigabytes": lambda: pdf({4: stream(TEXT, length=1 << 40)}),
        "length below zero": lambda: pdf({4: stream(TEXT, length=-1)}),
        "length of itself": lambda: pdf({4: stream(TEXT, length="4 0 R")}),
        "length in a circle": lambda: pdf({4: stream(TEXT, length="6 0 R"), 6: b"7 0 R", 7: b"6 0 R"}),
        "count of millions": lambda: pdf({2: PAGES.replace(b"Count 1", b"Count 999999999")}),
        "count below zero": lambda: pdf({2: PAGES.replace(b"Count 1", b"Count -1")}),
        "kids in a circle": lambda: pdf({2: PAGES.replace(b"3 0 R", b"2 0 R")}),
        "kids in a wide circle": lambda: pdf({3: PAGES.replace(b"3 0 R", b"6 0 R"), 6: PAGES}),
        "page tree 50 deep": partial(page_tree, 50),
        "page tree 50,000 deep": partial(page_tree, 50_000),
        "page tree doubling": partial(doubling_tree, 60),
        "a page 50,000 times": partial(repeated_page, 50_000, stream(TEXT)),
        "a slow page 1,000 times": partial(repeated_page, 1_000, flate(TEXT * 9_000)),
        "4,000 pages": lambda: pdf(
            {
                2: b"<< /Type /Pages /Kids [%b] /Count 4000 >>"
                % b"".join(b"%d 0 R " % n for n in range(10, 4010))
            }
            | dict.fromkeys(range(10, 4010), PAGE)
        ),
        "contents in a circle": lambda: pdf({4: b"[4 0 R]"}),
        "resources in a circle": lambda: pdf({3: PAGE.replace(b"<< /Font << /F 5 0 R >> >>", b"3 0 R")}),
        "a form of itself": partial(forms, 1, 1),
        "forms of forms": partial(forms, 12, 10),
        "arrays 100,000 deep": lambda: pdf({4: b"[" * 100_000 + b"]" * 100_000}),
        "arrays 500 deep": lambda: pdf({5: b"[" * 500 + b"]" * 500}),
        "dictionaries 100,000 deep": lambda: pdf({5: b"<</A" * 100_000 + b">>" * 100_000}),
        "strings 100,000 deep": lambda: pdf(
            {4: stream(b"BT /F 9 Tf " + b"(" * 100_000 + b")" * 100_000 + b" Tj ET")}
        ),
        "references in a circle": lambda: pdf({4: b"6 0 R", 6: b"7 0 R", 7: b"4 0 R"}),
        "an object stream": lambda: object_stream(
            4,
            40,
            b"1 0 2 34 3 80 5 250 ".ljust(40) + CATALOG.ljust(34) + PAGES.ljust(46) + PAGE.ljust(170) + FONT,
        ),
        "an object stream of zeros": lambda: object_stream(4, 40, bytes(300 * MIB)),
        "an object stream of millions": lambda: object_stream(999_999_999, 40, b"1 0 " * 2_000_000),
        "an object stream of itself": lambda: object_stream(
            3, 20, b"9 0 1 0 2 0".ljust(20) + b"9 0 R", b"/Extends 9 0 R"
        ),
        "cross-references of millions": partial(cross_references, b"[0 2147483647]"),
        "cross-references below zero": partial(cross_references, b"[-5 -9]"),
        "cross-references of wide rows": partial(cross_references, b"[0 9]", b"[999999999 9 9]"),
        "cross-references in a circle": lambda: pdf({}, b"/Prev %d" % (len(pdf({}, b"/Prev 000")) - 200)),
        "cross-references elsewhere": lambda: pdf({}).replace(b"startxref\n", b"startxref\n9999999"),
        "a thousand ends": lambda: pdf({}) + b"startxref\n0\n%%EOF\n" * 100_000,
        "no cross-references": lambda: pdf({}).replace(b"xref", b"xxxx"),
        "millions of objects": lambda: (
            b"%PDF-1.7\n" + b"".join(b"%d 0 obj\n<<>>\nendobj\n" % n for n in range(300_000))
        ),
        "encryption of version 99": partial(encrypted, b"/V 99 /R 99 /O (x) /U (x) /P -4"),
        "encryption of long keys": partial(encrypted, b"/V 4 /R 4 /Length 99999999 /O (x) /U (x) /P -4"),
        "encryption without entries": partial(encrypted, b""),
        "encryption of itself": lambda: pdf({}, b"/Encrypt 6 0 R").replace(b"6 0 R", b"1 0 R"),
        "a title in a circle": lambda: pdf({6: b"<< /Title 6 0 R >>"}, b"/Info 6 0 R"),
        "a title of megabytes": lambda: pdf(
            {6: b"<< /Title (%b) >>" % (b"\x1b[2J" * 2_000_000)}, b"/Info 6 0 R"
        ),
        "metadata with entities": lambda: pdf(
            {
                1: CATALOG.replace(b"/Pages", b"/Metadata 6 0 R /Pages"),
                6: stream(laughs(b"<x:xmpmeta>&l9;</x:xmpmeta>")),
            }
        ),
        "a range of two thousand million codes": partial(
            mapped, b"1 beginbfrange\n<00000000> <7fffffff> <0041>\nendbfrange"
        ),
        "ranges of all codes": partial(
            mapped, b"100 beginbfrange\n" + b"<0000> <ffff> <0041>\n" * 5_000 + b"endbfrange"
        ),
        "codes of megabytes": partial(
            mapped, b"1 beginbfchar\n<0041> <" + b"0041" * 2_000_000 + b">\nendbfchar"
        ),
        "widths of millions": lambda: pdf(
            {5: b"<< /Type /Font /Subtype /TrueType /FirstChar 0 /LastChar 2147483647 /Widths [1] >>"}
        ),
        "wide glyphs of millions": lambda: pdf(
            {
                5: b"<< /Type /Font /Subtype /Type0 /BaseFont /A /Encoding /Identity-H /DescendantFonts [6 0 R] >>",
                6: b"<< /Type /Font /Subtype /CIDFontType2 /W [0 2147483647 500] >>",
            }
        ),
        "differences of millions": lambda: pdf(
            {5: FONT[:-2] + b"/Encoding << /Differences [0 " + b"/a " * 3_000_000 + b"] >> >>"}
        ),
        "positions beyond numbers": lambda: pdf(
            {4: stream(b"BT 1e308 0 0 1e308 1e308 1e308 Tm (a) Tj 9" + b"9" * 999 + b" 0 Td (b) Tj ET")}
        ),
    }
    yield from ((name, ".pdf", make) for name, make in cases.items())


def laughs(body: bytes) -> bytes:
    """Entities that stand for ten of the one before: a thousand million laughs."""
    entities = b"".join(b'<!ENTITY l%d "%b">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 10))
    return b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">%b]>%b' % (entities, body)


def package(manifest: bytes, spine: bytes, head: bytes = b"") -> bytes:
    return (
        b"%b<package><metadata><title>T</title></metadata><manifest>%b</manifest><spine>%b</spine></package>"
        % (
            head,
            manifest,
            spine,
        )
    )


def item(name: bytes, href: bytes) -> bytes:
    return b'<item id="%b" href="%b" media-type="application/xhtml+xml"/>' % (name, href)


def ref(name: bytes) -> bytes:
    return b'<itemref idref="%b"/>' % name


def epub(opf: bytes = package(item(b"a", b"a.html"), ref(b"a")), **files: bytes) -> bytes:
    members = {"META-INF/container.xml": CONTAINER, "b.opf": opf, "a.html": page("A ship.")}
    return zipped(
        list((members | {name.replace("_html", ".html"): data for name, data in files.items()}).items())
    )


def with_names(*names: str) -> bytes:
    """A book whose package asks for files outside of it, and whose archive has members of such names."""
    manifest = b"".join(item(b"i%d" % n, name.encode()) for n, name in enumerate(names))
    opf = package(manifest, b"".join(ref(b"i%d" % n) for n in range(len(names))))
    members = [(name, page("From " + name[-20:])) for name in names]
    return zipped([("META-INF/container.xml", CONTAINER), ("b.opf", opf), *members])


def linked() -> bytes:
    """A member that is a symbolic link to a file of the system."""
    buffer = io.BytesIO(epub())
    with zipfile.ZipFile(buffer, "a") as archive:
        entry = zipfile.ZipInfo("c.html")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return buffer.getvalue().replace(b"a.html", b"c.html", 1)


def declared(size: int) -> bytes:
    """The sizes in the directory of the archive are not those of the data."""
    data = bytearray(epub(a_html=b"<p>" + b"a" * 9_000_000))
    for at in (n for n in range(len(data)) if data[n : n + 4] == b"PK\x01\x02"):
        struct.pack_into("<I", data, at + 24, size)
    return bytes(data)


def overlapping(members: int, kernel: int) -> bytes:
    """Members that share one compressed kernel (Fifield 2019): the directory lists the same data again and again."""
    packed = zeros(kernel)[2:-4]
    local = (
        struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 33, 0, len(packed), kernel, 1, 0)
        + b"k"
        + packed
    )
    names = [b"x%05d.html" % n for n in range(members)]
    opf = package(b"".join(item(name, name) for name in names), b"".join(map(ref, names)))
    body = epub(opf)
    end = body.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", body, end + 16)[0]
    directory = body[start:end]
    for name in names:
        directory += (
            struct.pack(
                "<4sHHHHHHIIIHHHHHII",
                b"PK\x01\x02",
                20,
                20,
                0,
                8,
                0,
                33,
                0,
                len(packed),
                kernel,
                len(name),
                0,
                0,
                0,
                0,
                0,
                start,
            )
            + name
        )
    count = members + 3
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(directory), start + len(local), 0)
    return body[:start] + local + directory + tail


def nested(depth: int) -> bytes:
    data = epub()
    for _ in range(depth):
        data = zipped([("book.epub", data)])
    return data


def many_members(count: int) -> bytes:
    return zipped([("META-INF/container.xml", CONTAINER), *((f"{n}.opf", b"x") for n in range(count))])


def epub_bombs() -> Iterator[Bomb]:
    deep = 1_000_000
    bible = b"<p>" + b"a " * (20 * MIB)
    cases: dict[str, Callable[[], bytes]] = {
        "a chapter of 2 GB": lambda: epub(a_html=bytes(2 << 30)),
        "a package of 300 MB": lambda: epub(package(b" " * (300 * MIB), b"")),
        "a chapter named 10,000 times": lambda: epub(
            package(
                b"".join(item(b"i%d" % n, b"a.html") for n in range(10_000)),
                b"".join(ref(b"i%d" % n) for n in range(10_000)),
            ),
            a_html=b"<p>" + b"a " * MIB,
        ),
        "paragraphs in millions": lambda: epub(a_html=b"<p>" * (10 * MIB)),
        "a text of 20 million words": lambda: epub(a_html=bible),
        "sizes declared too small": partial(declared, 100),
        "sizes declared as gigabytes": partial(declared, 0xFFFFFFF0),
        "members over each other": partial(overlapping, 2_000, 16 * MIB),
        "archives in archives": partial(nested, 100),
        "60,000 members": partial(many_members, 60_000),
        "names out of the folder": partial(with_names, "../../../../etc/passwd", "../a.html"),
        "absolute names": partial(with_names, "/etc/passwd", "//etc/passwd", "C:/x.html", "\\\\host\\x.html"),
        "addresses as names": partial(
            with_names, "file:///etc/passwd", "http://127.0.0.1:9/x", "data:text/html,x"
        ),
        "a link to a file": linked,
        "a package of itself": lambda: epub(
            package(item(b"a", b"b.opf") + item(b"b", b"META-INF/container.xml"), ref(b"a") + ref(b"b"))
        ),
        "items in a circle": lambda: epub(package(item(b"a", b"a.html") * 9, ref(b"a") * 100_000)),
        "no container": lambda: zipped(
            [("b.opf", package(item(b"a", b"a.html"), ref(b"a"))), ("a.html", page("A ship."))]
        ),
        "two containers": lambda: zipped(
            [
                ("META-INF/container.xml", b"<x/>"),
                ("META-INF/container.xml", CONTAINER),
                ("b.opf", package(item(b"a", b"a.html"), ref(b"a"))),
                ("a.html", page("A ship.")),
            ]
        ),
        "a container of laughs": lambda: zipped(
            [("META-INF/container.xml", laughs(b"<rootfile full-path='&l9;'/>"))]
        ),
        "a package of laughs": lambda: epub(
            laughs(package(item(b"a", b"a.html"), ref(b"a")).replace(b">T<", b">&l9;<"))
        ),
        "a chapter of laughs": lambda: epub(a_html=laughs(b"<html><p>&l9; A ship.</p></html>")),
        "an external entity": lambda: epub(
            a_html=b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><p>&e; A ship.</p>'
        ),
        "a million elements deep": lambda: epub(a_html=b"<div>" * deep + b"A ship."),
        "lists a million deep": lambda: epub(a_html=b"<ul><li>" * (deep // 4) + b"A ship."),
        "attributes in millions": lambda: epub(a_html=b"<p " + b"a=1 " * (4 * MIB - 99) + b">A ship.</p>"),
        "an attribute of megabytes": lambda: epub(a_html=b"<p a='" + b"x" * (20 * MIB) + b"'>A ship.</p>"),
        "an open tag": lambda: epub(a_html=b"<p>A ship.</p>" + b"<" * (4 * MIB)),
        "open comments": lambda: epub(a_html=b"<p>A ship.</p>" + b"<!-" * (2 * MIB) + b"<!--" * MIB),
        "open declarations": lambda: epub(
            a_html=b"<p>A ship.</p>" + b"<![" * MIB + b"<?" * MIB + b"&#x" * MIB
        ),
        "references to characters": lambda: epub(
            a_html=b"<p>A ship." + b"&#x110000;&#xd800;&#0;&#99999999999999;" * 200_000
        ),
        "a declared encoding that is none": lambda: epub(a_html=b'<meta charset="rot13"><p>A ship. \xff'),
        "an encoding of bytes": lambda: epub(
            a_html=b'<?xml version="1.0" encoding="zlib_codec"?><p>\xffA ship.'
        ),
        "UTF-7": lambda: epub(a_html=b'<meta charset="utf-7"><p>A ship. +ADw-script+AD4- \xff'),
        "halves of characters": lambda: epub(
            a_html="<p>A ship. \ud800 \udfff".encode("utf-8", "surrogatepass")
        ),
        "an odd type": lambda: zipped(
            [
                ("mimetype", b"\0" * 99),
                ("META-INF/container.xml", CONTAINER),
                ("b.opf", package(item(b"a", b"a.html"), ref(b"a"))),
                ("a.html", page("A ship.")),
            ]
        ),
        "a comment as an archive": lambda: b"PK\x05\x06" + b"\0" * 18 + b"\xff\xff" + b"PK\x05\x06" * 20_000,
        "an empty archive": lambda: b"PK\x05\x06" + bytes(18),
    }
    yield from ((name, ".epub", make) for name, make in cases.items())


def text_bombs() -> Iterator[Bomb]:
    ship = "A ship. "
    cases: dict[tuple[str, str], Callable[[], bytes]] = {
        ("a line of 10 MB", ".txt"): lambda: (ship * 1_250_000).encode(),
        ("a line of 10 MB", ".md"): lambda: (ship * 1_250_000).encode(),
        ("a word of 10 MB", ".txt"): lambda: b"CHAPTER " + b"x" * 10_000_000,
        ("line ends in millions", ".txt"): lambda: b"A ship." + b"\n" * 30_000_000,
        ("headings in millions", ".txt"): lambda: b"CHAPTER I\n\n" * 1_000_000,
        ("headings in millions", ".md"): lambda: b"# A ship\n" * 1_000_000,
        ("underlines in millions", ".md"): lambda: b"=\n---\n" * 1_000_000,
        ("form feeds in millions", ".txt"): lambda: b"A ship." + b"\f" * 3_000_000,
        ("200 MB of text", ".txt"): lambda: b"A ship. A quay.\n" * 12_500_000,
        ("returns", ".txt"): lambda: b"A ship.\r\r\n\r" * 500_000,
        ("zeros", ".txt"): lambda: b"A ship." + bytes(10_000_000),
        ("zeros in words", ".txt"): lambda: b"A sh\0ip. A quay and a lighthouse, all of them old.\n" * 9_000,
        ("UTF-16 without a mark", ".txt"): lambda: (ship * 9_000).encode("utf-16-le"),
        ("UTF-16 of an odd length", ".txt"): lambda: (ship * 9_000).encode("utf-16") + b"x",
        ("UTF-32 beyond characters", ".txt"): lambda: b"\xff\xfe\0\0" + b"\xff\xff\xff\x7f" * 9_000,
        ("halves of characters", ".txt"): lambda: (
            "A ship \ud800\udfff\udc00.".encode("utf-8", "surrogatepass") * 999
        ),
        ("a mix of encodings", ".txt"): lambda: b"".join(
            "Größe, schön und naïve. ".encode(name)
            for name in ("utf-8", "latin-1", "utf-16", "cp437") * 2_000
        ),
        ("Latin letters in megabytes", ".txt"): lambda: (
            "Größe und naïve Schönheit. ".encode("latin-1") * 400_000
        ),
        ("orders of writing", ".txt"): lambda: (
            "A \u202eship\u202c \u2066 quay \u2069 \u200f.\n".encode() * 9_000
        ),
        ("escape sequences", ".txt"): lambda: (
            b"A ship.\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b]0;t\x07\x9b2J" * 9_000
        ),
        ("marks on letters", ".txt"): lambda: ("a" + "\u0301" * 100_000 + " ship").encode() * 20,
        ("elements in millions", ".html"): lambda: b"<html>" + b"<b>x" * 3_000_000,
        ("a page without end", ".html"): lambda: b"<html><p>A ship." + b"<script>" + b"<" * 5_000_000,
        ("declared encodings", ".html"): lambda: b"<html>" + b"<meta charset=x" * 400_000 + b"\xff",
        ("spaces", ".html"): lambda: b"<html><p>A ship." + b" \n" * 5_000_000 + b"<br>" * 200_000,
    }
    yield from ((name, suffix, make) for (name, suffix), make in cases.items())


def changed(data: bytes, **members: bytes) -> bytes:
    """An archive with other contents of members, named with "__" for "/" and "_" for "."."""
    named = {name.replace("__", "/").replace("_", "."): content for name, content in members.items()}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped([(name, named.get(name, archive.read(name))) for name in archive.namelist()])


def word(body: bytes, head: bytes = b"") -> bytes:
    names = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    document = b"%b<w:document %b><w:body>%b</w:body></w:document>" % (head, names, body)
    return changed(seed_documents.word("words"), word__document_xml=document)


def odf(body: bytes, head: bytes = b"") -> bytes:
    names = (
        b'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
        b'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    )
    content = b"<office:body><office:text>%b</office:text></office:body>" % body
    return changed(
        seed_documents.odf_text("words"),
        content_xml=b"%b<office:document-content %b>%b</office:document-content>" % (head, names, content),
    )


def slide(shapes: bytes) -> bytes:
    """A presentation with these shapes before the others of its first slide."""
    data = seed_documents.slides("words")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = archive.read("ppt/slides/slide1.xml")
    return changed(
        data, ppt__slides__slide1_xml=content.replace(b"</p:grpSpPr>", b"</p:grpSpPr>" + shapes, 1)
    )


def office_bombs() -> Iterator[Bomb]:
    paragraph = b"<w:p><w:r><w:t>%b</w:t></w:r></w:p>"
    laughs = b"".join(b'<!ENTITY l%d "%b">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 12))
    head = b'<!DOCTYPE x [<!ENTITY l0 "lol">%b<!ENTITY f SYSTEM "file:///etc/passwd">]>' % laughs
    cell = b"<w:tbl><w:tr><w:tc>"
    group = b"<p:grpSp><p:nvGrpSpPr/><p:grpSpPr/>"
    makers: dict[str, tuple[str, Callable[[], bytes]]] = {
        "laughs in Word": (".docx", lambda: word(paragraph % b"&l11;", head)),
        "an external entity in Word": (".docx", lambda: word(paragraph % b"A ship. &f;", head)),
        "a document of 300 MB": (".docx", lambda: word(b" " * (300 * MIB))),
        "Word paragraphs in millions": (".docx", lambda: word(paragraph % b"A ship." * 1_000_000)),
        "tables in tables": (".docx", lambda: word(cell * 50_000)),
        "closed tables in tables": (".docx", lambda: word(cell * 200 + b"</w:tc></w:tr></w:tbl>" * 200)),
        "a cell over a billion columns": (
            ".docx",
            lambda: word(
                b'<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="1000000000"/></w:tcPr>'
                + paragraph % b"A ship."
                + b"</w:tc></w:tr></w:tbl>"
            ),
        ),
        "laughs in OpenDocument": (".odt", lambda: odf(b"<text:p>&l11;</text:p>", head)),
        "an external entity in OpenDocument": (".odt", lambda: odf(b"<text:p>A ship. &f;</text:p>", head)),
        "a billion spaces": (".odt", lambda: odf(b'<text:p>A ship.<text:s text:c="1000000000"/></text:p>')),
        "OpenDocument lists in lists": (
            ".odt",
            lambda: odf(b"<text:list><text:list-item>" * 50_000 + b"</text:list-item></text:list>" * 50_000),
        ),
        "spans in spans": (
            ".odt",
            lambda: odf(b"<text:p>" + b"<text:span>" * 50_000 + b"</text:span>" * 50_000 + b"</text:p>"),
        ),
        "OpenDocument paragraphs in millions": (".odt", lambda: odf(b"<text:p>A ship.</text:p>" * 1_000_000)),
        "a heading of an odd level": (".odt", lambda: odf(b'<text:h text:outline-level="-9">A</text:h>')),
        "groups in groups": (".pptx", lambda: slide(group * 200 + b"</p:grpSp>" * 200)),
    }
    yield from ((name, suffix, make) for name, (suffix, make) in makers.items())


def bombs() -> Iterator[Bomb]:
    yield from pdf_bombs()
    yield from office_bombs()
    yield from epub_bombs()
    yield from text_bombs()
