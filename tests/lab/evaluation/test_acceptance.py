"""Expected acceptance, against a calculation by stock transformers, masks and plain loops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.labs import SMALL_BUDGET, Lab
from torch import Tensor

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.quantization import INT8
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward.attention import Part
from triforce_chat.engine.forward.loops import LoopForward
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.lookup import CUTOFF, NgramLookup
from triforce_chat.engine.tree import Branches
from triforce_chat.errors import DoesNotFit
from triforce_chat.lab.evaluation import acceptance as module
from triforce_chat.lab.evaluation import continuations as making
from triforce_chat.lab.evaluation.acceptance import (
    Acceptance,
    Plan,
    Scored,
    by_rank,
    matches,
    rates_by_rank,
    rows,
)
from triforce_chat.lab.evaluation.continuations import ContinuationRequest, at_once, continuations, one_by_one
from triforce_chat.lab.evaluation.forced import drafted, looked_up
from triforce_chat.lab.evaluation.means import Mean, Sum, mean
from triforce_chat.lab.evaluation.places import Prompt, prompts

SAMPLING = Sampling(temperature=0.7, repetition_penalty=1.3)


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "temperatures": [0.7],
        "policies": ["streaming"],
        "budget": SMALL_BUDGET,
        "tokens": 30,
        "samples": 1,
        "seed": 0,
    }
    return Plan(**{**settings, **changes})


def law(logits: Tensor, answer: Sequence[int]) -> Tensor:
    """SAMPLING at one position behind the answer's tokens so far: logits [V] -> [V]."""
    factor = torch.ones_like(logits)
    for token in answer:
        factor[token] = 1.3
    penalized = torch.where(logits > 0, logits / factor, logits * factor)
    return torch.softmax(penalized / 0.7, -1)


def kept(total: int) -> list[int]:
    """Positions that a cache of SMALL_BUDGET under Recent holds of ``total`` tokens."""
    last = (total - 8) // 4
    room = (24 - 4 - 8) // 4
    return [*range(4), *range((last - room) * 4, total)]


@torch.no_grad()
def middle_logits(lab: Lab, prompt: Sequence[int], made: Sequence[int]) -> Tensor:
    """The stock target, whose rows from the prompt's last token on read only what the cache keeps."""
    ids, n, total = [*prompt, *made], len(made), len(prompt) - 1
    mask = torch.ones(len(ids), len(ids)).tril().bool()
    mask[total:, :total] = False
    mask[total:, kept(total)] = True
    bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    logits: Tensor = lab.stock(torch.tensor([ids]), attention_mask=bias[None, None]).logits[0]
    return logits[-n - 1 : -1]


@torch.no_grad()
def draft_logits(lab: Lab, prompt: Sequence[int], made: Sequence[int]) -> Tensor:
    """The draft encodes 16 sinks and what follows the window's start afresh for every token."""
    ids, found, start = [*prompt, *made], [], len(prompt) - 240
    for at in range(len(prompt), len(ids)):
        held = torch.tensor([ids[:16] + ids[start:at]])
        parts = [Part(Whole(), held.shape[1])]
        found.append(lab.draft.model(held, kv=parts).logits[0, -1])
    return torch.stack(found)


class Whole(KVCache):
    """A cache that hands back what it was given."""

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Any:  # noqa: ARG002
        from triforce_chat.engine.cache.allocation import rounded_up
        from triforce_chat.engine.cache.view import KVView

        pad = (0, 0, 0, rounded_up(k.shape[2]) - k.shape[2])
        return KVView(torch.nn.functional.pad(k, pad), torch.nn.functional.pad(v, pad), k.shape[2])


def latest_longest(ids: Sequence[int]) -> tuple[int, int]:
    """What followed the latest of the longest earlier matches of the end: (token, length of the match)."""
    for length in range(8, 0, -1):
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == ids[-length:]:
                return ids[end], length
    return 0, 0


def test_acceptance_equals_a_calculation_by_hand(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = lab.text(420)
    made = [*prompt[40:70], *lab.text(12, seed=7), *prompt[100:110]]
    monkeypatch.setattr(module, "continuations", lambda *_: [made])
    engine = lab.engine("autoregressive", context=500)
    (scored,) = Acceptance(engine, SAMPLING, plan(tokens=60)).measure(Prompt("summary", 0, prompt))
    full, middle = lab.logits([*prompt, *made])[-len(made) - 1 : -1], middle_logits(lab, prompt, made)
    small = draft_logits(lab, prompt, made)
    expected = {"alpha": 0.0, "beta": 0.0, "direct": 0.0, "both": 0.0}
    sure = 0
    passed: dict[int, list[float]] = {match: [] for match in range(9)}
    for i in range(len(made)):
        p, m, d = (law(each[i], made[:i]) for each in (full, middle, small))
        token, match = latest_longest([*prompt, *made[:i]])
        beta = sum(min(float(x), float(y)) for x, y in zip(m, d, strict=True))
        expected["alpha"] += sum(min(float(x), float(y)) for x, y in zip(p, m, strict=True))
        expected["beta"] += beta
        expected["direct"] += sum(min(float(x), float(y)) for x, y in zip(p, d, strict=True))
        expected["both"] += float(m[token]) if match >= 3 else beta
        sure += match >= 3
        passed[match].append(float(p[token]))
    assert 10 < sure < len(made) - 10  # both branches count
    assert expected["alpha"] < len(made) - 5  # the middle level really sees less
    for name, total in expected.items():
        assert scored.sums[name].positions == len(made)
        assert scored.sums[name].total == pytest.approx(total, rel=1e-5), name
    (found,) = matches([scored])
    for match in (1, 2, 8):
        average: Any = pytest.approx(sum(passed[match]) / len(passed[match]), rel=1e-5)
        assert found.means[f"match_{match}"] == Mean(average, None, len(passed[match]), 1)
    assert (scored.context, scored.kind, scored.temperature, scored.policy) == (
        420,
        "summary",
        0.7,
        "streaming",
    )


def test_levels_that_see_everything_are_always_accepted(lab: Lab) -> None:
    engine = lab.engine("autoregressive")
    engine.draft = Runner(copy.deepcopy(lab.stock))
    everything = Budget(tokens=400, chunk=4)
    asked = plan(temperatures=[0.0, 1.0], policies=["mean"], budget=everything, samples=2)
    scored = list(Acceptance(engine, SAMPLING, asked).measure(Prompt("continuation", 0, lab.text(100))))
    assert [each.temperature for each in scored] == [0.0, 1.0, 1.0]
    for each in scored:
        for name in ("alpha", "beta", "direct"):
            assert each.sums[name].total / each.sums[name].positions == pytest.approx(1, abs=1e-3), name


def test_without_a_draft_only_lookup_is_measured(lab: Lab) -> None:
    engine = lab.engine("autoregressive", draft=False)
    measured = Acceptance(engine, SAMPLING, plan(policies=["mean"])).measure(
        Prompt("question", 0, lab.text(90))
    )
    (row,) = rows(list(measured))
    assert row.means["beta"] is row.means["both"] is row.means["direct"] is None
    alpha = row.means["alpha"]
    assert alpha is not None
    assert 0 < alpha.value < 1


def test_heavy_hitters_are_those_of_the_whole_prompt(lab: Lab) -> None:
    """Whatever the engine held before; their attention is not that of the last tokens alone."""
    prompt = Prompt("continuation", 0, lab.text(200))
    asked = plan(policies=["attention", "h2o", "streaming-h2o"], temperatures=[1.0])
    found = []
    for before in ([], lab.text(120)):
        engine = lab.engine("autoregressive")
        list(engine.prefill(before))
        found.append(
            [each.sums["alpha"].total for each in Acceptance(engine, SAMPLING, asked).measure(prompt)]
        )
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert len(set(found[0])) == 3


@pytest.mark.parametrize("policy", ["mean", "attention", "h2o", "streaming-h2o", "streaming"])
def test_every_policy_selects_anew_at_every_verification(lab: Lab, policy: str) -> None:
    """Also where only a prefill came before, which leaves no queries."""
    asked = plan(policies=[policy], temperatures=[0.0], tokens=60, verify=8)
    asked = replace(asked, budget=replace(SMALL_BUDGET, stride=128, scratch=128))
    run = Acceptance(lab.engine("autoregressive", context=700), SAMPLING, asked)
    (found,) = run.measure(Prompt("continuation", 0, lab.text(300)))
    assert 0 < found.sums["alpha"].total <= found.sums["alpha"].positions


def test_a_prompt_is_measured_alike_whatever_came_before(lab: Lab) -> None:
    first, second = (Prompt("continuation", 0, lab.text(90, seed)) for seed in (1, 2))
    asked = plan(policies=["mean", "minmax"], temperatures=[0.0])
    used, fresh = (Acceptance(lab.engine("autoregressive"), SAMPLING, asked) for _ in range(2))
    list(used.measure(first))
    for mine, other in zip(used.measure(second), fresh.measure(second), strict=True):
        assert mine.sums["alpha"].total == pytest.approx(other.sums["alpha"].total, rel=1e-5)
        assert mine.sums["beta"].total == pytest.approx(other.sums["beta"].total, rel=1e-5)


def test_the_middle_level_is_built_before_the_text_is_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, made = lab.text(200), lab.text(20, seed=8)
    asked = plan(policies=["mean"], tokens=80)

    def other_text_first(
        engine: Engine, prefix: Sequence[int], asked: Sequence[ContinuationRequest], *_: Any
    ) -> list[list[int]]:
        one_by_one(engine, prefix, asked, 80, ())  # its queries replace the prompt's
        return [made]

    found: list[Scored] = []
    for made_by in (other_text_first, lambda *_: [made]):
        monkeypatch.setattr(module, "continuations", made_by)
        run = Acceptance(lab.engine("autoregressive"), SAMPLING, asked)
        found += run.measure(Prompt("question", 0, prompt))
    assert found[0].sums["alpha"].total == pytest.approx(found[1].sums["alpha"].total, rel=1e-5)


@pytest.mark.parametrize("policy", ["mean", "attention"])
def test_with_verifications_a_text_is_read_piece_by_piece(
    lab: Lab, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stack does it: a proposal of four tokens by the middle level, then their verification."""
    prompt, made = lab.text(200), lab.text(30, seed=8)
    monkeypatch.setattr(module, "continuations", lambda *_: [made, made])
    asked = plan(policies=[policy], tokens=30, verify=4, samples=2)
    run = Acceptance(lab.engine("autoregressive"), SAMPLING, asked)
    first, second = run.measure(Prompt("question", 0, prompt))
    assert first.sums["alpha"].total == pytest.approx(second.sums["alpha"].total, rel=1e-5)
    engine, history, total = lab.engine("retrieval", policy=policy), [*prompt, *made], 0.0
    cache: Any
    (cache,) = (each for each in engine.full.observers if hasattr(each, "ready"))
    for end in (199, 200):
        cache.ready(1)
        lab.target.prefill(engine.full.pending(torch.tensor(history[:end])), engine.full)
    engine.full.truncate(199)
    for at in range(200, 230, 4):
        piece = torch.tensor(history[: min(at + 4, 230)])
        n = len(piece) - at
        assert cache.ready(n)
        m = lab.target(cache.pending(piece[:-1])[None], cache, n)[0].clone()
        cache.truncate(at - 1)
        p = lab.target(engine.full.pending(piece[:-1])[None], engine.full, n)[0]
        for i in range(n):
            laws = [law(logits[i], history[200 : at + i]) for logits in (p, m)]
            total += float(torch.minimum(*laws).sum())
    assert first.sums["alpha"].total == pytest.approx(total, rel=1e-4)


def test_every_sample_has_a_seed_of_its_own(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sampling] = []

    def noted(
        _engine: Engine, _ids: Sequence[int], each: Sequence[ContinuationRequest], *_: Any
    ) -> list[list[int]]:
        asked.extend(one.sampling for one in each)
        return [[1] for _ in each]

    monkeypatch.setattr(module, "continuations", noted)
    run = Acceptance(
        lab.engine("autoregressive"),
        SAMPLING,
        plan(temperatures=[0.0, 1.0], policies=["mean"], samples=2, seed=7),
    )
    for _ in range(2):
        list(run.measure(Prompt("summary", 0, lab.text(50))))
    assert [(each.temperature, each.seed) for each in asked] == [
        *[(0.0, 7), (1.0, 8), (1.0, 9)],
        *[(0.0, 10), (1.0, 11), (1.0, 12)],
    ]
    assert {each.repetition_penalty for each in asked} == {1.3}


def test_a_forced_draft_takes_one_forward_between_restarts(lab: Lab) -> None:
    calls: list[int] = []

    class Counted:
        vocabulary, device = lab.draft.vocabulary, lab.draft.device
        captures = places_on_device = False
        dtype, sequences = lab.draft.dtype, 1

        def __call__(
            self,
            ids: Tensor,
            cache: KVCache,
            rows: int,
            offset: Tensor | None = None,
            tree: Branches | None = None,
        ) -> Tensor:
            calls.append(rows)
            return lab.draft(ids, cache, rows, offset, tree)

        def loop(self, cache: KVCache, tokens: int) -> LoopForward:
            return lab.draft.loop(cache, tokens)

        def together(self, cache: KVCache, kind: Hashable, run: Callable[[Any], Any], given: Any) -> Any:
            return lab.draft.together(cache, kind, run, given)

        def in_common(self, cache: KVCache, make: Callable[[], Any]) -> Any:
            return lab.draft.in_common(cache, make)

        def unprepared(self, cache: KVCache, rows: int, branching: bool = False) -> list[Preparation]:
            return lab.draft.unprepared(cache, rows, branching)

        def committed(self, count: Tensor, length: Tensor) -> None:
            lab.draft.committed(count, length)

        def forget_state(self) -> None:
            lab.draft.forget_state()

        def before_waiting(self) -> None:
            lab.draft.before_waiting()

    history = torch.tensor(lab.text(150))
    drafted(Counted(), StreamingCache(lab.draft.shape, sinks=4, window=12, hop=7), history, 50)
    assert calls == [8, 8, 8, 8, 8, 8, 2]


@pytest.mark.parametrize(("prompt", "n"), [(3, 60), (12, 5), (90, 1), (90, 70)])
def test_a_forced_draft_says_what_it_says_token_by_token(lab: Lab, prompt: int, n: int) -> None:
    history = torch.tensor(lab.text(prompt + n))
    once, steps = (StreamingCache(lab.draft.shape, sinks=4, window=12, hop=7) for _ in range(2))
    found = drafted(lab.draft, once, history, n)
    expected = [
        lab.draft(steps.pending(history[:at])[None], steps, 1)[0, 0] for at in range(prompt, prompt + n)
    ]
    assert torch.allclose(found, torch.stack(expected), atol=1e-4)


def test_lookups_are_the_levels_own(lab: Lab) -> None:
    history, level = torch.tensor(lab.text(150)), NgramLookup()
    told = looked_up(history, 100)
    for row, at in enumerate(range(50, 150)):
        token, match = latest_longest(history[:at].tolist())
        assert (int(told.tokens[row]), int(told.match[row])) == (token, match)
        assert told.proposed[row] == (match > 0 and level.survival(match, 1)[0] >= CUTOFF)
        if match:
            level.learn(match, int(token == history[at]), 1)
    assert 0 < told.proposed.sum() < 100


def behind(prompt: list[int], *samplings: Sampling) -> tuple[list[int], list[ContinuationRequest]]:
    return prompt[:-1], [ContinuationRequest(prompt[-1:], sampling) for sampling in samplings]


def test_continuations_are_plain_samples_up_to_the_end(lab: Lab) -> None:
    prompt = lab.text(40)
    greedy = lab.greedy(prompt, 20)
    engine = lab.engine("autoregressive")
    warm = [Sampling(temperature=1, seed=seed) for seed in (5, 6, 5)]
    a, b, again = continuations(engine, *behind(prompt, *warm), 20)
    assert a == again != b
    assert continuations(engine, *behind(prompt, Sampling()), 20) == [greedy]
    ending = Engine(lab.target, 400, TextCodec(engine.decode, frozenset({greedy[3]})))
    assert continuations(ending, *behind(prompt, Sampling()), 20) == [greedy[: greedy.index(greedy[3]) + 1]]


@pytest.mark.parametrize(("kv", "batched"), [(None, True), (torch.bfloat16, True), (INT8, False)])
def test_only_keys_in_the_format_of_the_weights_are_batched(
    kv: torch.dtype | None, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has a cache of its own, in which nothing is quantized."""
    asked = [ContinuationRequest([3], Sampling())]
    shape = Shape(2, 4, 2, 16, torch.bfloat16, torch.device("cuda"), kv)
    engine: Any = SimpleNamespace(target=SimpleNamespace(shape=shape))
    for name, made in (("at_once", [1]), ("one_by_one", [0])):
        monkeypatch.setattr(making, name, lambda *_, made=made: [made])
    assert continuations(engine, [1, 2], asked, 4) == [[int(batched)]]


def test_continuations_at_once_are_those_made_one_by_one(lab: Lab) -> None:
    prompt, engine = lab.text(40), lab.engine("autoregressive")
    prefix, asked = behind(prompt, Sampling(), Sampling(repetition_penalty=1.5))
    asked.append(ContinuationRequest(prompt[3:9], Sampling()))
    slow = one_by_one(engine, prefix, asked, 20, ())
    assert at_once(engine, prefix, asked, 20) == slow
    assert slow[0] != slow[1]
    ending = Engine(lab.target, 400, TextCodec(engine.decode, frozenset({slow[0][3]})))
    assert at_once(ending, prefix, asked, 20) == one_by_one(ending, prefix, asked, 20, ())


def test_a_mean_counts_positions_and_trusts_samples() -> None:
    equal = mean([Sum(1.0, 4), Sum(3.0, 4), Sum(2.0, 4)])
    error: Any = pytest.approx(0.25 / 3**0.5)  # the usual one of 0.25, 0.75, 0.5
    assert equal == Mean(0.5, error, 12, 3)
    assert mean([Sum(3.0, 3), Sum(0.0, 1), Sum(0.0, 0)]) == Mean(0.75, 0.375, 4, 2)
    assert mean([Sum(1.0, 2)]) == Mean(0.5, None, 2, 1)
    assert mean([Sum(0.0, 0)]) is None


def test_rows_group_by_the_dimensions_asked_for() -> None:
    def one(kind: str, policy: str, alpha: float) -> Scored:
        return Scored(100, kind, 1.0, policy, 0, {"alpha": Sum(alpha, 1)})

    scored = [one("summary", "mean", 0.2), one("question", "mean", 0.6), one("summary", "minmax", 0.9)]
    found = {row.group["policy"]: row.means["alpha"] for row in rows(scored, ("policy",))}
    assert {name: each and each.value for name, each in found.items()} == {
        "mean": pytest.approx(0.4),
        "minmax": 0.9,
    }
    assert [row.group["kind"] for row in rows(scored)] == ["question", "summary", "summary"]


class Letters:
    """Stands for a chat format: a token per character, one before and one after the messages."""

    stop = ("!",)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def render(self, messages: Sequence[Any]) -> list[int]:
        return [1, *messages[0].content, 2]


def test_prompts_have_exactly_the_lengths_asked_for() -> None:
    form: Any = Letters()
    text = [1000 + i for i in range(500)]
    found = list(prompts(form, text, [300, 200], 2))
    assert [(each.kind, each.place, len(each.ids)) for each in found] == [
        (kind, place, length)
        for place in (0, 1)
        for kinds in (("summary", "question"), ("continuation",))
        for length in (200, 300)
        for kind in kinds
    ]
    assert found[4].ids == text[:200]
    assert found[-1].ids == text[200:]
    assert found[0].ids[:2] == [1, 1000]
    assert (
        bytes(each for each in found[0].ids[2:] if each < 1000)
        == b"\n\nSummarize the document in one paragraph.\x02"
    )
    assert (found[0].stop, found[4].stop) == (("!",), ())


def test_a_text_that_is_too_short_is_refused() -> None:
    form: Any = Letters()
    with pytest.raises(DoesNotFit, match="499 tokens; a context of 500"):
        list(prompts(form, [0] * 499, [500], 1))
    with pytest.raises(DoesNotFit, match="no room"):
        list(prompts(form, [0] * 499, [20], 1))


def test_ranks_tell_which_child_passes() -> None:
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.softmax(2 * torch.randn(4, 20, generator=generator), -1) for _ in range(2))
    own = by_rank(p, p, p.log())
    assert own["rank_1"].tolist() == pytest.approx([1.0] * 4)
    assert max(own["rank_2"].tolist()) < 1e-6
    for target, draft in zip(p, q, strict=True):
        other = by_rank(target.expand(20_000, 20), draft.expand(20_000, 20), draft.log().expand(20_000, 20))
        passed = torch.minimum(target, draft).sum()
        assert other["rank_1"].mean().item() == pytest.approx(passed.item(), abs=0.02)
        reached = torch.stack([*other.values()]).sum(0)
        assert reached.max() <= 1 + 1e-6
        assert reached.mean() > passed + 0.02


def test_the_rates_that_trees_begin_with_are_those_of_all_texts() -> None:
    def text(temperature: float, policy: str, first: float, positions: int) -> Scored:
        sums = {f"rank_{n}": Sum(first if n == 1 else 0.1 * positions, positions) for n in range(1, 9)}
        return Scored(1000, "summary", temperature, policy, 0, sums)

    scored = [text(0.0, "mean", 8.0, 10), text(0.6, "mean", 10.0, 20), text(0.6, "minmax", 0.0, 20)]
    assert rates_by_rank(scored) == (0.6, *7 * (0.1,))
    assert rates_by_rank([Scored(1000, "summary", 0.0, "mean", 0, {})]) == ()


def test_greedily_the_children_are_the_best_scores() -> None:
    scores = torch.tensor([[5.0, 4, 3, 2, 1, 0, -1, -2, -3, -4]])
    best = torch.nn.functional.one_hot(scores.argmax(-1), 10).float()
    for rank in range(8):
        target = torch.nn.functional.one_hot(torch.tensor([rank]), 10).float()
        found = by_rank(target, best, scores)
        assert {name for name, chance in found.items() if float(chance) > 0} == {f"rank_{rank + 1}"}
