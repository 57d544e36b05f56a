"""What is compiled ahead is what will be launched; Triton compiles for GPUs that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.labs import ARCHITECTURES

pytest.importorskip("triton")

from support import dry_probe

from triforce_chat.engine.compile_ahead import LOOKED_UP
from triforce_chat.engine.speculation.stacks import MOST_DRAFT_GAMMA, MOST_GAMMA, STREAMED_GAMMA

FORWARD = {"_norm_row", "_gate", "_rotate_head", "_attend", "_join"}
COMPILED = {
    **os.environ,
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": os.pathsep.join(sys.path),
}
COMPILED.pop("TRITON_INTERPRET", None)  # tests' own processes interpret the kernels


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    printed = subprocess.run(
        [sys.executable, dry_probe.__file__, "triforce-int4"],
        env=COMPILED,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    probed: dict[str, Any] = json.loads(printed)
    return probed


def test_whatever_an_engine_launches_is_compiled_ahead(found: dict[str, Any]) -> None:
    assert found["missed"] == []
    assert set(found["launched"]) == FORWARD | {"_multiply", "_attend_groups", "_weigh_all"}
    assert set(found["ahead"]) == FORWARD | {
        "_multiply",
        "_weigh_all",
        "_draw_one",
        "_attend_groups",
        "_score",
        "_gather",
        "_search",
        "_continue",
    }


def test_no_kernel_waits_for_a_slow_one_that_another_process_compiles(found: dict[str, Any]) -> None:
    numbers, processes = zip(*found["turns"], strict=True)
    assert numbers == (*range(1, 9), 0)
    assert len({*processes[:-1]}) == 1
    assert processes[-1] not in processes[:-1]


def test_what_cannot_be_compiled_keeps_nothing_else_from_it(found: dict[str, Any]) -> None:
    assert found["others"] == [2, 3, 4, 5]


@pytest.mark.parametrize("kv", ["as the model", "int8", "int4", "fp8"])
def test_builds_from_any_number_of_tokens_are_compiled_ahead(kv: str, found: dict[str, Any]) -> None:
    launched, missed = found[f"builds {kv}"]
    assert missed == []
    assert set(launched) == {"_score"} | ({"_dequantize"} if kv in ("int8", "int4") else set())


def test_lookups_are_compiled_for_all_numbers_of_tokens_that_levels_draft() -> None:
    assert (MOST_DRAFT_GAMMA, MOST_GAMMA, STREAMED_GAMMA) == LOOKED_UP


def test_what_weighs_and_reads_by_lists_is_compiled_ahead(found: dict[str, Any]) -> None:
    launched, missed = found["lists"]
    assert missed == []
    assert set(launched) == FORWARD | {"_multiply", "_weigh", "_attend_groups", "_weigh_all"}


@pytest.mark.parametrize("kv", ["int8", "int4", "fp8"])
def test_what_reads_and_writes_narrow_keys_is_compiled_ahead(kv: str, found: dict[str, Any]) -> None:
    launched, missed = found[kv]
    assert missed == []
    own = set() if kv == "fp8" else {"_attend_groups", "_quantize_full"}
    assert set(launched) == FORWARD | {"_multiply", "_weigh_all"} | own


@pytest.mark.parametrize("drafts", ["together", "trees together"])
def test_whatever_several_sequences_launch_is_compiled_ahead(drafts: str, found: dict[str, Any]) -> None:
    launched, missed = found[drafts]
    assert missed == []
    assert set(launched) >= FORWARD


def test_whatever_trees_launch_is_compiled_ahead(found: dict[str, Any]) -> None:
    ahead, missed = found["trees"]
    assert missed == []
    assert {"_weigh_tiles", "_draw_one_by_one", "_write_dists", "_test_children", "_follow", "_keep"} <= set(
        ahead
    )


@pytest.mark.parametrize(
    "answers", ["auto", "auto over keys in host memory", "triforce over keys in host memory"]
)
def test_whatever_answers_and_their_preparations_launch_is_compiled_ahead(
    answers: str, found: dict[str, Any]
) -> None:
    launched, missed = found[answers]
    assert missed == []
    assert set(launched) == FORWARD | {"_multiply", "_weigh_all"}


@pytest.mark.parametrize("draft", ["small draft", "small draft of long proposals"])
def test_whatever_a_small_draft_launches_is_compiled_ahead(draft: str, found: dict[str, Any]) -> None:
    launched, missed = found[draft]
    assert missed == []
    blocks = {"_attend_head", "_add_neurons", "_settle", "_norm_last"}
    assert set(launched) == blocks | {"_weigh_tiles", "_draw_one_by_one", "_write_dists"}


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "biased"])
def test_a_model_of_sizes_alone_launches_what_one_of_transformers_does(
    architecture: str, found: dict[str, Any]
) -> None:
    missed, ahead = found[architecture]
    assert missed == []
    assert set(ahead) == FORWARD | {"_multiply"}


@pytest.mark.parametrize("name", ["file", "mixed file"])
def test_weights_that_keep_their_format_launch_what_their_file_tells(
    name: str, found: dict[str, Any]
) -> None:
    missed, ahead = found[name]
    assert missed == []
    assert set(ahead) == FORWARD | {
        "_multiply_few",
        "_lay_out",
        "_multiply_grouped",
        "_add_shares",
        "_expand",
    }


def test_other_ranks_launch_what_the_first_does_not(found: dict[str, Any]) -> None:
    assert set(found["shared"]) == {"_multiply"}  # without a residual to add to


@pytest.mark.gpu
def test_after_a_compilation_ahead_answers_compile_nothing(tmp_path: Path) -> None:
    environment = {**COMPILED, "TRITON_CACHE_DIR": str(tmp_path)}
    for work in ("compile", "run"):
        before = {*tmp_path.rglob("*.cubin")}
        subprocess.run([sys.executable, dry_probe.__file__, work], env=environment, check=True)
    assert before
    assert [each.stem for each in {*tmp_path.rglob("*.cubin")} - before] == []
