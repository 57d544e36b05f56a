"""``triforce-chat plan``: for models that are here and that are not, on this machine and on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from support.schemas import schema_errors
from support.tiny_models import save_adapter, save_model, write_gguf
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.errors import UsageError
from triforce_chat.memory_plan import inputs
from triforce_chat.models.presets import PRESETS
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
    assert code == (0 if plan["fits"] else 6), err
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
    code, out, err = run("--model", "mistral-7b", "--device-memory", "17GB", "--host-memory", "3GB")
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (6, "")
    assert out.startswith("mistral-7b in bfloat16 with a context of 32,768 tokens\n")
    assert [line[0] for line in lines[1:7]] == [
        *("weights", "KV", "retrieval", "draft", "activations", "total")
    ]
    assert lines[1][1:3] == ["14.5", "GB"]
    assert lines[4][1:] == ["-", "none:", "lookup", "drafts"]
    assert out.splitlines()[-2] == "does not fit on the GPU"
    assert out.splitlines()[-1].startswith("would fit with --context ")
    assert "--tp 2" in out.splitlines()[-1]
    assert "\x1b" not in out


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
        line.startswith("each forward") and " for a token " in line for line in run(*model)[1].splitlines()
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
    assert (code, out.splitlines()[-1]) == (6, "would fit without --offload")
    code, out, _ = run(*small, "--context", 65_536)
    assert (code, out.splitlines()[-1][:44]) == (6, "would fit without --offload and with --conte")
    advised = plan_of(*small, "--context", 65_536)["would_fit"]
    assert plan_of(*small[:-1], "--context", advised["context"])["verdict"] == "fits"


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
    assert "unmeasured" in err
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
