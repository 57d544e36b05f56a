"""llama.cpp beside our own stacks: what it is asked for, what its figures become, and how it ends."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.schemas import schema_errors
from support.tiny_models import save_model, write_gguf

from triforce_chat.chat.events import Tally
from triforce_chat.errors import ModelError, UsageError
from triforce_chat.lab.bench import peer as module
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.peer import (
    DRAFT_MODE,
    HASHED_MODE,
    LOOKUP_MODE,
    PLAIN_MODE,
    Mode,
    Peer,
    check,
    find_peer,
    gguf_file,
    read_by,
    row,
    run_of,
)
from triforce_chat.lab.bench.peer_process import Answer
from triforce_chat.lab.bench.row import Measured, Read, Run
from triforce_chat.settings.settings import Settings

installed = pytest.mark.skipif(
    not find_spec("xllamacpp"), reason="xllamacpp is not installed (pip install xllamacpp)"
)
PROMPTS = [[5 + n % 90 for n in range(60)], [7] * 30]
ANSWER = Answer(
    prompt=0,
    token_ids=[4, 5, 6, 7, 8],
    read=100,
    prefill_s=2.0,
    decode_s=0.4,
    wall_s=2.41,
    drafted=4,
    accepted=2,
    peak_bytes=10**9,
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Small weights leave the logits further apart than rounding goes.
    return write_gguf(tmp_path_factory.mktemp("peer") / "tiny.gguf", context=8192, blocks=0.1)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("peer") / "draft.gguf", context=8192, seed=1)


@installed
@pytest.mark.parametrize(
    "mode", [PLAIN_MODE, LOOKUP_MODE, HASHED_MODE, DRAFT_MODE], ids=lambda mode: mode.contender
)
def test_every_mode_answers_every_prompt_with_the_same_tokens(
    tmp_path: Path, gguf: Path, draft: Path, mode: Mode
) -> None:
    peer = Peer(gguf, draft, threads=1)
    (tmp_path / "fresh").mkdir()
    found = list(peer.answers(mode, PROMPTS, 20, 2, str(tmp_path / "fresh")))
    plain = [answer.token_ids for answer in peer.answers(PLAIN_MODE, PROMPTS, 20, 1, str(tmp_path))]
    assert [answer.prompt for answer in found] == [0, 0, 1, 1]
    assert [answer.token_ids for answer in found] == [plain[0], plain[0], plain[1], plain[1]]
    # Only a draft model's own keys and values are not kept from one server to the next.
    assert [answer.read for answer in found] == ([60, 60, 30, 30] if mode.drafts else [60, 1, 30, 1])
    known = list(peer.answers(mode, PROMPTS, 20, 1, str(tmp_path)))
    assert [answer.token_ids for answer in known] == plain
    assert [answer.read for answer in known] == ([60, 30] if mode.drafts else [1, 1])
    assert all(len(answer.token_ids) == 20 for answer in found)
    assert all(answer.prefill_s > 0 < answer.decode_s for answer in found)
    assert bool(found[0].drafted) is mode.drafts


@installed
def test_lookup_drafts_what_came_before(tmp_path: Path) -> None:
    peer = Peer(write_gguf(tmp_path / "circle.gguf", context=8192, blocks=0), None, threads=1)
    [plain] = peer.answers(PLAIN_MODE, [[7] * 30], 200, 1, str(tmp_path))
    [found] = peer.answers(HASHED_MODE, [[7] * 30], 200, 1, str(tmp_path))
    assert found.token_ids == plain.token_ids
    assert 0 < found.accepted <= found.drafted
    assert run_of(found).tally.tokens_per_round > 1 == run_of(plain).tally.tokens_per_round


@installed
def test_what_llama_cpp_refuses_is_one_line(gguf: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ModelError, match=r"llama\.cpp cannot run broken\.gguf: .*"):
        list(Peer(broken, None, 1).answers(PLAIN_MODE, PROMPTS, 4, 1, str(tmp_path)))
    with pytest.raises(ModelError, match=r"tiny\.gguf: .*exceeds the available context"):
        list(Peer(gguf, None, 1).answers(PLAIN_MODE, [[5] * 9000], 4, 1, str(tmp_path)))


@installed
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_no_process_is_left_behind(tmp_path: Path, gguf: Path) -> None:
    def children() -> set[int]:
        lines = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return set(map(int, lines.split()))

    before = children()
    answers = Peer(gguf, None, 1).answers(PLAIN_MODE, PROMPTS, 200, 50, str(tmp_path))
    next(answers)
    [started] = children() - before
    answers.close()  # type: ignore[attr-defined]  # a generator, as an interrupt leaves it
    for _ in range(1200):
        if not Path(f"/proc/{started}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{started}").exists()


def test_the_first_token_belongs_to_the_prefill() -> None:
    made = run_of(ANSWER)
    assert made.ms_per_token == pytest.approx(100)
    assert made.tally.rounds == 3
    assert made.tally.levels["target"].acceptance == 0.5


def test_a_row_beside_our_plain_decoding() -> None:
    ours = [Run(Tally(token_ids=[4, 5, 9, 7, 8]), 1.0)] * 2
    plain = Measured(Case(Settings(stack="autoregressive"), {}), [ours])
    made = row(
        PLAIN_MODE, Read(100, [50]), [ANSWER, replace(ANSWER, decode_s=0.8, peak_bytes=2 * 10**9)], plain
    )
    assert (made.contender, made.context, made.prompts, made.temperature) == ("llama.cpp", 100, 1, 0.0)
    assert list(made.spread_ms) == pytest.approx([100, 200])
    assert made.plain_ms_per_token == pytest.approx(200)
    assert made.speedup == pytest.approx(200 / 150)
    assert made.prefill_tokens_per_s == 50
    assert made.peak_bytes == 2 * 10**9
    assert (made.leading_equal, made.same_tokens, made.fresh) == (2, False, 1.0)
    alone = row(PLAIN_MODE, Read(100, [50]), [ANSWER], None)
    assert (alone.speedup, alone.leading_equal, alone.same_tokens) == (None, None, None)


def test_only_whole_readings_are_rates() -> None:
    continued = replace(ANSWER, read=1)
    assert read_by([ANSWER, continued], ANSWER.read) == Read(ANSWER.read, [ANSWER.read / ANSWER.prefill_s])
    assert read_by([continued], ANSWER.read) is None


@pytest.mark.parametrize(
    "wrong", [{"token_ids": [4, 5, 6, 7]}, {"wall_s": 3.0}, {"wall_s": 2.0}, {"prefill_s": 0.1}]
)
def test_its_figures_are_checked(wrong: dict[str, Any]) -> None:
    check(ANSWER, 5)
    with pytest.raises(ModelError):
        check(replace(ANSWER, **wrong), 5)


def test_what_is_a_gguf_file(tmp_path: Path, gguf: Path) -> None:
    assert gguf_file(str(gguf)) == gguf_file(str(gguf.parent)) == gguf
    write_gguf(tmp_path / "one.gguf")
    write_gguf(tmp_path / "two.gguf")
    assert gguf_file(str(tmp_path)) is gguf_file("small") is gguf_file("auto") is None
    assert gguf_file(str(save_model(tmp_path / "safe"))) is None


def test_a_draft_needs_a_gguf_file(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: True)
    settings = Settings(model=str(gguf), device="cpu")
    assert find_peer("llama.cpp", settings).modes == [PLAIN_MODE, LOOKUP_MODE, HASHED_MODE]
    assert DRAFT_MODE in find_peer("llama.cpp", replace(settings, draft=str(gguf))).modes
    with pytest.raises(UsageError, match="penal"):
        find_peer("llama.cpp", replace(settings, repetition_penalty=1.1))
    with pytest.raises(UsageError, match="no peer 'vllm'"):
        find_peer("vllm", settings)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = ["bench", book, "--peer", "llama.cpp", "--device", "cpu"]
    monkeypatch.setattr(module, "find_spec", lambda _: True)
    for model in ("small", "auto"):
        run(*command, "--model", model).is_refusal(2, "pass --model FILE.gguf")
    for flags in (["--profile"], ["--inflate", "llama-2-7b"]):
        run(*command, *flags).is_refusal(2, "leave out --inflate and --profile")
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    run(*command, "--model", "small").is_refusal(2, "pip install xllamacpp")


@installed
@pytest.mark.usefixtures("empty_cache")
def test_the_command(tmp_path: Path, gguf: Path, draft: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = ["bench", book, "--model", gguf, "--draft", draft, "--device", "cpu", "--peer", "llama.cpp"]
    flags = ["--contexts", "400", "--stacks", "autoregressive", "--tokens", "9", "--repeats", "2"]
    more = ["--temperatures", "0", "--past-end", "--prompts", "2", "--dtype", "float32"]
    record = run(*command, *flags, *more, "--json").json
    assert schema_errors("bench", record) == []
    plain, *rows = record["rows"]
    assert [each["contender"] for each in rows] == [
        "llama.cpp",
        "llama.cpp lookup",
        "llama.cpp ngram-mod",
        "llama.cpp draft",
    ]
    assert {(each["context"], each["tokens"], each["prompts"]) for each in rows} == {(400, 18, 2)}
    assert plain["leading_equal"] is None
    assert all(each["speedup"] and each["leading_equal"] == 18 and each["same_tokens"] for each in rows)
    assert all(0 < each["peak_bytes"] < plain["peak_bytes"] for each in rows)
    assert record["peer"]["model"] == gguf.name
    shown = run(*command, *flags, *more)
    assert shown.code == 0, shown.err
    assert "llama.cpp draft" in shown.out
    assert "18/18" in shown.out
