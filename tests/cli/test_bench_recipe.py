"""What a bench loads and has compiled ahead, as it follows from its options."""

from __future__ import annotations

import pytest

from triforce_chat.cli.bench import BenchOptions, plan_bench
from triforce_chat.settings.options import Options


@pytest.mark.parametrize(
    ("given", "vary", "compiled"),
    [
        ("chain", [], "chain"),
        ("chain", ["tree=chain,specinfer,sequoia"], "specinfer"),
        ("sequoia", [], "sequoia"),
        ("sequoia", ["tree-size=8,16"], "sequoia"),
    ],
)
def test_kernels_of_trees_are_compiled_where_a_case_drafts_some(
    given: str, vary: list[str], compiled: str
) -> None:
    recipe = plan_bench(
        BenchOptions(stacks="autoregressive,naive", vary=vary), Options(tree=given), None, None
    )
    assert recipe.compiled.tree == compiled
    assert recipe.loaded.tree == "chain"  # the stack that is loaded first drafts none
    assert recipe.settings.tree == given


@pytest.mark.parametrize(
    ("stacks", "vary", "largest", "loaded"),
    [
        (
            "autoregressive,naive",
            ["tree=chain,sequoia", "tree-size=64,512,256"],
            512,
            ("naive", "sequoia", 512),
        ),
        ("autoregressive,naive", ["tree=sequoia,auto"], None, ("naive", "auto", None)),
        ("autoregressive,naive", ["tree=sequoia", "tree-size=16,64"], 64, ("auto", "chain", None)),
        ("naive,triforce", ["tree=sequoia", "tree-size=512"], 512, ("auto", "chain", None)),
    ],
)
def test_memory_is_planned_for_large_trees(
    stacks: str, vary: list[str], largest: int | None, loaded: tuple[str, str, int | None]
) -> None:
    recipe = plan_bench(BenchOptions(stacks=stacks, vary=vary), Options(), None, None)
    found = recipe.loaded
    assert recipe.compiled.tree_size == largest
    assert (found.stack, found.tree, found.tree_size) == loaded


@pytest.mark.parametrize(
    ("stacks", "loaded"),
    [("autoregressive,triforce,triforce-int4", "triforce-int4"), ("autoregressive,triforce", "auto")],
)
def test_memory_is_planned_for_a_quantized_copy_if_a_case_has_one(stacks: str, loaded: str) -> None:
    recipe = plan_bench(BenchOptions(stacks=stacks), Options(), None, None)
    assert recipe.loaded.stack == loaded
