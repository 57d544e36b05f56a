"""Documents made to hurt, and the process that reads them: what it costs has limits, and nothing leaks out.

TRIFORCE_CHAT_DOCUMENTS=3000 damages so many instead of a few, and reads every hostile document as well.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support import hostile_documents
from support.documents import PARSE_APART
from support.places import SUPPORT

from triforce_chat.documents import apart, read
from triforce_chat.errors import DocumentError

MANY = os.environ.get("TRIFORCE_CHAT_DOCUMENTS")
FEW = 100
BOMBS = {(name, suffix): make for name, suffix, make in hostile_documents.bombs()}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of a process are those of Unix")


@pytest.fixture(autouse=True)
def in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "parse_apart", PARSE_APART)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "SECONDS", 2)


def test_damaged_documents(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        sys.executable,
        str(SUPPORT / "survey.py"),
        "--count",
        MANY or str(FEW),
        *(["--bombs"] if MANY else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths()})
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n{done.stdout.splitlines()[-1]}")


def paths() -> str:
    return os.pathsep.join(sys.path)


def refused(data: bytes, path: Path) -> str:
    path.write_bytes(data)
    with pytest.raises(DocumentError) as error:
        read(str(path))
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message


@pytest.mark.usefixtures("impatient")
def test_time_has_a_limit(tmp_path: Path) -> None:
    data = hostile_documents.repeated_page(50_000, hostile_documents.stream(hostile_documents.TEXT * 99))
    before = spent_by_children()
    assert "not read within" in refused(data, tmp_path / "a.pdf")
    assert spent_by_children() - before < 2 * apart.patience("PDF", len(data))


def spent_by_children() -> float:
    """Seconds of processor time of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_memory_has_a_limit(tmp_path: Path) -> None:
    data = BOMBS["attributes in millions", ".epub"]()
    assert "more than 1 GiB of memory" in refused(data, tmp_path / "a.epub")


def test_a_text_beyond_every_context_is_refused(tmp_path: Path) -> None:
    assert "too long: the limit is 64 million characters; split it" in refused(
        b"A ship.\n" * (9 << 20), tmp_path / "a.txt"
    )


def test_bombs_are_refused_unread(tmp_path: Path) -> None:
    for name in ("a package of 300 MB", "members over each other"):
        assert "MiB; refused" in refused(BOMBS[name, ".epub"](), tmp_path / "a.epub")


@pytest.mark.parametrize(
    "name", ["names out of the folder", "absolute names", "addresses as names", "a link to a file"]
)
def test_names_lead_nowhere(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.epub"
    path.write_bytes(BOMBS[name, ".epub"]())
    try:
        text = read(str(path)).text
    except DocumentError:
        text = ""
    assert "root:" not in text  # of /etc/passwd
    assert [each.name for each in tmp_path.iterdir()] == ["a.epub"]
    assert all(
        line.startswith(("From", "A", "T", "/etc/passwd")) for line in text.splitlines() if line.strip()
    )


@pytest.mark.parametrize("name", ["an external entity", "a chapter of laughs", "a package of laughs"])
def test_entities_stay_unexpanded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.epub"
    path.write_bytes(BOMBS[name, ".epub"]())
    document = read(str(path))
    assert "A ship." in document.text
    assert len(document.text) < 2_000
    assert len(document.title) < 200


def test_one_endless_page_does_not_cost_the_others() -> None:
    """In a process of its own: the alarm may ring in any Python code, also in what a test tool hooks in."""
    kids = b"<< /Type /Pages /Kids [3 0 R 7 0 R 3 0 R] /Count 3 >>"
    slow = {
        7: hostile_documents.PAGE.replace(b"4 0 R", b"8 0 R"),
        8: hostile_documents.flate(hostile_documents.TEXT * 1_500_000),
    }
    code = (
        "import sys; from triforce_chat.documents import pdf; pdf.PAGE_SECONDS = 0.5; "
        "parsed = pdf.parse_pdf(sys.stdin.buffer.read()); print(parsed.texts, parsed.broken)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, input=hostile_documents.pdf({2: kids, **slow}), capture_output=True, timeout=180, check=True
    )
    assert done.stdout.decode().strip() == "['A ship.\\n', '', 'A ship.\\n'] (2,)"


def test_ctrl_c_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "slow.pdf"
    path.write_bytes(
        hostile_documents.repeated_page(200_000, hostile_documents.stream(hostile_documents.TEXT * 99))
    )
    code = "from triforce_chat.cli.app import main; main()"
    command = [sys.executable, "-c", code, "ask", str(path), "What?"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert reading(process.pid), "the document is read in a process of its own"
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=20)  # the reading itself would take longer
    assert (process.returncode, out, error) == (130, "", "error: interrupted\n")
    assert not any(state != "Z" and group == process.pid for state, _, group, *_ in processes())


def processes() -> Iterator[tuple[str, int, int, int]]:
    """State, parent, group and hundredths of a second of every process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            yield fields[0], int(fields[1]), int(fields[2]), int(fields[11])


def reading(parent: int) -> bool:
    """Wait until a process below this one, of the same group, has begun to work."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        time.sleep(0.05)
        if any(
            group == parent and above != os.getpid() and spent > 30 for _, above, group, spent in processes()
        ):
            return True
    return False


def test_a_password_is_no_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    run = subprocess.run

    def watched(command: list[str], **options: Any) -> object:
        seen.extend(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    path = tmp_path / "a.pdf"
    path.write_bytes(hostile_documents.pdf({}))
    assert read(str(path), password="a secret").text == "A ship.\n"
    assert seen
    assert "a secret" not in " ".join(map(str, seen))
