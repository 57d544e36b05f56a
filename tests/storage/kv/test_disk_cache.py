"""The disk cache returns what a prefill would compute, bit for bit, or nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.caches import buffer_of
from support.caching_engine import CHUNK, TOKENS, CachingEngine, Tokens, files
from support.labs import Lab, random_model
from torch import Tensor

from triforce_chat.chat.events import Tally
from triforce_chat.engine import prefix_cache, prefix_store
from triforce_chat.engine.prefix_store import ROOT, DocumentSpan, NullStore, split_prompt
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.settings.settings import STACKS
from triforce_chat.storage.kv import disk_cache as disk_cache_module
from triforce_chat.storage.kv import entry
from triforce_chat.storage.kv.disk_cache import Intake
from triforce_chat.storage.kv.fingerprint import fingerprint
from triforce_chat.ui import formatting


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", CHUNK)


def stored(caching: CachingEngine, length: int | None = None) -> tuple[Tensor, Tensor]:
    """The keys and values of the first ``length`` tokens in the full cache, by default of all."""
    buffer, length = buffer_of(caching.engine.full), length or caching.engine.full.length
    return buffer.keys[:, :, :length].clone(), buffer.values[:, :, :length].clone()


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("stack", STACKS)
def test_answers_are_the_same_with_and_without_a_cache(lab: Lab, tmp_path: Path, stack: str) -> None:
    prompt, ends = lab.text(200), (DocumentSpan(150, "A book"),)
    without = CachingEngine(lab, tmp_path / "none", stack, store=NullStore())
    expected = without.answer(prompt, ends)
    assert expected[0] == lab.greedy(prompt, 24)
    assert CachingEngine(lab, tmp_path, stack).answer(prompt, ends) == expected
    again = CachingEngine(lab, tmp_path, stack)
    assert again.answer(prompt, ends) == (expected[0], 182)
    again.engine.settle(prompt)
    without.engine.settle(prompt)
    assert same(stored(again), stored(without))
    assert not files(tmp_path / "none")


@pytest.mark.parametrize(
    "stack", [name for name in STACKS if name != "auto"]
)  # its choices depend on the clock
def test_a_seed_draws_the_same_with_and_without_a_cache(lab: Lab, tmp_path: Path, stack: str) -> None:
    """After the book come fewer tokens than the queries that select chunks for the retrieval cache."""
    prompt, ends, sampling = lab.text(153), (DocumentSpan(150, "A book"),), Sampling(temperature=1.0, seed=3)
    answers = [CachingEngine(lab, tmp_path, stack).answer(prompt, ends, sampling=sampling) for _ in range(2)]
    assert [cached for _, cached in answers] == [0, 150]
    assert answers[0][0] == answers[1][0]


def test_a_text_after_another_beginning_is_stored_as_computed_alone(lab: Lab, tmp_path: Path) -> None:
    prompt = lab.text(200)
    caching, fresh = CachingEngine(lab, tmp_path), CachingEngine(lab, tmp_path / "none", store=NullStore())
    caching.answer([*prompt[:20], 1, 2], n=3)
    assert caching.read(prompt) == 0
    assert CachingEngine(lab, tmp_path).read(prompt) == 192
    fresh.read(prompt)
    assert same(stored(caching, 192), stored(fresh, 192))


def test_a_turn_computes_only_what_is_new(lab: Lab, tmp_path: Path) -> None:
    prompt, caching = lab.text(100), CachingEngine(lab, tmp_path)
    said, _ = caching.answer(prompt)
    assert caching.read([*prompt, *said, *lab.text(200, seed=3)]) == len(prompt) + len(said) - 1


def test_a_span_end_within_a_stored_chunk_starts_new_chunks(lab: Lab, tmp_path: Path) -> None:
    prompt, ends = lab.text(190), [DocumentSpan(40, "A book")]
    CachingEngine(lab, tmp_path).read(prompt, ends)
    caching = CachingEngine(lab, tmp_path)
    caching.read(prompt)
    assert caching.read(prompt, ends) == 168  # 32, 8 up to the span's end, four times 32


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """A cache's history of (shared tokens, own tokens, span end, events of the prefill, new process, damage)."""
    number = st.integers
    step = st.tuples(
        number(0, 150), number(1, 100), number(0, 160), number(1, 9), st.booleans(), st.none() | number(0)
    )
    return draw(st.lists(step, min_size=1, max_size=6))


@given(histories())
@example([(0, 2, 0, 2, False, None), (1, 1, 1, 2, False, None)])  # a span that ends within a chunk
@settings(max_examples=30, deadline=None, derandomize=True)
def test_any_history_gives_what_a_prefill_computes(lab: Lab, history: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        caching = CachingEngine(lab, folder)
        for common, own, border, steps, reopened, damage in history:
            caching = CachingEngine(lab, folder) if reopened else caching
            prompt, ends = lab.text(150)[:common] + lab.text(own, seed=common % 3), [DocumentSpan(border)]
            for _ in zip(range(steps), caching.engine.prefill(prompt, ends), strict=False):
                pass
            caching.disk_cache.writer.finish()
            caching.disk_cache.writer.closed = False
            flip_a_byte(files(folder), damage)
        reader, fresh = CachingEngine(lab, folder), CachingEngine(lab, folder / "none", store=NullStore())
        reader.read(prompt, ends)
        fresh.read(prompt, ends)
        assert same(stored(reader), stored(fresh))
        caching.read(prompt, ends)
        whole = caching.engine.prefix.chunks[-1].end if caching.engine.prefix.chunks else 0
        assert same(stored(caching, whole), stored(fresh, whole))


def flip_a_byte(paths: list[Path], damage: int | None) -> None:
    if damage is None or not paths:
        return
    path = paths[damage % len(paths)]
    data = bytearray(path.read_bytes())
    data[damage % len(data)] ^= 1 << damage % 8
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("common", "found"), [(0, 0), (31, 0), (32, 32), (95, 64), (149, 128), (150, 150), (181, 150), (182, 182)]
)
def test_the_longest_common_start_is_found(lab: Lab, tmp_path: Path, common: int, found: int) -> None:
    first, ends = lab.text(190), [DocumentSpan(150, "A book")]
    CachingEngine(lab, tmp_path).read(first, ends)
    other = first[:common] + [(token + 1) % 48 for token in lab.text(250)[common:]]
    ends = ends if common >= 150 else []
    caching, fresh = CachingEngine(lab, tmp_path), CachingEngine(lab, tmp_path / "none", store=NullStore())
    assert caching.read(other, ends) == found
    fresh.read(other, ends)
    assert same(stored(caching), stored(fresh))


@pytest.mark.parametrize("cores", [None, 1, 6, 256])
def test_any_number_of_readers_brings_back_the_same(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    prompt = lab.text(190)
    first, again = CachingEngine(lab, tmp_path), CachingEngine(lab, tmp_path)
    first.read(prompt)
    assert again.read(prompt) > 0
    assert same(stored(again), stored(first))


def test_entries_are_read_where_a_file_has_no_call_to_read_from_a_given_place(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""
    for name in ("pread", "preadv"):
        monkeypatch.delattr(os, name, raising=False)
    prompt = lab.text(190)
    first, again = CachingEngine(lab, tmp_path), CachingEngine(lab, tmp_path)
    first.read(prompt)
    assert again.read(prompt) > 0
    assert same(stored(again), stored(first))


def test_a_longer_conversation_begins_where_the_last_one_stopped(lab: Lab, tmp_path: Path) -> None:
    prompt, ends = lab.text(100), [DocumentSpan(80, "A book")]
    first = CachingEngine(lab, tmp_path)
    said, _ = first.answer(prompt, ends)
    longer = [*prompt, *said, *lab.text(20, seed=3)]
    again = CachingEngine(lab, tmp_path)
    assert again.answer(longer, ends) == (lab.greedy(longer, 24), 112)  # what was answered is kept as well
    assert same(stored(again, 112), stored(first, 112))
    assert CachingEngine(lab, tmp_path).answer([*longer, 1], ends)[1] == 144


def test_tokens_in_the_engine_are_used_before_the_disk(lab: Lab, tmp_path: Path) -> None:
    prompt = lab.text(200)
    CachingEngine(lab, tmp_path).read(prompt)
    caching = CachingEngine(lab, tmp_path)
    caching.read(prompt[:70])
    assert len(caching.engine.prefix.chunks) == 2
    seen = [*caching.engine.prefill(prompt)]
    assert [(each.done, each.cached, each.recalled) for each in seen] == [
        (96, 96, 32),
        (128, 128, 64),
        (160, 160, 96),
        (192, 192, 128),
        (192, 192, 128),
        (200, 192, 128),
    ]
    assert caching.engine.cached == prompt


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_part_is_in_its_slots_when_it_was_taken(device: str, pinned: bool) -> None:
    """Also where the device has long work to do, and where further parts are read into the same room."""
    intake, shape = Intake(torch.device(device)), (3, 64, 8)
    numbers = [torch.randn(3, 20, 8).bfloat16() for _ in range(40)]
    whole = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in numbers]
    slots = [[each[:, 7:27]] for each in whole]
    if device == "cuda":
        torch.cuda._sleep(50_000_000)
    buffer = intake.buffers(numbers[0].nbytes, pinned and device == "cuda")[0]
    for number, told in enumerate(numbers):
        buffer[:] = told.view(torch.uint8).numpy().tobytes()
        intake.take(slots, number, buffer)
    buffer[:] = bytes(len(buffer))
    for told, held in zip(numbers, whole, strict=True):
        assert torch.equal(held[:, 7:27].cpu(), told)
        assert not held[:, :7].any()
        assert not held[:, 27:].any()


def test_an_interrupted_prefill_resumes_in_another_process(lab: Lab, tmp_path: Path) -> None:
    prompt, caching = lab.text(200), CachingEngine(lab, tmp_path)
    events = caching.engine.prefill(prompt)
    while next(events).done < 96:
        pass
    events.close()
    caching.disk_cache.writer.finish()
    assert CachingEngine(lab, tmp_path).read(prompt) == 96
    assert CachingEngine(lab, tmp_path).read(prompt) == 192


def test_a_program_that_waits_at_its_exit_says_why(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache_module, "SILENT", 0.05)
    go_on, notes = threading.Event(), []
    save = entry.save

    def slow(*arguments: Any) -> None:
        assert go_on.wait(60)
        save(*arguments)

    monkeypatch.setattr(entry, "save", slow)
    caching = CachingEngine(lab, tmp_path)
    for _ in caching.engine.prefill(lab.text(100)):
        pass

    def notify(line: str) -> None:
        notes.append(line)
        go_on.set()

    caching.disk_cache.writer.finish(20, notify)
    assert notes == [disk_cache_module.WAITING]
    caching.disk_cache.writer.finish(20, notify)  # nothing is left to write
    assert len(notes) == 1
    assert CachingEngine(lab, tmp_path).read(lab.text(100)) == 96


def test_overwritten_slots_are_not_stored(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer has read half of an entry when another prompt overwrites its slots."""
    halfway, go_on = threading.Event(), threading.Event()
    save = entry.save

    def slow(path: Path, header: entry.EntryHeader, parts: Iterable[memoryview]) -> None:
        def paused() -> Iterator[memoryview]:
            for n, part in enumerate(parts):
                if n == 2:
                    halfway.set()
                    assert go_on.wait(60)
                yield part

        save(path, header, paused())

    monkeypatch.setattr(entry, "save", slow)
    first, second = lab.text(100), lab.text(100, seed=7)
    caching = CachingEngine(lab, tmp_path)
    for _ in caching.engine.prefill(first):
        pass
    assert halfway.wait(60)
    for _ in caching.engine.prefill(second):
        pass
    go_on.set()
    caching.disk_cache.writer.finish()
    monkeypatch.setattr(entry, "save", save)
    assert CachingEngine(lab, tmp_path).read(first) == 0
    reader, fresh = CachingEngine(lab, tmp_path), CachingEngine(lab, tmp_path / "none", store=NullStore())
    assert reader.read(second) == 96
    fresh.read(second)
    assert same(stored(reader), stored(fresh))


def test_queries_exist_only_for_computed_tokens(lab: Lab, tmp_path: Path) -> None:
    prompt = lab.text(130)
    CachingEngine(lab, tmp_path).read(prompt)
    caching = CachingEngine(lab, tmp_path)
    caching.read(lab.text(135, seed=5))  # its queries are at the same positions
    assert caching.read(prompt) == 128
    assert latest(caching, 0, 16).shape[1] == 2
    fresh = CachingEngine(lab, tmp_path / "none", store=NullStore())
    fresh.read(prompt)
    for layer in range(2):
        assert torch.equal(latest(caching, layer, 2), latest(fresh, layer, 2))


def latest(caching: CachingEngine, layer: int, most: int) -> Tensor:
    full = caching.engine.full
    return full.queries.latest(layer, full.length, most)


# Chunks


def test_chunks_are_full_or_end_a_span() -> None:
    def spans(length: int, *ends: int) -> list[tuple[int, int, str]]:
        made = split_prompt(range(length), [DocumentSpan(end, f"to {end}") for end in ends], 10)
        assert all(chunk.ids == tuple(range(chunk.start, chunk.end)) for chunk in made)
        assert [chunk.parent for chunk in made] == [ROOT, *(chunk.prefix_hash for chunk in made)][: len(made)]
        return [(chunk.start, chunk.end, chunk.title) for chunk in made]

    assert spans(9) == spans(0) == spans(0, 0) == []
    assert spans(10) == [(0, 10, "")]
    assert spans(29, 13) == [(0, 10, ""), (10, 13, "to 13"), (13, 23, "")]
    assert spans(13, 13) == [(0, 10, ""), (10, 13, "to 13")]
    assert spans(25, 20, 10) == [(0, 10, "to 10"), (10, 20, "to 20")]
    assert spans(25, 22, 21) == [(0, 10, ""), (10, 20, ""), (20, 21, "to 21"), (21, 22, "to 22")]
    assert spans(19, 40) == [(0, 10, "")]


def test_a_longer_prompt_has_the_same_chunks_first() -> None:
    ends = [DocumentSpan(13), DocumentSpan(40)]
    longest = split_prompt(range(90), ends, 10)
    for length in range(90):
        made = split_prompt(range(length), ends, 10)
        assert made == longest[: len(made)]


def test_known_chunks_are_taken_over_where_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, hashed, make = [DocumentSpan(13), DocumentSpan(40)], [], prefix_store.chunk_of
    known, other = split_prompt(range(60), ends, 10), split_prompt(range(60), [DocumentSpan(3)], 10)
    whole = split_prompt(range(90), ends, 10)

    def counted(ids: Sequence[int], *more: Any) -> Any:
        hashed.append(len(ids))
        return make(ids, *more)

    monkeypatch.setattr(prefix_store, "chunk_of", counted)
    assert split_prompt(range(90), ends, 10, known) == whole
    assert sum(hashed) == 90 - known[-1].end
    # Its chunks end elsewhere, but for some of them.
    assert {chunk.end for chunk in other} & {chunk.end for chunk in whole}
    assert split_prompt(range(90), ends, 10, other) == whole


def test_the_same_tokens_in_other_chunks_have_other_hashes() -> None:
    apart, together = split_prompt(range(20), [DocumentSpan(5)], 10), split_prompt(range(20), [], 10)
    assert not {chunk.prefix_hash for chunk in apart} & {chunk.prefix_hash for chunk in together}


# Fingerprints


def changed(model: Any, name: str, flip: int) -> Any:
    """The model with one number of one tensor changed slightly."""
    with torch.no_grad():
        model.get_parameter(name).view(-1)[flip] *= 1.001
    return model


def test_a_fingerprint_identifies_a_model() -> None:
    def model(**changes: Any) -> Any:
        torch.manual_seed(3)
        return random_model(**changes)

    original = fingerprint(model(), TOKENS)
    renamed = model()
    renamed.config._name_or_path = "elsewhere"
    assert fingerprint(model(), TOKENS) == fingerprint(renamed, TOKENS) == original
    others = {
        "a weight": changed(model(), "model.layers.1.mlp.up_proj.weight", 777),
        "a token": changed(model(), "model.embed_tokens.weight", 5),
        "a norm": changed(model(), "model.norm.weight", 31),
        "dtype": model().bfloat16(),
        "rope": model(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
        "epsilon": model(rms_norm_eps=1e-3),
        "architecture": model(architecture="mistral"),
    }
    swapped = model()
    with torch.no_grad():
        weight = swapped.get_parameter("model.layers.0.mlp.up_proj.weight")
        weight.copy_(weight.flip(0))
    others["rows in another order"] = swapped
    prints = {name: fingerprint(other, TOKENS) for name, other in others.items()}
    prints["vocabulary"] = fingerprint(model(), Tokens("b", "a"))
    assert len({original, *prints.values()}) == 2 + len(others)


def test_every_number_of_a_large_tensor_counts() -> None:
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(300, 50)
    model.config, model.dtype, model.device = random_model().config, torch.float32, torch.device("cpu")
    seen = {fingerprint(model, TOKENS)}
    for flip in (0, 2047, 2048, 14_335, 14_336, 14_999):
        seen.add(fingerprint(changed(model, "weight", flip), TOKENS))
    assert len(seen) == 7


def test_views_of_a_larger_tensor_at_any_offset() -> None:
    torch.manual_seed(0)
    prints = set()
    for offset in range(9):
        model: Any = torch.nn.Linear(300, 50, dtype=torch.bfloat16)
        whole = torch.arange(300 * 50 + 9).bfloat16()
        model.weight.data = whole[offset : offset + 300 * 50].view(50, 300)
        model.bias.data.zero_()
        model.config, model.dtype, model.device = random_model().config, torch.bfloat16, torch.device("cpu")
        prints.add(fingerprint(model, TOKENS))
        model.weight.data = model.weight.data.clone()
        prints.add(fingerprint(model, TOKENS))
    assert len(prints) == 9


def test_an_adapter_makes_another_model(tmp_path: Path) -> None:
    from support.tiny_models import save_adapter, save_model

    from triforce_chat.engine.forward import attention
    from triforce_chat.models.load import load_model

    base = save_model(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base)
    attention.register()
    models = [load_model(str(each), attention=attention.NAME).model for each in (base, adapter, base)]
    prints = [fingerprint(model, TOKENS) for model in models]
    assert prints[0] == prints[2] != prints[1]


@pytest.mark.parametrize("other", [b"another model", b""])
def test_another_model_finds_nothing(lab: Lab, tmp_path: Path, other: bytes) -> None:
    prompt = lab.text(100)
    CachingEngine(lab, tmp_path).read(prompt)
    assert CachingEngine(lab, tmp_path, model=other).read(prompt) == 0
    assert CachingEngine(lab, tmp_path).read(prompt) == 96


def test_the_source_of_tokens_is_shown(lab: Lab, tmp_path: Path) -> None:
    prompt = lab.text(100)
    CachingEngine(lab, tmp_path).read(prompt)
    tally = Tally()
    for event in CachingEngine(lab, tmp_path).engine.prefill(prompt[:96]):
        tally.add(event)
    assert formatting.prefill_summary(tally) == ["96 tokens read: 96 from disk"]
