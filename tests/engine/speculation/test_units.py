"""The small parts, each against a naive twin or its definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.labs import Lab
from support.toys import Stateless, ToyCache
from torch import Tensor

from triforce_chat.chat.events import LevelTally, Tally
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.retrieval import FallingAcceptance
from triforce_chat.engine.cache.selection import MeanKey, MinMaxKey, Recent, select
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.detokenizer import AnswerText, Detokenizer, StopStrings, overlap
from triforce_chat.engine.draft import Draft, TokenBuffer, one_hot
from triforce_chat.engine.events import Finished, Text, Verified
from triforce_chat.engine.forward import attention, onednn
from triforce_chat.engine.sampling.ops import (
    CANDIDATES,
    GREEDY,
    Uniforms,
    nucleus_floor,
    residual,
    truncate,
    verify,
    warp_fully,
)
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.cost_model import StepTimes
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import CUTOFF, ORDERS, LookedUp, NgramLookup, longest_match
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.round import Outcome
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.errors import UsageError

CPU = torch.device("cpu")
quick = settings(max_examples=80, deadline=None)
ids = st.lists(st.integers(0, 3), max_size=40)
# weights whose sums are exact, so that a border is a border in both computations
weights = st.lists(st.integers(0, 64), min_size=1, max_size=12).filter(any)


def law(parts: list[int]) -> Tensor:
    """Parts of 1024 that sum to one exactly."""
    p = torch.tensor(parts, dtype=torch.float64)
    rest = 1024 - p.sum()
    return torch.cat([p, rest[None]])[None] / 1024


# Sampling


@quick
@example([64, 64], 896)  # the first token reaches the share exactly
@given(weights, st.integers(1, 1023))
def test_nucleus_against_a_full_sort(parts: list[int], share: int) -> None:
    p, top_p = law(parts), share / 1024
    mass, floor = 0.0, 0.0
    for value in sorted(p[0].tolist(), reverse=True):
        mass, floor = mass + value, value
        if mass >= top_p:
            break
    assert nucleus_floor(p, top_p, p.shape[-1])[0].item() == floor


@quick
@given(weights, st.integers(0, 14), st.integers(1, 1024), st.integers(0, 15))
def test_truncation_against_its_definition(parts: list[int], top_k: int, share: int, least: int) -> None:
    p = law(parts)
    ranked = sorted(p[0].tolist(), reverse=True)
    keep = p[0] >= least / 16 * ranked[0]
    if 0 < top_k < len(ranked):
        keep &= p[0] >= ranked[top_k - 1]
    if share < 1024:
        mass = torch.tensor(ranked, dtype=torch.float64).cumsum(0)
        keep &= p[0] >= ranked[int((mass < share / 1024).sum())]
    kept = torch.where(keep, p[0], 0)
    sampling = Sampling(temperature=1, top_k=top_k, top_p=share / 1024, min_p=least / 16)
    got = truncate(p, sampling, CANDIDATES)[0][0]
    assert torch.allclose(got, kept / kept.sum(), atol=1e-15, rtol=0)
    assert got.argmax() == p[0].argmax()


def test_a_nucleus_wider_than_the_first_guess() -> None:
    p = torch.full((2, 5000), 1 / 5000, dtype=torch.float64)
    p[1] = torch.softmax(torch.arange(5000, dtype=torch.float64) / 3, 0)
    complete = nucleus_floor(p, 0.9, CANDIDATES)[1]
    assert complete is not None
    assert complete.tolist() == [False, True]
    kept = warp_fully(p.log(), Sampling(temperature=1, top_p=0.9)) > 0
    assert kept[0].all()
    assert p[1, kept[1]].sum() >= 0.9 > p[1, kept[1]].sum() - p[1, kept[1]].min()


class Wide(Stateless):
    """A model with one distribution, flat over more tokens than are sorted at first."""

    vocabulary, device, captures = 4 * CANDIDATES, CPU, False

    def __call__(self, ids: Tensor, cache: ToyCache, rows: int, offset: Tensor | None = None) -> Tensor:  # noqa: ARG002
        cache.fed = ids[0].tolist()
        cache.advance(ids.shape[1])
        return torch.arange(self.vocabulary).expand(1, rows, -1) / 1e4


@pytest.mark.parametrize("drafts", [False, True])
def test_a_wide_nucleus_costs_drafts_only(drafts: bool) -> None:
    """A draft may make do with the first candidates; a verification looks at more until they are enough."""
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=0)
    drafter = DraftModel(Wide(), ToyCache())  # type: ignore[arg-type]
    planner = Planner([Arm(drafter)] if drafts else [], gamma=2, plain=not drafts)
    level = Speculative("x", Wide(), ToyCache(), planner, lambda _: None)  # type: ignore[arg-type]
    sampler, seq = Sampler(sampling), TokenBuffer.of([1], 64, CPU)
    exact = warp_fully(Wide()(seq.ids[:, :1], ToyCache(), 1)[0], sampling)
    drafted = drafter.propose(seq, 1, sampler).probs
    assert (drafted > 0).sum() == CANDIDATES
    level.rollback(0)
    drafter.rollback(0)
    made, outcome = level.step(seq, sampler, 2)
    assert torch.equal(made.verdict.probs[0], exact.expand(made.verdict.probs.shape[1], -1))
    assert len(outcome.ids) == seq.known - 1
    assert (exact > 0).sum() > CANDIDATES


def test_rows_are_warped_one_by_one() -> None:
    torch.manual_seed(0)
    logits, sampling = torch.randn(5, 300) * 4, Sampling(temperature=0.7, top_k=40, top_p=0.8, min_p=0.01)
    tokens = torch.randint(0, 300, (9,))
    together = Sampler(sampling).probs(logits, tokens)
    for i in range(5):
        alone = Sampler(sampling).probs(logits[i : i + 1], tokens[: 5 + i])
        assert torch.allclose(together[i], alone[0])
    assert torch.allclose(together.sum(-1), torch.ones(5))


def test_greedy_takes_the_first_of_equals() -> None:
    probs = Sampler(Sampling()).probs(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([0]))
    assert probs.tolist() == [[0, 1, 0]]


def test_the_repetition_penalty_is_that_of_transformers_over_the_answer_alone() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    torch.manual_seed(1)
    tokens, logits = torch.tensor([4, 4, 5, 1, 2, 1]), torch.randn(3, 6)
    got = Sampler(Sampling(repetition_penalty=1.5), answer_start=3).scores(logits, tokens)
    stock = RepetitionPenaltyLogitsProcessor(1.5)
    for row, answer in enumerate(([1], [1, 2], [1, 2, 1])):
        assert torch.equal(got[row : row + 1], stock(torch.tensor([answer]), logits[row : row + 1]))


def test_an_answer_that_has_not_begun_is_not_penalised() -> None:
    logits = torch.randn(1, 6)
    sampler = Sampler(Sampling(repetition_penalty=1.5), answer_start=3)
    assert torch.equal(sampler.scores(logits, torch.tensor([4, 4, 5])), logits)


def test_half_precision_logits_become_single() -> None:
    sampler = Sampler(Sampling(temperature=1.0))
    assert sampler.probs(torch.zeros(1, 4, dtype=torch.bfloat16), torch.tensor([0])).dtype == torch.float32
    assert sampler.probs(torch.zeros(1, 4).double(), torch.tensor([0])).dtype == torch.float64


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 1},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_a_draw_at_the_edges_never_takes_a_weightless_index(u: float) -> None:
    uniforms = Uniforms(torch.empty(1, 0), torch.tensor([[u]], dtype=torch.float64))
    assert uniforms.draw(torch.tensor([[0, 0, 0.3, 0.1, 0, 0.6, 0, 0]])).tolist() == [2 if u == 0 else 5]


def test_a_greedy_draw_takes_the_token_that_has_all_the_weight() -> None:
    assert GREEDY.draw(torch.tensor([[0, 0, 0.3, 0]])).tolist() == [2]


def test_seeds_decide_and_no_seed_does_not() -> None:
    def draws(seed: int | None) -> list[int]:
        sampler, made = Sampler(Sampling(temperature=1, seed=seed)), []
        for _ in range(4):
            uniforms = Uniforms.empty(1, 0, CPU)
            sampler.fill(uniforms)
            made.append(int(uniforms.draw(torch.ones(1, 1000))))
        return made

    assert draws(1) == draws(1) != draws(2)
    assert draws(None) != draws(None)


def test_random_numbers_are_those_of_fresh_tensors() -> None:
    """So seeds mean what they meant: first those of the tests, then the one of the last token."""
    sampler, generator = Sampler(Sampling(1.0, seed=6)), torch.Generator().manual_seed(6)
    uniforms = Uniforms.empty(1, 5, CPU)
    sampler.fill(uniforms)
    assert torch.equal(uniforms.tests[0], torch.rand(5, generator=generator))
    assert torch.equal(uniforms.last[0], torch.rand(1, generator=generator, dtype=torch.float64))


# The acceptance rule


def test_residual() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.5, 0.25]])
    assert residual(p, q).tolist() == [[0.25, 0, 0]]
    assert residual(p, p).tolist() == p.tolist()  # nothing left: p itself


def test_verify_of_nothing_is_a_plain_draw() -> None:
    target = torch.tensor([[[0.0, 1.0, 0.0]]])
    for u in (0.0, 0.5, 0.999):
        uniforms = Uniforms(torch.zeros(1, 0), torch.tensor([[u]], dtype=torch.float64))
        assert verify(Draft.empty(3, CPU), target, uniforms).tolist() == [[0, 1]]


def test_a_uniform_of_zero_never_passes_an_impossible_token() -> None:
    zeros = Uniforms(torch.zeros(1, 2), torch.zeros(1, 1, dtype=torch.float64))
    ones = torch.ones(1, 2)
    assert zeros.accepts(torch.tensor([[0.0, 1.0]]), ones).tolist() == [0]
    assert zeros.accepts(torch.tensor([[0.5, 0.0]]), ones).tolist() == [1]


def test_a_batch_is_verified_like_its_rows() -> None:
    generator = torch.Generator().manual_seed(3)
    for n in (0, 1, 4):
        probs = torch.softmax(torch.randn(5, n, 7, generator=generator), -1)
        target = torch.softmax(torch.randn(5, n + 1, 7, generator=generator), -1)
        tokens = torch.randint(0, 7, (5, n), generator=generator)
        count = torch.randint(0, n + 1, (5,), generator=generator)
        uniforms = Uniforms(
            torch.rand(5, n, generator=generator), torch.rand(5, 1, generator=generator, dtype=torch.float64)
        )
        together = verify(Draft(tokens, probs, count), target, uniforms)
        for i in range(5):
            row = slice(i, i + 1)
            draft = Draft(tokens[row], probs[row], count[row])
            alone = verify(draft, target[row], Uniforms(uniforms.tests[row], uniforms.last[row]))
            assert torch.equal(together[i], alone[0])


def test_a_buffer_of_several_sequences() -> None:
    ids = torch.arange(40).view(2, 20)
    seq = TokenBuffer(ids.clone(), torch.tensor([3, 7]), 3)
    assert seq.read(-2, 2).tolist() == [[1, 2], [25, 26]]
    ahead = seq.fork(slack=8)
    ahead.commit(torch.tensor([[100, 101], [200, 201]]), torch.tensor([1, 2]))
    assert ahead.length.tolist() == [4, 9]
    assert seq.length.tolist() == [3, 7]
    assert ahead.read(-1, 1).tolist() == [[100], [201]]
    ahead.settle(3)
    assert ahead.length.tolist() == [3, 3]


# Text


def utf8(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


pieces_of = st.lists(st.integers(1, 6), min_size=1, max_size=30)


@quick
@given(st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=24)), pieces_of)
def test_chunking_never_changes_the_text(raw: bytes, sizes: list[int]) -> None:
    detokenizer, shown, at = Detokenizer(utf8), "", 0
    for size in sizes * 48:
        shown += detokenizer.push(list(raw[at : at + size]))
        at += size
    assert shown + detokenizer.flush() == utf8(raw)


def test_an_emoji_appears_whole() -> None:
    detokenizer = Detokenizer(utf8)
    assert [detokenizer.push([byte]) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]


def test_text_that_depends_on_its_neighbours() -> None:
    """Like a decoder that drops the space in front of its first word."""
    words = ["<s>", " hello", " world", "!"]
    detokenizer = Detokenizer(lambda ids: "".join(words[i] for i in ids if i).removeprefix(" "))
    assert [detokenizer.push([i]) for i in (1, 2, 0, 3, 2)] == ["hello", " world", "", "!", " world"]


@quick
@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=4), pieces_of)
def test_stop_strings_in_pieces(text: str, stop: str, sizes: list[int]) -> None:
    stops, shown, at, met = StopStrings([stop, ""]), "", 0, False
    for size in sizes * 20:
        safe, met = stops.push(text[at : at + size])
        shown, at = shown + safe, at + size
        assert stop not in shown
        if met:
            break
    assert met == (stop in text)
    assert shown + stops.held == text.split(stop)[0]
    assert len(stops.held) < len(stop)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a\xe2\x82b", "a\ufffdb"),
        (b"a\xe2\x82", "a"),
        (b"a" + 5 * b"\xff", "a\ufffd\ufffd"),  # of these only the last ones could begin a character
        ("ab€".encode(), "ab€"),
    ],
)
@pytest.mark.parametrize("pieces", [[1] * 9, [2, 9]])
def test_where_an_answer_is_cut_only_the_start_of_a_character_is_left_out(
    raw: bytes, shown: str, pieces: list[int]
) -> None:
    tokens = [raw[sum(pieces[:n]) : sum(pieces[: n + 1])] for n in range(len(pieces))]
    answer = AnswerText(lambda ids: utf8(b"".join(tokens[each] for each in ids)), [])
    made = answer.resume(range(len([each for each in tokens if each])))
    assert made + answer.cut() == shown


def test_the_first_of_several_stop_strings() -> None:
    assert StopStrings(["cd", "b"]).push("abcd") == ("a", True)
    assert StopStrings([]).push("abcd") == ("abcd", False)
    assert overlap("xxab", "abc") == 2
    assert overlap("abc", "abc") == 0  # a whole one is no overlap


# Lookup


@quick
@given(ids)
def test_longest_match_against_a_naive_search(tokens: list[int]) -> None:
    best = (0, 0)
    for end in range(1, len(tokens)):
        match = 0
        while match < min(end, ORDERS) and tokens[end - 1 - match] == tokens[-1 - match]:
            match += 1
        if match and match >= best[1]:
            best = (end, match)
    assert longest_match(np.array(tokens, dtype=np.int64)) == best


@pytest.mark.parametrize(("committed", "right"), [([5, 6, 7], 3), ([5, 6], 2), ([5, 8, 7], 1), ([8], 0)])
def test_the_host_sees_how_many_tokens_of_a_match_came_true(committed: list[int], right: int) -> None:
    """Of one that was found on the device, and of one that the host has found by itself."""
    count, unused = len(committed), [6, 7, 8][len(committed) :]
    verdict = [count, *committed, *unused, 2, 1]
    outcome = Outcome.of([*verdict, *[5, 6, 7, 9], 4], 4)
    assert (outcome.ids, outcome.right, outcome.match) == (committed, right, 4)
    assert outcome.drafted == 2
    plain = Outcome.of(verdict)
    assert (plain.ids, plain.right, plain.match) == (committed, 0, 0)
    seq = TokenBuffer.of([1, 2, 5, 6, 7, 9, 1, 2], 8, CPU)
    match = NgramLookup().match(seq.host[: seq.known])
    seq.reveal(seq.known, committed)
    assert (match, match.right(seq.host, count)) == ((8, 2, 2), right)


def lengths(found: LookedUp) -> list[int]:
    assert found.length is not None
    return found.length.tolist()


def test_lookup_continues_the_latest_match() -> None:
    seq = TokenBuffer.of([1, 2, 3, 9, 1, 2, 4, 5, 1, 2], 8, CPU)
    found = NgramLookup().find(seq, 3)
    assert (found.tokens.tolist(), lengths(found)) == ([[4, 5, 1]], [2])
    draft = Draft.one_hot(found.tokens, 10)
    assert torch.equal(draft.probs, one_hot(found.tokens, 10))
    assert lengths(NgramLookup().find(TokenBuffer.of([1, 2, 3], 8, CPU), 3)) == [0]


def test_lookup_learns_how_far_to_trust() -> None:
    right, wrong = NgramLookup(), NgramLookup()
    before = list(right.rates)
    right.learn(2, 2, 2)
    wrong.learn(2, 0, 2)
    assert right.rates[2] > before[2] > wrong.rates[2]
    assert right.rates[3] > before[3] == wrong.rates[3]  # behind a miss nothing is learnt
    right.learn(8, 9, 3)
    assert [new != old for new, old in zip(right.rates, before, strict=True)] == [
        order in (2, 3, 8) for order in range(len(before))
    ]


def test_survival_falls_and_unlikely_tokens_are_not_proposed() -> None:
    lookup = NgramLookup()
    told = lookup.survival(1, 8)
    assert all(a > b for a, b in itertools.pairwise(told))
    one, two = lookup.rates[1], lookup.rates[2]
    assert told[:2] == pytest.approx([one, one * two])
    planner = Planner([], lookup, gamma=8)
    for match in range(1, 9):
        keep = sum(chance >= CUTOFF for chance in lookup.survival(match, 8))
        assert planner.choose(9, 8, match).n == keep
    assert planner.choose(9, 8, 0).n == 0


# Times, tallies


def test_step_times_find_a_line() -> None:
    times = StepTimes()
    assert (times.known, times(3)) == (False, 0.0)
    for i in range(200):
        rows = 1 + i % 9
        times.add(rows, 0.02 + 0.001 * rows)
    assert times(1) == pytest.approx(0.021, rel=0.03)
    assert times(9) == pytest.approx(0.029, rel=0.03)


def test_a_jump_to_several_rows_does_not_make_each_of_them_dear() -> None:
    """As on a GPU, where forwards of several rows take longer than one of one row, and all of them nearly the same."""
    times = StepTimes(0.01)
    for i in range(60):
        rows = (1, 4, 12)[i % 3]
        times.add(rows, 0.1 if rows == 1 else 0.12 + 0.0001 * rows)
    assert times(1) == pytest.approx(0.1, rel=0.01)
    assert times(2) == pytest.approx(0.1202, rel=0.01)
    assert times(20) == pytest.approx(0.122, rel=0.02)
    first, more = times.line
    assert first + 20 * more == pytest.approx(times(21))
    again = StepTimes.of(times.plain())
    assert [again(rows) for rows in (1, 2, 20)] == pytest.approx(
        [times(rows) for rows in (1, 2, 20)], rel=0.01
    )


def test_a_machine_that_slows_down_leaves_the_slope_what_it_was() -> None:
    times = StepTimes(0.01)
    for rows in (1, 1, 4, 4, 16, 16) * 5:
        times.add(rows, 0.1 + 0.001 * rows)
    before = times(16) / times(4)
    for _ in range(300):
        times.add(4, 0.208)  # the machine is half as fast
    assert times(4) == pytest.approx(0.208, rel=0.01)
    assert times(16) / times(4) == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize(
    "shape",
    [
        [1.0],
        [0.1, 0.0, 0.0, 0.0, 0.0],
        [0.1, 1.0, 0.0, 0.0, 0.0, float("nan")],
        [0.1, 1.0, 3.0, 4.0, 0.0, 0.0],
        [0.1, -0.1, 0.0, -5.0, 0.0, 0.0],
    ],
)
def test_what_is_no_shape_is_refused(shape: list[float]) -> None:
    """Squares that are smaller than their sum allows were no squares."""
    with pytest.raises(ValueError, match="no shape"):
        StepTimes.of({"level": [0.1, 1.0], "shape": shape})


def test_step_times_follow_the_machine_and_forgive_outliers() -> None:
    times = StepTimes()
    for _ in range(50):
        times.add(1, 0.01)
    times.add(1, 60.0)
    assert times(1) < 0.013
    for _ in range(80):
        times.add(1, 0.02)
    assert times(1) == pytest.approx(0.02, rel=0.05)
    assert all(times(n) <= times(n + 1) for n in range(1, 20))


@quick
@given(st.lists(st.tuples(st.integers(1, 20), st.floats(1e-4, 1)), min_size=1, max_size=30))
def test_more_rows_never_cost_less(measured: list[tuple[int, float]]) -> None:
    times = StepTimes()
    for rows, seconds in measured:
        times.add(rows, seconds)
    assert all(0 < times(n) <= times(n + 1) for n in range(1, 30))


def test_falling_acceptance() -> None:
    falling = FallingAcceptance()
    for _ in range(100):
        falling.judged(4, 4)
    assert not falling
    for _ in range(24):
        falling.judged(4, 0)
    assert falling
    falling.reset()
    assert not falling


def test_tallies() -> None:
    level = LevelTally()
    assert level.acceptance is None
    for proposed, accepted in ((4, 4), (4, 1), (0, 0), (3, 0)):
        level.add(Verified("target", proposed, accepted))
    assert (level.rounds, level.proposed, level.accepted, level.tested) == (4, 11, 5, 7)
    assert level.acceptance == 5 / 7
    tally = Tally()
    assert (tally.rounds, tally.tokens_per_round, tally.ms_per_token) == (0, 0.0, 0.0)
    tally.add(Verified("retrieval", 2, 1))
    tally.add(Verified("target", 2, 1))
    tally.add(Text((5, 6), "ab"))
    tally.add(Finished("stop", 9, 3, 2, 1.0, 1.1, 0.5))
    assert (tally.rounds, tally.tokens_per_round, tally.text) == (1, 2.0, "ab")
    assert tally.ms_per_token == 250


# Selection


def test_mean_and_bounding_box() -> None:
    torch.manual_seed(0)
    keys, queries = torch.randn(3, 5, 4, 8), torch.randn(3, 6, 8)
    logits = torch.einsum("hqd,hctd->hqct", queries, keys)
    mean, box = MeanKey(), MinMaxKey()
    assert torch.allclose(mean.bound(queries, mean.summarize(keys)), logits.mean(-1), atol=1e-5)
    bound = box.bound(queries, box.summarize(keys))
    assert (bound >= logits.amax(-1) - 1e-5).all()
    corner = keys.amax(2, keepdim=True)  # keys that fill their box: the bound is reached
    assert torch.allclose(
        box.bound(queries, box.summarize(corner)),
        torch.einsum("hqd,hcd->hqc", queries, corner[:, :, 0]),
        atol=1e-5,
    )


def test_selection_sums_attention_over_the_group_and_reads_in_order() -> None:
    torch.manual_seed(0)
    keys, queries = torch.randn(2, 9, 4, 8), torch.randn(4, 3, 8)  # two query heads per KV head
    chosen = select(MeanKey(), queries[None], keys[None], 4)[0]
    for head in range(2):
        mass = torch.zeros(9)
        for query in queries[2 * head : 2 * head + 2].flatten(0, 1):
            mass += torch.softmax(keys[head].mean(1) @ query / 8**0.5, 0)
        assert chosen[head].tolist() == sorted(mass.topk(4).indices.tolist())
    none = select(Recent(), queries[None, :, :0], keys[None], 3)
    assert (none == torch.tensor([6, 7, 8])).all()
    many = select(Recent(), queries[None], torch.randn(1, 2, 5000, 4, 8).bfloat16(), 3000)
    assert (many == torch.arange(2000, 5000)).all()


@quick
@given(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9), st.integers(0, 120), st.data())
def test_a_layout_takes_the_first_the_chosen_and_the_last(
    chunk: int, sinks: int, tail: int, total: int, data: st.DataObject
) -> None:
    budget = Budget(tokens=30 + chunk, chunk=chunk, sinks=sinks, tail=tail)
    layout = Layout.of(total, budget)
    part, out = torch.randn(2, total + 7, 3), torch.zeros(2, budget.capacity, 3)
    count = layout.candidates(part).shape[1]
    picks = [sorted(data.draw(st.permutations(range(count)))[: layout.chunks]) for _ in range(2)]
    layout.gather_layer(part, torch.tensor(picks) if layout.chunks else None, out)
    assert layout.filled <= budget.tokens + 2 * chunk
    for head in range(2):
        chosen = [layout.sinks + pick * chunk + i for pick in picks[head] for i in range(chunk)]
        places = [*range(layout.sinks), *chosen, *range(layout.tail, total)]
        assert {*range(min(sinks, total)), *range(max(0, total - tail), total)} <= {*places}
        assert torch.equal(out[head, : layout.filled], part[head, places])
    assert not out[:, layout.filled :].any()


# Attention


@pytest.mark.parametrize("kernel", ["plain", "onednn"])
@pytest.mark.parametrize(("n", "past"), [(1, 0), (1, 17), (5, 0), (6, 11)])
def test_grouped_attention_against_repeated_keys(
    n: int, past: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "onednn" and not onednn.available(CPU, torch.float32):
        pytest.skip("this build of torch lacks the operators")
    if kernel == "plain":
        monkeypatch.setattr(onednn, "available", lambda *_: False)
    torch.manual_seed(0)
    shape = Shape(1, 6, 2, 8, torch.float32, CPU)
    buffer = KVBuffer(shape, 32)
    keys, values = torch.randn(1, 2, past + n, 8), torch.randn(1, 2, past + n, 8)
    query = torch.randn(1, 6, n, 8)
    if past:
        buffer.write(0, 0, keys[:, :, :past], values[:, :, :past])

    class Cache:
        def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
            return buffer.write(layer, past, k, v)

    module: Any = torch.nn.Module()
    module.layer_idx = 0
    parts: Any = [attention.Part(Cache(), n)]  # type: ignore[arg-type]
    out, _ = attention.attend(module, query, keys[:, :, past:], values[:, :, past:], None, 0.3, kv=parts)
    logits = 0.3 * query @ keys.repeat_interleave(3, 1).transpose(-1, -2)
    logits += torch.full((n, past + n), -math.inf).triu_(past + 1)
    want = torch.softmax(logits, -1) @ values.repeat_interleave(3, 1)
    assert out.shape == (1, n, 6, 8)
    assert torch.allclose(out, want.transpose(1, 2), atol=1e-5)


def test_a_full_slab_says_so() -> None:
    buffer = KVBuffer(Shape(1, 2, 2, 4, torch.float32, CPU), 3)
    with pytest.raises(ValueError, match="overflow"):
        buffer.write(0, 2, torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4))


def test_packed_weights_leave_the_numbers_as_they_are(any_lab: Lab) -> None:
    from triforce_chat.engine.cache.full import FullCache

    tokens = any_lab.text(40)
    cache = FullCache(any_lab.target.shape, 40)
    got = any_lab.target(torch.tensor([tokens]), cache, 40)[0]
    assert torch.allclose(got, any_lab.logits(tokens), atol=2e-4, rtol=1e-4)
    cache.truncate(30)  # the last ten once more, with other tokens in front of them in the cache
    again = any_lab.target(torch.tensor([tokens[30:]]), cache, 10)[0]
    assert torch.allclose(again, got[30:], atol=2e-4, rtol=1e-4)


def test_the_shape_of_a_model(any_lab: Lab) -> None:
    shape = any_lab.target.shape
    assert (shape.layers, shape.query_heads, shape.kv_heads, shape.head_dim) == (2, 4, 2, 8)
    assert (shape.group, shape.bytes_per_token) == (2, 2 * 2 * 2 * 8 * 4)
