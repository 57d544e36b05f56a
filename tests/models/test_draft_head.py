"""Drafts that are built on their target, from their folders: what is loaded, what is refused, what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.answers import answer
from support.head_drafts import random_head, save_head_draft
from support.tiny_models import HIDDEN, VOCABULARY, save_model, save_tokenizer
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.doctor import stores
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward.target_state import TargetState
from triforce_chat.engine.group import SINGLE
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import ModelError
from triforce_chat.lab.evaluation.acceptance import Acceptance, Plan
from triforce_chat.loading.calibration_file import about
from triforce_chat.loading.compiling import kernels_of
from triforce_chat.loading.join_draft import draft_runner, share_matrices
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.planning import memory_plan
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan.inputs import describe_draft, workload_of
from triforce_chat.models.describe import describe
from triforce_chat.models.draft_head import FILE, DraftHead, read_draft_head
from triforce_chat.models.draft_vocabulary import FILE as VOCABULARY_FILE
from triforce_chat.models.load import LoadedModel, check_draft, load_model
from triforce_chat.models.shapes import BigShape
from triforce_chat.settings.settings import Settings

WIDE = len(VOCABULARY)
KNOWN = torch.tensor([token for token in range(2, WIDE) if token % 7])
BIG = BigShape("big", hidden=2 * HIDDEN, layers=3, heads=8, kv_heads=4, head_dim=16, mlp=96)
NARROW: dict[str, Any] = {"hidden_size": 16, "head_dim": 4, "num_hidden_layers": 1, "initializer_range": 0.3}


@pytest.fixture
def target(tmp_path: Path) -> LoadedModel:
    torch.manual_seed(1)
    return load(save_model(tmp_path / "target", initializer_range=0.3, max_position_embeddings=512))


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_model(str(folder), attention="sdpa", **options)


def saved(folder: Path, target: LoadedModel, **changes: Any) -> Path:
    torch.manual_seed(2)
    return save_head_draft(folder, target.model, target.tokenizer, KNOWN, **changes)


def drafting(folder: Path, target: LoadedModel) -> LoadedModel:
    return load(folder, tokenizer=target.tokenizer)


@pytest.mark.parametrize("changes", [{}, NARROW], ids=["as wide as its target", "narrow"])
def test_its_matrices_are_made_of_its_targets(
    target: LoadedModel, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = saved(tmp_path / "draft", target, **changes)
    names = load_file(folder / "model.safetensors").keys()
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & names
    draft, head = drafting(folder, target), read_draft_head(folder)
    check_draft(target, draft)
    assert head is not None
    assert draft.head is not None
    share_matrices(draft, draft.head, target, SINGLE)
    into, out = (
        each.get_parameter(name)
        for each, name in ((target.model, "model.embed_tokens.weight"), (target.model, "lm_head.weight"))
    )
    embedding = draft.model.get_input_embeddings().weight
    assert embedding.shape == (len(KNOWN) + 1, head.embed.shape[0])
    torch.testing.assert_close(embedding[3], head.embed.float() @ into[KNOWN[3]])
    torch.testing.assert_close(embedding[-1], head.embed.float() @ into[KNOWN].mean(0))
    output = draft.model.get_output_embeddings().weight
    torch.testing.assert_close(output[5], out[KNOWN[5]] @ head.output.float())
    assert not output[-1].any()
    runner = draft_runner(draft, target, TargetState(HIDDEN, torch.float32, torch.device("cpu")))
    assert runner.reader is not None
    assert runner.reader.matrix.dtype == torch.float32


def test_a_draft_that_stands_alone_lacks_nothing(target: LoadedModel, tmp_path: Path) -> None:
    folder = saved(tmp_path / "draft", target)
    (folder / FILE).unlink()
    with pytest.raises(ModelError, match=r"its weights lack lm_head\.weight; download the model again"):
        drafting(folder, target)


def test_other_weights_must_be_there(target: LoadedModel, tmp_path: Path) -> None:
    folder = saved(tmp_path / "draft", target)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"its weights lack model\.norm\.weight"):
        drafting(folder, target)


def changed(**tensors: torch.Tensor | None) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        found = {**load_file(file), **tensors}
        save_file({name: each for name, each in found.items() if each is not None}, file)

    return damage


def cut(end: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:end])

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "shortened": cut(-9),
    "empty": cut(0),
    "without ages": changed(ages=None),
    "with something else": changed(other=torch.ones(1)),
    "no matrix": changed(embed=torch.ones(HIDDEN)),
    "another width": changed(state=torch.ones(HIDDEN + 1, HIDDEN)),
    "narrow ages": changed(ages=torch.ones(3, HIDDEN - 1)),
    "no age": changed(ages=torch.ones(0, HIDDEN)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line(target: LoadedModel, tmp_path: Path, damage: str) -> None:
    folder = saved(tmp_path / "draft", target)
    DAMAGES[damage](folder / FILE)
    with pytest.raises(ModelError, match=r"copy or train the draft again") as told:
        drafting(folder, target)
    assert FILE in str(told.value)
    assert "\n" not in str(told.value)


def test_a_target_of_another_width_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    head = random_head(HIDDEN + 8, width=HIDDEN)
    draft = drafting(saved(tmp_path / "draft", target, head=head), target)
    with pytest.raises(
        ModelError, match=r"draft .* cannot draft for .*target: .* of 40 channels, not of 32$"
    ):
        check_draft(target, draft)
    with pytest.raises(ModelError, match="40 channels"):
        engine_of(target, tmp_path / "draft", "naive")


def test_files_that_do_not_fit_each_other_are_refused(target: LoadedModel, tmp_path: Path) -> None:
    draft = drafting(saved(tmp_path / "draft", target, head=random_head(HIDDEN, width=HIDDEN + 2)), target)
    with pytest.raises(ModelError, match="is damaged: its files do not fit each other"):
        check_draft(target, draft)
    (saved(tmp_path / "other", target) / VOCABULARY_FILE).unlink()
    with pytest.raises(ModelError, match="is damaged: its files do not fit each other"):
        check_draft(target, drafting(tmp_path / "other", target))


def test_a_draft_for_another_tokenizer_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    draft = drafting(saved(tmp_path / "draft", target), target)
    save_model(tmp_path / "other")
    save_tokenizer(tmp_path / "other", [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]])
    with pytest.raises(ModelError, match="it was made for another tokenizer"):
        check_draft(load(tmp_path / "other"), draft)


def test_it_is_no_target(target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "draft", target)
    save_tokenizer(folder)
    said = r"draft is a draft that reads its target's states: pass it as --draft, and its target as --model$"
    for tried in (lambda: load(folder), lambda: load_engine(EngineSpec(Settings(str(folder), "none")))):
        with pytest.raises(ModelError, match=said):
            tried()
    done = CliRunner().invoke(app, ["plan", "--model", str(folder)])
    assert (done.exit_code, done.stderr.count("\n")) == (ModelError.exit_code, 1)
    monkeypatch.setattr(stores, "_model_in_effect", lambda: (str(folder), None))
    [found] = stores.chosen_model()
    assert found.status == "problem"
    assert "reads its target's states" in found.message


def engine_of(target: LoadedModel, draft: Path, stack: str, big: bool = False, device: str = "cpu") -> Engine:
    given = Settings(target.name, str(draft), stack=stack, budget=104, gamma=4, draft_gamma=2, device=device)
    settings = replace(given, dtype="float32")
    engine, loaded = load_engine(EngineSpec(settings, 400, BIG if big else None))
    assert loaded.draft == str(draft)
    engine.eos_ids = frozenset()
    return engine


@pytest.mark.parametrize("big", [False, True], ids=["", "inflated"])
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming", "auto"])
def test_a_draft_folder_drafts_exactly(target: LoadedModel, tmp_path: Path, stack: str, big: bool) -> None:
    engine, accepted = engine_of(target, saved(tmp_path / "draft", target), stack, big), 0
    for start in range(3, 60, 8):
        prompt = [*range(start, start + 30), *range(start, start + 9)]
        said, count = answer(engine, prompt)
        assert said == answer(engine, prompt, plain=True)[0]
        accepted += count
    assert accepted > 0 or stack == "auto"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_inflated_target_gets_the_same_proposals(
    target: LoadedModel, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state begins with the original's."""
    folder, propose = saved(tmp_path / "draft", target, **NARROW), DraftModel.propose
    proposals: list[list[Any]] = []

    def noted(self: DraftModel, *given: Any) -> Any:
        proposals[-1].append(propose(self, *given))
        return proposals[-1][-1]

    monkeypatch.setattr(DraftModel, "propose", noted)
    for big in (False, True):
        proposals.append([])
        engine = engine_of(target, folder, "naive", big, device)
        assert engine.target.shape.head_dim == (16 if big else HIDDEN // 4)
        answer(engine, [*range(40, 80)])
    assert len(proposals[0]) == len(proposals[1]) > 5
    for small, big_one in zip(*proposals, strict=True):
        torch.testing.assert_close(big_one.probs, small.probs, atol=1e-3, rtol=1e-3)
        assert torch.equal(big_one.tokens, small.tokens)


def test_what_reads_a_description_copes(target: LoadedModel, tmp_path: Path) -> None:
    folder = saved(tmp_path / "draft", target, **NARROW)
    description = describe_draft(str(folder))
    assert description is not None
    own, plain = describe(target.name), replace(description, source=None)
    cpu = torch.device("cpu")
    planned, without = (
        workload_of(own, each, 256, StackOptions("naive"), cpu, torch.float32).draft_bytes
        for each in (description, plain)
    )
    assert planned - without == 16 * HIDDEN * 4  # the matrix that reads the state
    draft = drafting(folder, target)
    assert draft.head is not None
    share_matrices(draft, draft.head, target, SINGLE)
    numbers = sum(each.numel() for each in draft.model.parameters())
    caches = workload_of(own, None, 256, StackOptions("naive"), cpu, torch.float32).caches.streaming
    assert without == 4 * (numbers + 2 * 8 * caches)  # two KV heads of four
    settings = Settings(model=target.name, draft=str(folder), stack="naive", device="cpu")
    plan = memory_plan(EngineSpec(settings), own, str(folder), 256, SINGLE)
    kernels = [*kernels_of(settings, plan, own, description, torch.bfloat16)]
    sizes = kernels[1].sizes
    assert (sizes.vocabulary, sizes.hidden) == (len(KNOWN) + 1, 16)


def test_calibrations_tell_drafts_apart(target: LoadedModel, tmp_path: Path) -> None:
    draft = drafting(saved(tmp_path / "draft", target), target)
    assert draft.head is not None
    longer = replace(draft.head, ages=torch.ones(7, HIDDEN))
    heads: list[DraftHead | None] = [None, draft.head, longer]
    found = [about(target, replace(draft, head=head), 1)["draft_shape"] for head in heads]
    assert len(set(found)) == 3


def test_an_evaluation_without_states_refuses_it(target: LoadedModel, tmp_path: Path) -> None:
    from triforce_chat.engine.cache.layout import Budget
    from triforce_chat.errors import UsageError

    engine = engine_of(target, saved(tmp_path / "draft", target), "naive")
    with pytest.raises(UsageError, match="reads its target's states"):
        Acceptance(engine, Sampling(), Plan([0.0], ["mean"], Budget(), 8, 1, 0))
