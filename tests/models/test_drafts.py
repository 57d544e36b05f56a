"""The choice of a draft model, the note if there is none, and drafts whose logits have another width."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from rich.console import Console
from support.tiny_models import VOCABULARY, save_model, save_tokenizer, save_weights

from triforce_chat.cli.output import show_notes
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.forward.runner import fitted
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import ModelError, OutOfMemory
from triforce_chat.loading import load_engine as loading
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.memory_plan import inputs
from triforce_chat.memory_plan.inputs import workload_of
from triforce_chat.memory_plan.plan import SPARE, Memory, place_kv
from triforce_chat.models import memory, presets
from triforce_chat.models.describe import describe_source
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.presets import Preset
from triforce_chat.models.registry import resolve
from triforce_chat.settings.settings import Settings
from triforce_chat.ui.terminal import Screen

WIDTH = len(VOCABULARY)
NOT_HERE = errors.LocalEntryNotFoundError("not in the cache")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_model(tmp_path / "target", num_hidden_layers=8, hidden_size=64)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two presets, "big" with the draft "small"; a repository is here once its folder exists."""
    folder = tmp_path / "hub"

    def snapshot_download(repository: str, **_: object) -> str:
        if not (folder / repository).is_dir():
            raise NOT_HERE
        return str(folder / repository)

    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    known = (Preset("big", "o/big", 128, draft="small"), Preset("small", "o/small", 128))
    monkeypatch.setattr(presets, "PRESETS", known)
    monkeypatch.setattr("triforce_chat.models.drafts.PRESETS", known)
    return folder


def opened(model: Path | str, draft: str = "auto", **more: Any) -> tuple[Engine, LoadedModel, list[str]]:
    notes: list[str] = []
    settings = Settings(model=str(model), draft=draft, device="cpu", **more)
    engine, loaded = load_engine(EngineSpec(settings), LoadHooks(note=notes.append))
    return engine, loaded, notes


def test_a_preset_has_its_draft(hub: Path) -> None:
    save_model(hub / "o/big")
    save_model(hub / "o/small", num_hidden_layers=1)
    engine, loaded, notes = opened("big")
    assert (loaded.draft, notes) == ("small", [])
    assert engine.draft is not None
    assert engine.draft.shape.layers == 1


def test_a_presets_draft_that_cannot_be_had_leaves_it_to_lookup(hub: Path) -> None:
    save_model(hub / "o/big")
    engine, loaded, notes = opened("big")
    assert (engine.draft, loaded.draft) == (None, None)
    assert len(notes) == 1
    assert notes[0].startswith(
        "n-gram lookup drafts, because the draft model cannot be loaded: o/small: not downloaded yet"
    )
    with pytest.raises(ModelError, match="o/small: not downloaded"):
        opened("big", "small")


def test_none_is_lookup_and_needs_no_words(hub: Path) -> None:
    save_model(hub / "o/big")
    save_model(hub / "o/small", num_hidden_layers=1)
    engine, loaded, notes = opened("big", "none")
    assert (engine.draft, loaded.draft) == (None, None)
    assert notes == []


def test_a_folder_finds_a_known_draft_of_its_vocabulary(hub: Path, target: Path) -> None:
    save_model(hub / "o/small", num_hidden_layers=1)
    assert opened(target)[1].draft == "small"


@pytest.mark.usefixtures("hub")
def test_a_folder_downloads_no_draft(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def snapshot_download(_repository: str, *, local_files_only: bool = False, **_: object) -> str:
        asked.append(local_files_only)
        raise NOT_HERE

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    engine, _, notes = opened(target)
    assert engine.draft is None
    assert notes == []
    assert asked == [True]


def test_a_known_model_of_another_vocabulary_is_no_draft(hub: Path, target: Path) -> None:
    save_model(hub / "o/small", num_hidden_layers=1)
    save_tokenizer(hub / "o/small", [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]])
    engine, _, notes = opened(target, stack="triforce")
    assert engine.draft is None
    assert notes == [
        f"no draft model for {target} on this machine: n-gram lookup drafts instead; --draft names one"
    ]


def test_a_known_model_that_is_hardly_smaller_is_no_draft(hub: Path, target: Path) -> None:
    save_model(hub / "o/small", num_hidden_layers=7, hidden_size=64)
    assert opened(target)[1].draft is None


@pytest.mark.parametrize(
    ("detail", "expected"), [("live", "a choice\n"), ("plain", "a choice\n"), ("bare", "")]
)
def test_choices_are_noted_on_stderr_unless_only_the_answer_is_wanted(detail: Any, expected: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    show_notes(["a choice"], Screen(Console(file=out), Console(file=err), detail))
    assert (out.getvalue(), err.getvalue()) == ("", expected)


def spoken(engine: Engine, prompt: list[int], plain: bool) -> list[int]:
    events = engine.answer(Request(prompt, 30), plain=plain)
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


@pytest.mark.parametrize(("own", "draft"), [(24, 8), (8, 24), (0, 24), (24, 0)])
def test_padded_widths_agree(tmp_path: Path, own: int, draft: int) -> None:
    """A target may even generate a padding token, for which a narrower draft has no embedding."""
    torch.manual_seed(own)
    for name, more, layers in (("target", own, 2), ("draft", draft, 1)):
        save_weights(
            tmp_path / name, vocab_size=WIDTH + more, num_hidden_layers=layers, initializer_range=0.5
        )
        save_tokenizer(tmp_path / name)
    engine, *_ = opened(tmp_path / "target", str(tmp_path / "draft"), stack="triforce", budget=104)
    assert engine.draft is not None
    assert engine.draft.vocabulary == WIDTH + own
    engine.eos_ids = frozenset()
    prompt = [3, *range(WIDTH + own - 8, WIDTH + own), 5]
    assert spoken(engine, prompt, plain=False) == spoken(engine, prompt, plain=True)


def test_padding_has_no_probability() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert fitted(logits, 2).tolist() == [[1.0, 2.0]]
    assert torch.softmax(fitted(logits, 5), -1)[0, 3:].tolist() == [0.0, 0.0]


def test_a_draft_with_too_few_tokens_is_refused(target: Path, tmp_path: Path) -> None:
    save_weights(tmp_path / "draft", vocab_size=WIDTH - 5)
    with pytest.raises(ModelError, match=f"has {WIDTH - 5} tokens, the target's {WIDTH}"):
        opened(target, str(tmp_path / "draft"))


# How much context memory holds


def roomy(context: int, model: Path) -> int:
    """Free bytes in which exactly ``context`` tokens fit, with everything else."""
    target = describe_source(resolve(str(model)))
    budget = Budget(tokens=min(4096, max(512, target.context // 8)))
    work = workload_of(target, None, context, StackOptions(budget=budget), torch.device("cpu"), torch.float32)
    return int(place_kv(work, Memory(None, None)).device / (1 - SPARE)) + 1


def limited(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    monkeypatch.setattr(inputs, "free_bytes", lambda _device: free)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    return save_model(tmp_path / "long", num_hidden_layers=8, max_position_embeddings=8192)


@pytest.mark.parametrize(("holds", "context"), [(8192, 8192), (4000, 3072), (600, 1024), (None, 8192)])
def test_the_context_is_what_memory_holds(
    long: Path, monkeypatch: pytest.MonkeyPatch, holds: int | None, context: int
) -> None:
    limited(monkeypatch, holds and roomy(holds, long))
    engine, _, notes = opened(long, "none")
    assert engine.context == context
    if context == 8192:
        assert notes == []
    else:
        plan, shortened = notes
        assert re.fullmatch(r"8,192 tokens take [0-9]+ MB: weights [0-9]+ KB, KV .*; [0-9]+ MB free", plan)
        assert (
            shortened
            == f"context of {context:,} tokens, because there is not enough memory for the 8,192 of {long}"
        )


def test_the_plan_is_told_before_anything_is_loaded(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, roomy(4000, long))
    notes: list[str] = []
    monkeypatch.setattr(loading, "load_model", lambda *_arguments, **_more: pytest.fail(notes[0]))
    with pytest.raises(pytest.fail.Exception, match="8,192 tokens take"):
        load_engine(
            EngineSpec(Settings(model=str(long), draft="none", device="cpu")), LoadHooks(note=notes.append)
        )


def test_a_context_that_was_asked_for_is_given_or_refused(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, roomy(4000, long))
    assert opened(long, "none", context=3072)[0].context == 3072
    with pytest.raises(OutOfMemory) as refused:
        opened(long, "none", context=8000)
    found = re.fullmatch(
        "no memory for a cache of 8,000 tokens; [0-9]+ MB in all, of [0-9]+ MB free; "
        "--context ([0-9]+) is the most that fits",
        str(refused.value),
    )
    assert found
    assert opened(long, "none", context=int(found[1]))[0].context == int(found[1])
    limited(monkeypatch, 10_000)
    with pytest.raises(OutOfMemory, match=r"no context fits beside .* of weights; 'triforce-chat plan'"):
        opened(long, "none", context=100)


def test_free_memory_is_the_smaller_of_system_and_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("MEMINFO", "MemTotal: 9 kB\nMemAvailable: 7 kB\n"),
        ("LIMIT", "9000"),
        ("USED", "2000"),
    ):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(memory, name, tmp_path / name)
    cpu = torch.device("cpu")
    assert memory.free_bytes(cpu) == 7000
    (tmp_path / "LIMIT").write_text("max\n")
    assert memory.free_bytes(cpu) == 7 * 1024
    (tmp_path / "MEMINFO").unlink()
    assert memory.free_bytes(cpu) is None


def test_a_cache_takes_memory_only_where_it_is_written() -> None:
    from triforce_chat.engine.cache.shape import Shape
    from triforce_chat.engine.cache.storage import KVBuffer

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    shape = Shape(8, 4, 4, 64, torch.float32, torch.device("cpu"))
    before = resident()
    buffer = KVBuffer(shape, 65_536)
    assert buffer.keys.nbytes == 8 * 4 * 65_536 * 64 * 4
    assert resident() - before < buffer.keys.nbytes / 10
    assert buffer.keys.data_ptr() % 64 == 0
    assert not buffer.values[0, 0].any()
