"""``triforce-chat plan``: for models that are here and that are not, on this machine and on others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from support.schemas import schema_errors
from support.tiny_models import save_adapter, save_model, write_gguf, write_quantized_gguf
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.errors import UsageError
from triforce_chat.loading import device, ineffective_settings
from triforce_chat.loading.gpu import Gpu
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan import inputs
from triforce_chat.models import placement
from triforce_chat.models.presets import PRESETS
from triforce_chat.settings.settings import Settings
from triforce_chat.settings.sizes import parsed_size, readable

CARD = ("--device-memory", "24GB", "--host-memory", "128GB")
SMALL_CARD = ("--device-memory", "22GB", *CARD[2:])


@pytest.fixture(autouse=True)
def nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is on this machine, none can be had, and whoever loads weights fails."""
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRIFORCE_CHAT_DTYPE")  # set for all tests
    for name in ("snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, unreachable)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("loaded"))


def unreachable(*_arguments: object, **_options: object) -> str:
    raise errors.LocalEntryNotFoundError("no network")


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def plan_of(*arguments: object) -> dict[str, Any]:
    code, out, err = run(*arguments, "--json")
    plan: dict[str, Any] = json.loads(out)
    fits = plan["fits"] and all(each["at_once"] for each in plan.get("batches", ()))
    assert code == (0 if fits else 6), err
    return plan


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_any_preset_that_is_not_here(preset: Any) -> None:
    plan = plan_of("--model", preset.name, *CARD)
    assert plan["context"] == plan["made_for"] == preset.context
    assert (plan["draft"] is None) == (preset.draft is None)
    assert (plan["dtype"], plan["gpus"], plan["warning"]) == ("bfloat16", 1, None)
    assert (
        sum(plan["bytes"][name] for name in ("weights", "kv", "retrieval", "draft", "activations"))
        == (plan["bytes"]["device"])
    )
    assert plan["available"] == {"device": 24 * 10**9, "host": 128 * 10**9}


def test_a_table_that_says_what_to_do() -> None:
    model = ("--model", "mistral-7b", "--device-memory", "17GB", "--host-memory", "3GB")
    code, out, err = run(*model)
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (6, "")
    assert out.startswith("mistral-7b in bfloat16 with a context of 32,768 tokens\n")
    assert [line[0] for line in lines[1:7]] == [
        *("weights", "KV", "retrieval", "draft", "activations", "total")
    ]
    assert lines[1][1:3] == ["14.5", "GB"]
    assert lines[4][1:] == ["-", "none:", "lookup", "drafts"]
    said = out.splitlines()[7:]
    assert said[0] == "does not fit on the GPU"
    (longest,) = re.findall(r"^a chat takes the longest context that fits, ([\d,]+) tokens, unless", said[1])
    assert said[2] == "what would make it fit:"
    assert any(line.startswith("  --context ") for line in said[3:])
    assert any(line.startswith("  --tp 2: ") for line in said[3:])
    assert all(re.fullmatch(r"  \S.*: [\d.]+ GB.*", line) for line in said[3:])
    assert "\x1b" not in out
    assert plan_of(*model, "--context", longest.replace(",", ""))["fits"]


@pytest.mark.parametrize(
    ("flags", "verdict", "said"),
    [
        (("--device-memory", "80GB"), "fits", "fits on the GPU"),
        (CARD, "offloaded", "fits with the KV of 32 of 32 layers in host memory"),
        ((*CARD, "--tp", 4), "fits", "fits on 4 GPUs"),
        (("--device-memory", "96GB", "--host-memory", "96GB"), "fits", "fits on the GPU"),
        (
            (*CARD[:1], "96GB", *CARD[2:], "--offload"),
            "offloaded",
            "fits with the KV of 32 of 32 layers in host memory",
        ),
        (("--device-memory", "10GB", "--host-memory", "64GB"), "does not fit", "does not fit on the GPU"),
    ],
)
def test_verdicts(flags: tuple[object, ...], verdict: str, said: str) -> None:
    model = ("--model", "lwm-128k", "--context", 131_072 if "80GB" not in flags else 65_536)
    assert plan_of(*model, *flags)["verdict"] == verdict
    assert said in run(*model, *flags)[1].splitlines()


def test_weights_in_host_memory() -> None:
    model = ("--model", "llama-3.1-8b", "--context", 4096, "--device-memory", "12GB", "--host-memory", "64GB")
    plan = plan_of(*model)
    assert schema_errors("plan", plan) == []
    assert (plan["verdict"], plan["resident_layers"]) == ("offloaded", 32)
    streamed = 32 - plan["gpu_layers"]
    assert plan["pass_ms"] == pytest.approx(1000 * plan["bytes"]["host"] / 55e9, abs=0.1)
    assert f"fits with the weights of {streamed} of 32 layers in host memory" in run(*model)[1].splitlines()
    copied = plan["copied"]
    assert copied["token"] == copied["draft"] == plan["bytes"]["host"]
    assert copied["otherwise"] is None  # keys and values in host memory would not make enough room
    assert any(
        line.startswith("each forward") and "copied to the GPU for one token" in line
        for line in run(*model)[1].splitlines()
    )
    fewer = plan_of(*model, "--gpu-layers", 3)
    assert (fewer["gpu_layers"], fewer["fits"]) == (3, True)
    assert "gpu_layers" not in plan_of(*model, "--gpu-layers", 32)
    long = ("--model", "llama-3.1-8b", *SMALL_CARD)
    assert "gpu_layers" not in plan_of(*long)  # a shorter context fits
    both = plan_of(*long, "--context", 131_072)
    assert both["gpu_layers"] < 32
    assert both["copied"]["draft"] > both["copied"]["token"] > both["bytes"]["host"]
    for stack in ("triforce", "retrieval"):  # would have to wait for the same weights at two levels
        assert plan_of(*model, "--stack", stack)["verdict"] == "does not fit"


def test_trees_under_the_target_need_keys_and_values_on_the_gpu() -> None:
    model = (
        "--model",
        "llama-3.1-8b",
        "--context",
        65_536,
        "--device-memory",
        "24GB",
        "--host-memory",
        "64GB",
    )
    chains, trees = (plan_of(*model, "--stack", "naive", *more) for more in ((), ("--tree", "sequoia")))
    assert chains["resident_layers"] < 32
    assert "gpu_layers" not in chains
    assert (trees["resident_layers"], trees["fits"]) == (32, True)
    assert trees["gpu_layers"] < 32
    assert trees["copied"]["token"] > chains["copied"]["token"] == trees["copied"]["otherwise"]
    lookup = plan_of(*model, "--stack", "lookup", "--tree", "sequoia")  # drafts none
    assert lookup["resident_layers"] < 32


def test_the_advice_is_good() -> None:
    model = ("--model", "llama-3.1-8b", *SMALL_CARD)
    advised = plan_of(*model)["would_fit"]
    assert plan_of(*model, "--context", advised["context"])["verdict"] == "fits"
    assert plan_of(*model, "--context", advised["offloaded_context"])["verdict"] == "offloaded"
    assert plan_of(*model, "--tp", advised["tp"])["fits"]


def test_advice_against_offload() -> None:
    small = ("--model", "llama-3.1-8b", "--device-memory", "24GB", "--host-memory", "2GB", "--offload")
    code, out, _ = run(*small, "--context", 16_384)
    assert (code, "  without --offload: " in out) == (6, True)
    code, out, _ = run(*small, "--context", 65_536)
    assert (code, "  without --offload: " in out) == (6, False)
    (longest,) = re.findall(r"^  --context (\d+) without --offload: ", out, re.MULTILINE)
    assert plan_of(*small[:-1], "--context", longest)["fits"]


def followed(arguments: Sequence[object], flags: str) -> list[str]:
    """The arguments with a change that was named, as a user would type it; "without --a and --b" drops options."""
    added, _, dropped = flags.partition("without ") if "without " in flags else (flags, "", "")
    new, old = added.split(), [*map(str, arguments)]
    for option in [*dropped.split(" and "), *(each for each in new if each.startswith("--"))]:
        if option in old:
            at = old.index(option)
            del old[at : at + (1 if option == "--offload" else 2)]
    return [*old, *new]


RUNS = [
    ("--model", "llama-3.1-8b", *CARD),
    ("--model", "llama-3.1-8b", "--device-memory", "8GB", "--host-memory", "16GB"),
    ("--model", "llama-3.1-8b", "--device-memory", "12GB", "--host-memory", "8GB", "--context", 4096),
    ("--model", "llama-3.1-8b", *CARD, "--context", 32_768, "--dtype", "float32"),
    ("--model", "llama-3.1-8b", *CARD, "--context", 19_456),
    ("--model", "llama-3.1-8b", *CARD, "--context", 8192, "--gpu-layers", 8),
    ("--model", "llama-3.1-8b", "--device-memory", "24GB", "--host-memory", "2GB", "--offload"),
    ("--model", "llama-3.1-8b", *CARD, "--batch", "2x57344,6x19456"),
    ("--model", "llama-3.1-8b", *CARD, "--context", 8192, "--batch", "9x57344"),
    ("--model", "llama-3.1-8b", *CARD, "--context", 65_536, "--shared", 8),
    ("--model", "llama-3.1-8b", *CARD, "--endless", "h2o", "--keep", 65_536),
    ("--model", "llama-3.1-8b", *CARD, "--stack", "naive", "--tree", "auto", "--context", 65_536),
    ("--model", "llama-3.1-8b", *SMALL_CARD, "--stack", "triforce", "--context", 65_536),
    ("--model", "yarn-llama-2-7b-128k", *CARD, "--kv", "int8"),
    (
        "--model",
        "yarn-llama-2-7b-128k",
        "--device-memory",
        "16GB",
        "--host-memory",
        "32GB",
        "--context",
        16_384,
    ),
    ("--model", "yarn-llama-2-13b-128k", *CARD, "--context", 32_768),
    ("--model", "qwen3-8b", "--device-memory", "16GB", "--host-memory", "64GB"),
    ("--model", "large", "--device-memory", "8GB", "--host-memory", "16GB"),
    ("--model", "large", "--device", "cpu", "--host-memory", "6GB", "--dtype", "float32"),
    ("--model", "medium", "--device", "cpu", "--host-memory", "2GB", "--kv", "float32"),
]


@pytest.mark.parametrize("arguments", RUNS, ids=lambda arguments: " ".join(map(str, arguments[1:])))
def test_every_change_that_is_named_makes_it_fit(arguments: Sequence[object]) -> None:
    plan = plan_of(*arguments)
    changes = plan["would_fit"]["changes"]
    batches = "batches" in plan
    assert changes
    for change in changes:
        if "GGUF" in change["flags"]:
            continue  # which is not here
        again = plan_of(*followed(arguments, change["flags"]))
        assert again["fits"], change
        assert all(each["at_once"] for each in again.get("batches", ()))
        if not batches:
            assert again["verdict"] == "fits" or not plan["fits"], change
            assert (again["bytes"]["device"], again["bytes"]["host"]) == (change["device"], change["host"])


@pytest.mark.parametrize("arguments", RUNS[:10], ids=lambda arguments: " ".join(map(str, arguments[1:])))
def test_no_longer_context_fits_than_the_named_one(arguments: Sequence[object]) -> None:
    plan = plan_of(*arguments)
    goals = {"fits"} if plan["fits"] else {"fits", "offloaded"}
    for change in plan["would_fit"]["changes"]:
        if "GGUF" in change["flags"] or "--batch" in change["flags"] or "batches" in plan:
            continue
        typed = [each for each in followed(arguments, change["flags"]) if each != "--batch"]
        if "--context" in typed:
            at = typed.index("--context")
            del typed[at : at + 2]
        fitting, longer = (
            plan_of(*typed, "--context", context)["verdict"] in goals
            for context in (change["context"], min(change["context"] + 1024, 131_072))
        )
        assert fitting, change
        assert change["context"] == 131_072 or not longer, change


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--context", 19_456, *CARD), "--draft none"),
        (("--context", 32_768, *CARD, "--dtype", "float32"), "--context 18432 without --dtype"),
        (("--context", 8192, *CARD, "--gpu-layers", 8), "without --gpu-layers"),
        (("--context", 16_384, *CARD, "--dtype", "float16", "--offload"), "without --offload"),
        (("--batch", "2x57344,6x8192", *CARD), "--batch 2x21504,6x8192"),
        (("--endless", "h2o", "--keep", 65_536, *CARD), "--keep 15360"),
        (("--context", 65_536, *CARD), "--tp 2"),
        (("--context", 16_384, "--device-memory", "16GB", *CARD[2:]), "a 4-bit GGUF file of the model"),
    ],
)
def test_what_helps_is_named(arguments: Sequence[object], named: str) -> None:
    _, out, _ = run("--model", "llama-3.1-8b", *arguments)
    lines = out[out.index("what would ") :].splitlines()
    assert named in [line.partition(": ")[0].strip() for line in lines], out


def test_what_cannot_help_is_not_named() -> None:
    model = ("--model", "yarn-llama-2-13b-128k", "--device-memory", "4GB", "--host-memory", "4GB")
    code, out, _ = run(*model, "--draft", "none", "--stack", "lookup")
    assert code == 6
    assert "--draft" not in out
    assert "--stack" not in out
    code, out, _ = run("--model", "small", "--device", "cpu", "--host-memory", "20MB")
    assert (code, out.splitlines()[-1]) == (
        6,
        "no change of one or two settings makes it fit: use a smaller model",
    )


def test_more_host_memory_where_nothing_else_helps() -> None:
    model = ("--model", "large", "--context", 2048, "--device-memory", "2GB")
    code, out, _ = run(*model, "--host-memory", "1GB")
    said = "no change of one or two settings makes it fit: use a smaller model, or a machine with "
    (size,) = re.findall(rf"^{said}([\d.]+ GB) of free host memory$", out, re.MULTILINE)
    assert code == 6
    more = int(10 * float(size.removesuffix(" GB"))) + 1  # tenths of a gigabyte
    assert plan_of(*model, "--host-memory", f"{more / 10}GB")["fits"]
    assert not plan_of(*model, "--host-memory", f"{(more - 2) / 10}GB")["fits"]


def test_single_changes_come_before_pairs() -> None:
    found = plan_of("--model", "qwen3-8b", "--device-memory", "16GB", "--host-memory", "64GB")["would_fit"]
    counts = [each["flags"].count("--") + ("GGUF" in each["flags"]) for each in found["changes"]]
    assert counts == sorted(counts)
    assert counts[-1] == 2


def test_what_rounds_keys_and_values_is_told() -> None:
    model = ("--model", "mistral-7b", "--device-memory", "17GB", "--host-memory", "3GB")
    told = {line.strip().partition(": ")[0]: line for line in run(*model)[1].splitlines()}
    assert told["--kv fp8"].endswith("; rounds keys and values")
    assert not any(
        line.endswith("; rounds keys and values") for flags, line in told.items() if "--kv" not in flags
    )


def test_a_model_whose_file_has_its_weights_in_4_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the numbers are known where the file is not; an adapter is added to expanded ones."""
    monkeypatch.setattr(placement, "kernels_compile", lambda: True)
    monkeypatch.setattr(ineffective_settings, "find_gpu", lambda _: None)
    monkeypatch.setattr(device, "find_gpu", lambda _: None)
    bare = plan_of("--model", "qwen2.5-coder-1.5b", "--dtype", "stored", *CARD)
    assert (bare["weights"], bare["bytes"]["weights"]) == ("Q4_K_M", 1_380_600_832)
    said = "Q4_K_M is kept as it is on GPUs of compute capability 8.0 or more (RTX 30, A100 and later)"
    said += "; other GPUs expand it to 16 bits"
    assert said in run("--model", "qwen2.5-coder-1.5b", "--dtype", "stored", *CARD)[1].splitlines()
    adapted = plan_of("--model", "large", "--dtype", "stored", *CARD)
    assert "weights" not in adapted
    said = "q4_k_m.gguf is expanded, which takes more memory and time: on a GPU an adapter is added to its weights"
    assert said in run("--model", "large", "--dtype", "stored", *CARD)[1]
    assert "is expanded" not in run("--model", "qwen2.5-coder-1.5b", "--dtype", "stored", *CARD)[1]
    assert "expanded" not in run("--model", "large", *CARD)[1]  # nobody asked
    said = "--dtype stored has no effect: mistral-7b has no quantized weights"
    assert said in run("--model", "mistral-7b", "--dtype", "stored", *CARD)[1].splitlines()
    said = "is expanded, which takes more memory and time: --tp 2 splits expanded weights only"
    assert said in run("--model", "qwen2.5-coder-1.5b", "--dtype", "stored", "--tp", 2, *CARD)[1]


@pytest.mark.parametrize(("capability", "kept"), [((7, 5), False), ((8, 6), True), ((12, 0), True)])
def test_which_gpus_keep_weights_in_4_bits(
    capability: tuple[int, int], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "kernels_compile", lambda: True)
    for module in (ineffective_settings, device):
        monkeypatch.setattr(module, "find_gpu", lambda _: Gpu(capability, 24 * 10**9, 101_376))
    model = ("--model", "qwen2.5-coder-1.5b", "--dtype", "stored", *CARD)
    plan = plan_of(*model)
    assert (plan.get("weights"), plan["bytes"]["weights"] < 1.4e9) == ("Q4_K_M" if kept else None, kept)
    assert ("is expanded" in run(*model)[1]) != kept


def test_an_adapter_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "kernels_compile", lambda: True)
    monkeypatch.setattr(device, "find_gpu", lambda _: None)
    base = write_quantized_gguf(tmp_path / "base" / "m.gguf")
    adapter = save_adapter(tmp_path / "adapter", base, hidden=256)
    assert plan_of("--model", base, "--dtype", "stored", *CARD)["weights"]
    assert "weights" not in plan_of("--model", adapter, "--dtype", "stored", *CARD)
    assert "an adapter is added" in run("--model", adapter, "--dtype", "stored", *CARD)[1]


def test_an_endless_conversation(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path / "folder", max_position_embeddings=4096))
    for policy in ("streaming", "h2o"):
        flags = ("--endless", policy, "--keep", 1024, "--dtype", "float32", "--device", "cpu")
        plan = plan_of("--model", folder, "--draft", "none", *flags)
        settings = Settings(folder, draft="none", endless=policy, keep=1024, dtype="float32", device="cpu")
        engine, _ = load_engine(EngineSpec(settings))
        storage: Any = engine.full.storage
        queries = engine.full.queries.data.nbytes
        assert plan["context"] == 1024
        assert plan["bytes"]["kv"] == storage.keys.nbytes + storage.values.nbytes + queries


def test_what_has_no_effect_without_a_gpu() -> None:
    flags = ("--device", "cpu", "--host-memory", "16GB", "--gpu-layers", 3, "--offload")
    said = run(*flags)[1].splitlines()
    for option in ("--offload", "--gpu-layers"):
        assert [line for line in said if line.startswith(f"{option} has no effect without a GPU: ")]
    assert plan_of(*flags)["bytes"] == plan_of(*flags[:4])["bytes"]


def test_this_machine_without_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "free_bytes", lambda _device: 8 * 10**9)
    flags = ("--device", "cpu")
    plan = plan_of(*flags)
    assert (plan["dtype"], plan["available"]) == ("float32", {"device": 8 * 10**9, "host": 8 * 10**9})
    assert "fits into memory" in run(*flags)[1]
    assert plan_of(*flags, "--host-memory", "1GB")["verdict"] == "does not fit"
    assert plan_of(*flags, "--host-memory", "1GB", "--offload")["verdict"] == "does not fit"
    assert plan_of(*flags, "--tp", 3)["available"]["host"] == 8 * 10**9 // 3


def test_a_folder_a_file_and_an_adapter(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "folder", max_position_embeddings=4096)
    file = write_gguf(tmp_path / "model.gguf")
    adapter = save_adapter(tmp_path / "adapter", folder)
    plans = [plan_of("--model", each, *CARD) for each in (folder, file, adapter)]
    assert [plan["context"] for plan in plans] == [4096, 128, 2048]
    assert [plan["draft"] for plan in plans] == [None] * 3
    weights = [plan["bytes"]["weights"] for plan in plans]
    assert weights[0] == weights[2] > weights[1] > 0  # a GGUF without an output matrix ties it
    assert plan_of("--model", folder, "--draft", folder, *CARD)["bytes"]["draft"] > weights[0]


def test_a_hub_id_needs_its_configuration_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path / "theirs")
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    asked: list[tuple[str, str]] = []

    def hf_hub_download(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    plan = plan_of("--model", "some/one", *CARD)
    assert (plan["model"], plan["context"], plan["draft"]) == ("some/one", 128, None)
    assert asked == [("some/one", "config.json")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--model", "nothing"), 5, "no model 'nothing'"),
        (("--model", "some/one"), 5, "the hub cannot be reached"),
        (
            ("--model", "mistral-7b", "--context", 40_000),
            4,
            "was made for 32,768 tokens; --context 40,000 is more",
        ),
        (("--device-memory", "much"), 2, "'much' is not a memory size; write for example 24GB"),
        (("--device-memory", "24"), 2, "'24' has no unit: write 24GB or 24GiB"),
        (("--host-memory", "64", *CARD[:2]), 2, "'64' has no unit: write 64GB or 64GiB"),
        (("--endless", "h2o", "--batch", "2x4096", *CARD), 2, "--endless h2o is for one conversation"),
        (("--endless", "h2o", "--offload", *CARD), 2, "moves tokens on the GPU: leave out --offload"),
        (
            ("--model", "llama-3.1-8b", "--stack", "triforce", "--gpu-layers", 3, *CARD),
            2,
            "choose --stack auto, naive, lookup",
        ),
        (("--device-memory", "24GB", "--device", "cpu"), 2, "with --device cpu use --host-memory"),
        (("--model", "qwen2.5-7b-1m", "--tp", 3, *CARD), 2, "which 3 GPUs cannot share; --tp takes 1, 2, 4"),
        (("--model", "default", "--draft", "nothing"), 5, "no model 'nothing'"),
    ],
)
def test_errors(arguments: tuple[object, ...], code: int, said: str) -> None:
    left, out, err = run(*arguments)
    assert (left, out) == (code, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_longer_context_is_planned_with_a_warning() -> None:
    plan = plan_of("--context", 1_000_000, *CARD)
    assert (plan["context"], plan["made_for"]) == (1_000_000, 131_072)
    assert "YaRN factor 123 instead of 16" in plan["warning"]
    code, out, err = run("--context", 1_000_000, *CARD)
    assert (code, plan["verdict"]) == (0, "offloaded")  # 23 GB of KV in 16 bit
    assert "not reliable" in err
    assert out.startswith("small in bfloat16 with a context of 1,000,000 tokens\n")


def test_the_same_numbers_as_a_loaded_model(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "folder", tie_word_embeddings=False)
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    plan = plan_of("--model", folder, "--draft", "none", "--device", "cpu", "--dtype", "float32")
    assert plan["bytes"]["weights"] == sum(weight.nbytes for weight in weights.values())
    assert all(weight.dtype == torch.float32 for weight in weights.values())


# Sizes as they are typed


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("24gb", 24 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("80G", 80 * 10**9),
        ("16e9", 16 * 10**9),
        ("1.5T", 1_500_000_000_000),
        ("512MiB", 2**29),
        ("8000000000", 8 * 10**9),
        ("7kB", 7000),
        ("100B", 100),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parsed_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "24XB", "1..5GB", "24GBs", "1e999", "nan", "."])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a memory size"):
        parsed_size(text)


@pytest.mark.parametrize("text", ["24", "0.5", "80.", "999999", " 16 "])
def test_a_small_number_without_a_unit_is_no_size(text: str) -> None:
    said = f"{text.strip()}GB or {text.strip()}GiB"
    with pytest.raises(UsageError, match=f"has no unit: write {said}$"):
        parsed_size(text)


def test_sizes_are_read_as_they_are_told() -> None:
    for text in ("24.0 GB", "540 MB", "12 KB"):
        assert readable(parsed_size(text)) == text


def test_with_streamed_kv_the_retrieval_cache_takes_the_free_memory() -> None:
    def room(size: str, *flags: str) -> int:
        plan = plan_of("--model", "yarn-llama-2-7b-128k", *CARD[:1], size, *CARD[2:], *flags)
        return int(plan["bytes"]["retrieval"])

    small, larger, largest = (room(size, "--offload") for size in ("24GB", "28GB", "40GB"))
    assert small < 0.6 * larger < 0.36 * largest
    assert room("100GB") == small  # everything on the device, and the paper's budget
    assert room("40GB", "--offload", "--budget", "4096") == small
    assert (
        room("40GB", "--offload", "--stack", "triforce", "--seed", "0") == small
    )  # a seeded answer must not depend on memory


@pytest.mark.parametrize("size", ["24GB", "32GB", "48GB", "80GB"])
def test_no_layer_leaves_the_device_for_a_larger_retrieval_cache(size: str) -> None:
    model = ("--model", "yarn-llama-2-7b-128k", *CARD[:1], size, *CARD[2:])
    plan, usual = plan_of(*model), plan_of(*model, "--budget", "4096")
    assert plan["resident_layers"] == usual["resident_layers"]
    assert plan["bytes"]["retrieval"] >= usual["bytes"]["retrieval"]


def test_a_batch_says_how_many_fit_and_how_many_wait() -> None:
    places = ("--device-memory", "24GB", "--host-memory", "128GB", "--draft", "none")
    plan = plan_of("--model", "llama-3.1-8b", *places, "--batch", "2x8192,100x8192,2x4096", "--shared", "9")
    few, many, short, shared = plan["batches"]
    assert schema_errors("plan", plan) == []
    assert plan["context"] == 8192
    assert (few["at_once"], few["waiting"]) == (2, 0)
    assert many["at_once"] + many["waiting"] == 100
    left = 0.95 * 24e9 - many["bytes"]["common"]
    assert many["at_once"] == left // many["bytes"]["each"] > 2
    assert short["bytes"]["each"] < few["bytes"]["each"]
    assert shared["shared"] > 7000
    assert shared["bytes"]["each"] < few["bytes"]["each"] / 2
    assert shared["bytes"]["common"] > few["bytes"]["common"]
    code, out, _ = run("--model", "llama-3.1-8b", *places, "--batch", "100x8192")
    line = f"100 x 8,192 tokens: {many['at_once']} at once, {many['waiting']} wait; each takes "
    assert code == 0
    assert line in out


def test_what_a_servers_answers_have_room_for() -> None:
    places = ("--device-memory", "80GB", "--host-memory", "128GB", "--model", "llama-3.1-8b")
    plan = plan_of(*places, "--context", "65536", "--parallel", "8")
    (served,) = plan["batches"]
    assert schema_errors("plan", plan) == []
    assert (served["sequences"], served["at_once"], served["context"]) == (8, 8, 65536)
    assert served["bytes"] == {name: sum(parts.values()) for name, parts in served["parts"].items()}
    free = 80e9 - served["bytes"]["common"]
    assert served["room"] == int(0.5 * free / 8) // (2 * 32 * 8 * 128 * 2)
    code, out, _ = run(*places, "--context", "65536", "--parallel", "8")
    assert code == 0
    assert f"in a server each has room for {served['room']:,} tokens after the documents" in out
    assert "beside" in out
    assert "(KV " in out


def test_sequences_of_auto_have_no_middle_level() -> None:
    places = ("--device-memory", "24GB", "--host-memory", "128GB", "--model", "llama-3.1-8b")
    retrievals = [
        plan_of(*places, "--stack", stack, "--batch", "2x8192")["batches"][0]["parts"]["each"]["retrieval"]
        for stack in ("auto", "triforce")
    ]
    assert retrievals[0] == 0 < retrievals[1]


def test_a_batch_of_which_none_fits() -> None:
    code, out, _ = run("--model", "llama-3.1-8b", *CARD, "--context", "1024", "--batch", "2x120000")
    assert (code, "0 at once, 2 wait" in out) == (6, True)


@pytest.mark.parametrize("text", ["", "2", "x9", "0x9", "2x0", "2x9;3x9", "2x9,", "-1x9"])
def test_what_is_no_batch(text: str) -> None:
    code, out, err = run("--model", "llama-3.1-8b", *CARD, "--batch", text or " ")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "write for example 2x57344" in err
