"""The schedule, the optimizer's saved state, and the log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from triforce_chat.errors import UsageError
from triforce_chat.lab.training import course as module
from triforce_chat.lab.training.course import LOG, STATE, Course, Log, Optimizer

LONG = 1e6  # minutes


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def course(clock: Clock | None = None, **changes: float) -> Course:
    settings: dict[str, Any] = {"steps": 100, "minutes": LONG, "rate": 0.5, "warmup": 10, **changes}
    if clock:
        settings["started"] = clock.now
    return Course(**settings)


def test_the_rate_rises_and_falls() -> None:
    rates = [course(step=step).learning_rate for step in range(101)]
    assert rates[0] == pytest.approx(0.05, rel=0.01)
    assert rates[9] == pytest.approx(0.5, rel=0.03)
    assert max(rates) == rates[9]
    assert rates[50] == pytest.approx(0.5 * (0.01 + 0.99 / 2), rel=1e-6)
    assert rates[75] == pytest.approx(0.5 * (0.01 + 0.99 * (1 + math.cos(0.75 * math.pi)) / 2), rel=1e-6)
    assert rates[100] == pytest.approx(0.005)
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_it_ends_by_steps() -> None:
    assert [course(step=step).done for step in (0, 99, 100, 101)] == [False, False, True, True]


def test_it_ends_by_the_clock(clock: Clock) -> None:
    going = course(clock, minutes=2)
    assert (going.progress, going.done) == (0, False)
    clock.now += 30
    going.step = 10
    assert going.progress == 0.25
    going.step = 50
    assert going.progress == 0.5
    clock.now += 90
    assert going.done


def test_earlier_parts_count(clock: Clock) -> None:
    going = course(clock, minutes=2, spent=90.0)
    assert going.progress == 0.75
    clock.now += 30
    assert (going.seconds, going.done) == (120, True)


def parameters(*sizes: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(3, size, generator=generator)) for size in sizes]


def advance(optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        generator = torch.Generator().manual_seed(optimizer.course.step)
        for parameter in optimizer.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_a_step_is_adamw_at_the_courses_rate() -> None:
    ours, plain = parameters(4), parameters(4)
    optimizer = Optimizer(ours, course(), decay=0.1)
    adam = torch.optim.AdamW(plain, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(5):
        gradient = 7 * torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        ours[0].grad, plain[0].grad = gradient.clone(), gradient / gradient.norm()
        adam.param_groups[0]["lr"] = course(step=step).learning_rate
        optimizer.step()
        adam.step()
        assert ours[0].grad is None
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-4, atol=1e-5)
    assert optimizer.course.step == 5


def test_small_gradients_are_not_cut() -> None:
    ours = parameters(4)
    optimizer = Optimizer(ours, course())
    ours[0].grad = torch.full((3, 4), 1e-3)
    optimizer.step()
    torch.testing.assert_close(optimizer.adam.state[ours[0]]["exp_avg"], torch.full((3, 4), 1e-4))


def test_a_resumed_training_goes_on_as_if_nothing_had_been(tmp_path: Path, clock: Clock) -> None:
    whole = Optimizer(parameters(4, 2), course(clock))
    advance(whole, 9)
    first = Optimizer(parameters(4, 2), course(clock))
    advance(first, 5)
    clock.now += 42
    first.save(tmp_path)
    advance(first, 2)  # lost
    clock.now += 1000
    second = Optimizer([nn.Parameter(torch.zeros_like(p)) for p in parameters(4, 2)], course(clock))
    assert second.resume(tmp_path)
    assert (second.course.step, second.course.seconds) == (5, 42)
    advance(second, 4)
    for ours, theirs in zip(second.parameters, whole.parameters, strict=True):
        assert torch.equal(ours, theirs)
    clock.now += 8
    assert second.course.seconds == 50
    assert [file.name for file in tmp_path.iterdir()] == [STATE]


def test_nothing_saved_is_nothing_to_resume(tmp_path: Path) -> None:
    optimizer = Optimizer(parameters(4), course())
    assert not optimizer.resume(tmp_path)
    assert not optimizer.resume(tmp_path / "nowhere")
    assert torch.equal(optimizer.parameters[0], parameters(4)[0])


@pytest.mark.parametrize("sizes", [(4,), (4, 1), (4, 3), (4, 2, 2)])
def test_the_state_of_another_training_is_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    saved = Optimizer(parameters(4, 2), course())
    advance(saved, 1)
    saved.save(tmp_path)
    other = Optimizer(parameters(*sizes), course())
    with pytest.raises(UsageError, match=r"contains another training; choose another --out"):
        other.resume(tmp_path)
    assert torch.equal(other.parameters[0], parameters(*sizes)[0])


@pytest.mark.parametrize("content", [b"", b"no state", b"PK\3\4 half a file"])
def test_a_damaged_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(UsageError, match=r"state\.pt.* is damaged"):
        Optimizer(parameters(4), course()).resume(tmp_path)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def test_a_log_has_a_line_for_every_report(tmp_path: Path, clock: Clock) -> None:
    going = course(clock, step=3)
    clock.now += 1.26
    log = Log(tmp_path / "new" / "folder", 0)
    told = log.add(going, {"loss": torch.tensor(1.23456789), "length": 8192})
    assert lines(tmp_path / "new" / "folder") == [told]
    assert told == {"step": 3, "seconds": 1.3, "loss": 1.2346, "length": 8192}


def test_a_resumed_log_goes_on_where_the_state_was_saved(tmp_path: Path) -> None:
    for step in range(1, 6):
        Log(tmp_path, step - 1).add(course(step=step), {"loss": step})
    log = Log(tmp_path, 3)
    log.add(course(step=4), {"loss": 40})
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(1, 1), (2, 2), (3, 3), (4, 40)]
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 5, "sec')  # stopped in the midst of a line
    Log(tmp_path, 4).add(course(step=5), {"loss": 50})
    assert [line["loss"] for line in lines(tmp_path)] == [1, 2, 3, 40, 50]


def test_a_new_training_has_a_new_log(tmp_path: Path) -> None:
    Log(tmp_path, 0).add(course(step=1), {"loss": 1})
    Log(tmp_path, 0).add(course(step=1), {"loss": 2})
    assert [line["loss"] for line in lines(tmp_path)] == [2]
