"""A small model in big dimensions computes the same function."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.labs import SMALL_BUDGET, perturbed, random_model, spell
from support.tiny_models import save_model
from torch import Tensor
from typer.testing import CliRunner

from triforce_chat.chat.events import Tally
from triforce_chat.cli.app import app
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import ModelError, UsageError
from triforce_chat.lab.bench import stock
from triforce_chat.loading import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models import shapes
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.models.resize import head_slots, resize, resize_loaded, rotated_dims
from triforce_chat.models.shapes import SHAPES, BigShape, find_shape
from triforce_chat.settings.settings import Settings

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
ORIGINAL = 64  # tokens before YaRN
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": ORIGINAL,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "yarn": YARN,
}
OWN_KEYS = BigShape("own keys", hidden=128, layers=4, heads=8, kv_heads=8, head_dim=16, mlp=160)
PAIRS = replace(OWN_KEYS, name="pairs", kv_heads=4)  # two copies of each KV head, one half used
WIDE = replace(OWN_KEYS, name="wide", heads=12, kv_heads=3)  # a whole group at one KV head
ODD = replace(OWN_KEYS, name="odd", hidden=100, layers=2, head_dim=22)  # no multiples of the small sizes
SAME_HEADS = replace(OWN_KEYS, name="same heads", heads=6, kv_heads=2, head_dim=8, hidden=48, mlp=96)
SAME_GROUPS = replace(OWN_KEYS, name="same groups", heads=9, kv_heads=3)
TINY_SHAPES = (OWN_KEYS, PAIRS, WIDE, ODD, SAME_HEADS, SAME_GROUPS)
CLOSE = 1e-4  # of the logits' spread


def small_model(rope: str = "yarn", seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    model = random_model(rope_parameters=dict(ROPES[rope]), **{**SMALL, **changes})
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.2, 2.0)
    return model


def text(n: int, vocabulary: int = 48) -> Tensor:
    return torch.randint(0, vocabulary, (1, n), generator=torch.Generator().manual_seed(n))


def big_model(small: Any, shape: BigShape, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    return resize(small, shape, seed=seed, dtype=dtype, device="cpu")


@torch.no_grad()
def off(model: Any, other: Any, ids: Tensor) -> float:
    """The largest difference of the logits relative to their standard deviation."""
    theirs, own = model(ids).logits.double(), other(ids).logits.double()
    return float((theirs - own).abs().max() / theirs.std())


@torch.no_grad()
def rms_off(model: Any, other: Any, ids: Tensor) -> float:
    theirs, own = model(ids).logits.double(), other(ids).logits.double()
    return float((theirs - own).pow(2).mean().sqrt() / theirs.std())


# The function


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("shape", TINY_SHAPES, ids=lambda shape: shape.name)
def test_the_logits_are_the_small_models(shape: BigShape, rope: str) -> None:
    small = small_model(rope)
    assert off(small, big_model(small, shape), text(4 * ORIGINAL)) < CLOSE


@pytest.mark.parametrize("shape", TINY_SHAPES, ids=lambda shape: shape.name)
def test_the_biases_of_qwen2_are_kept(shape: BigShape) -> None:
    small = small_model(architecture="qwen2")
    for name, weight in small.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_(0, 1)
    big = big_model(small, shape)
    assert type(big) is type(small)
    assert off(small, big, text(4 * ORIGINAL)) < CLOSE


def test_tied_and_separate_embeddings() -> None:
    small = small_model(tie_word_embeddings=True)
    big = big_model(small, OWN_KEYS)
    assert off(small, big, text(ORIGINAL)) < CLOSE
    assert big.lm_head.weight.data_ptr() != big.model.embed_tokens.weight.data_ptr()
    assert not big.config.tie_word_embeddings


def test_a_large_epsilon_shrinks_with_the_mean() -> None:
    small = small_model(rms_norm_eps=0.5)
    assert off(small, big_model(small, OWN_KEYS), text(ORIGINAL)) < CLOSE


def test_the_function_does_not_depend_on_the_seed_but_the_weights_do() -> None:
    small = small_model()
    first, again, other = (big_model(small, OWN_KEYS, seed) for seed in (0, 0, 1))
    for mine, same, differing in zip(
        first.model.layers[3].mlp.parameters(),
        again.model.layers[3].mlp.parameters(),
        other.model.layers[3].mlp.parameters(),
        strict=True,
    ):
        assert torch.equal(mine, same)
        assert not torch.equal(mine, differing)
    assert off(first, other, text(ORIGINAL)) < CLOSE


def test_the_small_model_is_left_alone() -> None:
    small = small_model()
    before = {name: weight.clone() for name, weight in small.state_dict().items()}
    config = small.config.to_dict()
    big_model(small, OWN_KEYS)
    assert all(torch.equal(weight, before[name]) for name, weight in small.state_dict().items())
    assert small.config.to_dict() == config


def test_sixteen_bits_lose_no_more_than_the_small_model_loses() -> None:
    small, ids = small_model(), text(2 * ORIGINAL)
    rounded = small_model().bfloat16()
    rounded.model.rotary_emb = small.model.rotary_emb
    big = big_model(small, OWN_KEYS, dtype=torch.bfloat16)
    assert big.dtype == torch.bfloat16
    assert big.model.rotary_emb.inv_freq.dtype == torch.float32
    loss, other = rms_off(small, rounded, ids), rms_off(small, big, ids)
    assert 0 < other < 1.5 * loss


# The shape


@pytest.mark.parametrize("shape", TINY_SHAPES, ids=lambda shape: shape.name)
def test_every_tensor_has_the_shape(shape: BigShape) -> None:
    big = big_model(small_model(), shape)
    sizes = {name: tuple(weight.shape) for name, weight in big.named_parameters()}
    width, read = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    assert len(big.model.layers) == shape.layers
    for layer in range(shape.layers):
        own = {
            name.removeprefix(f"model.layers.{layer}."): size
            for name, size in sizes.items()
            if f"layers.{layer}." in name
        }
        assert own == {
            "self_attn.q_proj.weight": (width, shape.hidden),
            "self_attn.k_proj.weight": (read, shape.hidden),
            "self_attn.v_proj.weight": (read, shape.hidden),
            "self_attn.o_proj.weight": (shape.hidden, width),
            "mlp.gate_proj.weight": (shape.mlp, shape.hidden),
            "mlp.up_proj.weight": (shape.mlp, shape.hidden),
            "mlp.down_proj.weight": (shape.hidden, shape.mlp),
            "input_layernorm.weight": (shape.hidden,),
            "post_attention_layernorm.weight": (shape.hidden,),
        }
    config = big.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (
        shape.hidden,
        shape.mlp,
        shape.layers,
    )
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
    )


@pytest.mark.parametrize("shape", [OWN_KEYS, PAIRS, WIDE], ids=lambda shape: shape.name)
def test_zeros_are_few(shape: BigShape) -> None:
    small = small_model()
    big = big_model(small, shape)
    blocks = dict(big.model.layers.named_parameters())
    for name, weight in blocks.items():
        assert (weight == 0).float().mean() < 0.5, name
        if int(name.split(".")[0]) >= len(small.model.layers):
            assert not (weight == 0).any(), name
    assert not (big.lm_head.weight == 0).any()


@torch.no_grad()
def test_added_neurons_and_heads_are_busy() -> None:
    seen: dict[str, Tensor] = {}
    small = small_model()
    big = big_model(small, OWN_KEYS)
    last = big.model.layers[-1]
    last.self_attn.o_proj.register_forward_hook(lambda _m, given, _o: seen.update(heads=given[0]))
    last.mlp.down_proj.register_forward_hook(lambda _m, given, _o: seen.update(neurons=given[0]))
    big(text(ORIGINAL))
    for values in seen.values():
        assert (values.abs().amax((0, 1)) > 1e-3).all()


def test_heads_that_share_keys_stay_together() -> None:
    config = small_model().config
    first, second = [(0, slot, 0) for slot in range(3)], [(1, slot, 1) for slot in range(3)]
    assert head_slots(config, WIDE) == first + second
    assert head_slots(config, OWN_KEYS) == [(kv, 0, kv // 3) for kv in range(6)]
    assert head_slots(config, PAIRS) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 0, 1), (2, 1, 1), (3, 0, 1)]


def test_rope_frequencies_of_the_small_head_are_kept() -> None:
    dims = rotated_dims(64, find_shape("llama-2-7b"))
    assert dims[:3].tolist() == [0, 2, 4]
    assert (dims[32:] - dims[:32]).unique().tolist() == [64]
    assert len(dims.unique()) == 64


def test_published_dimensions() -> None:
    """Parameters of the published models without their embeddings."""
    counts = {}
    for shape in SHAPES:
        attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
        layer = attention + 3 * shape.hidden * shape.mlp + 2 * shape.hidden
        counts[shape.name] = shape.layers * layer + shape.hidden
    tables = {
        "llama-2-7b": 2 * 32_000 * 4096,
        "llama-3.1-8b": 2 * 128_256 * 4096,
        "llama-2-13b": 64_000 * 5120,
        "codellama-34b": 64_000 * 8192,
        "llama-2-70b": 64_000 * 8192,
    }
    assert {name: count + tables[name] for name, count in counts.items()} == {
        "llama-2-7b": 6_738_415_616,
        "llama-3.1-8b": 8_030_261_248,
        "llama-2-13b": 13_015_864_320,
        "codellama-34b": 33_743_970_304,
        "llama-2-70b": 68_976_648_192,
    }


# What cannot be


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 40}, "has 40 channels; the model needs 48"),
        ({"layers": 1}, "has 1 layers; the model needs 2"),
        ({"head_dim": 4}, "dimensions per head"),
        ({"mlp": 64}, "neurons"),
        ({"mlp": 161}, "odd number of neurons"),
        ({"heads": 4, "kv_heads": 4}, "has 4 KV heads; the model needs 6"),
        ({"heads": 2, "kv_heads": 1}, "KV heads"),
    ],
)
def test_a_shape_that_is_too_small_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        big_model(small_model(), replace(OWN_KEYS, **change))


@pytest.mark.parametrize("architecture", ["qwen3", "mistral"])
def test_other_families_are_not_inflated(architecture: str) -> None:
    with pytest.raises(ModelError, match=f"only a Llama .* '{architecture}'"):
        big_model(random_model(architecture), OWN_KEYS)


def test_an_unknown_shape_names_the_known() -> None:
    with pytest.raises(UsageError, match=r"no shape 'gpt'; choose llama-2-7b, llama-3.1-8b, llama-2-13b"):
        find_shape("gpt")


def test_a_shape_may_say_how_many_bits() -> None:
    narrow, wide = find_shape("llama-2-13b"), find_shape("llama-2-13b:8bit")
    assert (narrow.bits, wide.bits, wide.name) == (4, 8, "llama-2-13b:8bit")
    assert narrow.fields == wide.fields
    with pytest.raises(UsageError, match="no shape 'llama-2-13b:5bit'"):
        find_shape("llama-2-13b:5bit")


# With the engine


def speaker() -> Any:
    """A small model whose far context matters so little that drafts are often accepted."""
    small = small_model(seed=1)
    for layer in small.model.layers:
        layer.self_attn.o_proj.weight.data *= 0.1
    return small


def spoken(model: Any, prompt: Tensor, stack: str) -> Tally:
    draft = Runner(perturbed(speaker(), 0.05))
    options = StackOptions(name=stack, gamma=4, draft_gamma=2, budget=SMALL_BUDGET)
    engine = Engine(Runner(model), 400, TextCodec(spell), draft, options)
    tally = Tally()
    for event in engine.answer(Request(prompt[0].tolist(), 48)):
        tally.add(event)
    return tally


@pytest.mark.parametrize("shape", [OWN_KEYS, PAIRS, WIDE], ids=lambda shape: shape.name)
@pytest.mark.parametrize("stack", ["triforce", "autoregressive"])
def test_the_hierarchy_generates_the_tokens_of_the_small_model(shape: BigShape, stack: str) -> None:
    small, prompt = speaker(), text(2 * ORIGINAL)
    plain = small.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=48, min_new_tokens=48
    )
    tally = spoken(big_model(small, shape), prompt, stack)
    assert list(tally.token_ids) == plain[0, prompt.shape[1] :].tolist()


def test_as_many_drafts_are_accepted_where_heads_share_keys_as_before() -> None:
    prompt = text(2 * ORIGINAL)
    small = spoken(speaker(), prompt, "triforce")
    big = spoken(big_model(speaker(), SAME_GROUPS), prompt, "triforce")
    assert big.levels == small.levels
    assert all(level.acceptance > 0.2 for level in small.levels.values() if level.acceptance is not None)


@torch.no_grad()
def test_spare_queries_retrieve_what_their_group_does() -> None:
    big = big_model(small_model(), WIDE)
    queries = big.model.layers[0].self_attn.q_proj.weight.unflatten(0, (3, 4, 16))
    real = queries[:2, :, :, :48]
    assert torch.equal(real[:, 3], real[:, 2])
    assert not torch.equal(real[:, 2], real[:, 1])


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a document; the shape is known to the command."""
    monkeypatch.setattr(shapes, "SHAPES", (OWN_KEYS,))
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(2)
    save_model(tmp_path / "tiny", max_position_embeddings=2048, initializer_range=0.3)
    (tmp_path / "a.txt").write_text("the first text " * 40)
    return tmp_path


def bench(*more: str) -> dict[str, Any]:
    flags = "--model tiny --device cpu --contexts 300 --tokens 6 --repeats 1 --stacks autoregressive,lookup"
    done = CliRunner().invoke(app, ["bench", "a.txt", *flags.split(), "--json", *more])
    assert done.exit_code == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.usefixtures("folder")
def test_the_record_names_the_shape() -> None:
    record = bench("--inflate", "own keys")
    assert record["inflated"] == asdict(OWN_KEYS)
    assert all(row["same_tokens"] for row in record["rows"])
    assert bench()["inflated"] is None
    assert (record["settings"]["model"], record["settings"]["device"]) == ("tiny", "cpu")


@pytest.mark.usefixtures("folder")
def test_both_contenders_are_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[BigShape] = []

    def noting(loaded: LoadedModel, shape: BigShape, *more: Any) -> LoadedModel:
        built.append(shape)
        return resize_loaded(loaded, shape, *more)

    for module in (stock, load_engine):
        monkeypatch.setattr(module, "resize_loaded", noting)
    record = bench("--inflate", "own keys", "--stock")
    assert len(record["rows"]) == 3
    assert built == [OWN_KEYS, OWN_KEYS]


@pytest.mark.usefixtures("folder")
def test_the_engine_runs_the_big_model_with_the_draft_of_the_small_one() -> None:
    notes: list[str] = []
    settings = Settings(model="tiny", draft="tiny", device="cpu")
    engine, loaded = load_engine.load_engine(
        EngineSpec(settings, shape=OWN_KEYS), LoadHooks(note=notes.append)
    )
    assert loaded.name == "tiny inflated to own keys"
    assert loaded.draft == "tiny"
    assert notes == [
        "tiny inflated to own keys: as slow as a model of that size, but its answers are those of the original"
    ]
    assert (engine.target.shape.layers, engine.target.shape.kv_heads) == (4, 8)
    assert engine.draft is not None
    assert engine.draft.shape.layers == 2
    assert loaded.context == 2048


@pytest.mark.usefixtures("folder")
def test_a_wrong_shape_is_one_line() -> None:
    done = CliRunner().invoke(app, ["bench", "a.txt", "--inflate", "gpt"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "no shape 'gpt'" in done.stderr


# The default model


@pytest.mark.model
@torch.no_grad()
def test_the_default_model_says_the_same_in_other_dimensions() -> None:
    shape = BigShape("modest", hidden=640, layers=31, heads=10, kv_heads=10, head_dim=128, mlp=1600)
    loaded = load_model("default", attention="sdpa")
    big = resize_loaded(loaded, shape).model
    ids = torch.tensor([loaded.tokenizer.encode(Path("LICENSE").read_text())[:192]])
    positions = torch.cat([torch.arange(96), torch.arange(30_000, 30_096)])[None]  # YaRN begins at 8,192
    theirs = loaded.model(ids, position_ids=positions).logits.double()
    own = big(ids, position_ids=positions).logits.double()
    assert float((theirs - own).abs().max() / theirs.std()) < 1e-3
    assert float((theirs.argmax(-1) == own.argmax(-1)).float().mean()) == 1.0
