"""What the program writes, others cannot open, whatever the umask it is started with."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_models import save_model

pytestmark = pytest.mark.skipif(os.name == "nt", reason="permissions are those of Unix")

START = "import os; os.umask(0); from triforce_chat.cli.app import main; main()"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run(home: Path, *arguments: str, lines: str = "") -> str:
    cache, state = str(home / "cache" / "deep"), str(home / "state")
    places = {"HOME": str(home), "TRIFORCE_CHAT_CACHE": cache, "XDG_STATE_HOME": state}
    done = subprocess.run(
        [sys.executable, "-c", START, *arguments],
        input=lines,
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, **places, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_written_is_private_but_what_the_user_names(tmp_path: Path) -> None:
    model, home = save_model(tmp_path / "model", max_position_embeddings=4096), tmp_path / "home"
    home.mkdir()
    (home / "book.txt").write_text("a ship and a quay " * 9)
    before = set(home.rglob("*"))
    flags = ["--model", str(model), "--device", "cpu", "--max-tokens", "2"]
    run(home, "chat", "book.txt", *flags, lines="what?\n/save conversation.md\n")
    made = {path for path in home.rglob("*") if path not in before}
    conversation = home / "conversation.md"
    assert mode(conversation) == 0o666
    assert any(path.suffix == ".safetensors" for path in made)
    open_to_others = {path: oct(mode(path)) for path in made - {conversation} if mode(path) & 0o077}
    assert not open_to_others


def test_saving_again_keeps_the_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triforce_chat.settings import umask

    monkeypatch.setattr(umask, "_users_umask", [0o022])
    file = tmp_path / "conversation.md"
    umask.write_named(file, "one")
    assert mode(file) == 0o644
    file.chmod(0o600)
    umask.write_named(file, "two")
    assert (mode(file), file.read_text()) == (0o600, "two")


def test_the_history_is_private(tmp_path: Path) -> None:
    from triforce_chat.ui.paste import Pastes
    from triforce_chat.ui.prompt import _history

    before = os.umask(0)
    try:
        _history(tmp_path / "state" / "history", Pastes())
    finally:
        os.umask(before)
    assert mode(tmp_path / "state" / "history") == 0o600
