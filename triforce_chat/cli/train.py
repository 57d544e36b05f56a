"""``triforce-chat train``: long-context adapters and drafts for a user's own models, from the user's own texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from triforce_chat.cli.complete import models
from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import App, flattened, parse_list
from triforce_chat.errors import UsageError
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from triforce_chat.lab.training.context import ContextRecipe
    from triforce_chat.lab.training.draft import DraftRecipe
    from triforce_chat.models.load import LoadedModel

app = App(help="Train a long-context adapter or a draft model.", no_args_is_help=True, rich_markup_mode=None)

Data = Annotated[
    list[Path], typer.Option("--data", help="Text files, or folders of text files; may be repeated.")
]
Out = Annotated[
    Path, typer.Option("--out", help="Folder for the result; an interrupted run continues there.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="Names of texts to leave out; may be repeated.")
]
Minutes = Annotated[float, typer.Option(help="Longest training time, in minutes.", min=0.01)]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How to train an adapter."""

    model: Annotated[str, typer.Option(help="Model to train.", autocompletion=models)] = "smollm2-135m"
    exclude: Exclude = None
    start: Annotated[Path | None, typer.Option("--from", help="Adapter to start from, of the same rank.")] = (
        None
    )
    questions: Annotated[
        Path | None,
        typer.Option(
            help="Folder of TOML files with questions and replies about the texts; these alone are learnt."
        ),
    ] = None
    factor: Annotated[
        float, typer.Option(help="YaRN factor, over the model's own positions; 1 leaves them as they are.")
    ] = 16.0
    lengths: Annotated[
        str, typer.Option(help="Lengths of the sequences; one listed twice is drawn twice as often.")
    ] = "2048,8192,32768,124928"
    tokens: Annotated[int, typer.Option(help="Tokens per step, in every process.")] = 131_072
    rank: Annotated[int, typer.Option(help="Rank of the low-rank updates.")] = 32
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 4e-4
    chats: Annotated[int, typer.Option(help="Conversations that the model has with itself first.")] = 2048
    checkpoint: Annotated[
        bool,
        typer.Option(
            "--checkpoint", help="Recompute activations in the backward pass: less memory, more time."
        ),
    ] = False
    steps: Annotated[int, typer.Option(help="Maximum number of steps.", min=1)] = 300
    minutes: Minutes = 25.0
    seed: Seed = 0
    device: Device = "auto"

    def recipe(self, lengths: tuple[int, ...]) -> ContextRecipe:
        """What the training itself needs, with ``lengths`` parsed."""
        from triforce_chat.lab.training.context import ContextRecipe

        return ContextRecipe(
            factor=self.factor,
            rank=self.rank,
            alpha=float(self.rank),
            rate=self.rate,
            steps=self.steps,
            minutes=self.minutes,
            seed=self.seed,
            lengths=lengths,
            tokens=self.tokens,
            checkpoint=self.checkpoint,
        )


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How to distil a draft model."""

    model: Annotated[str, typer.Option(help="Target to imitate.", autocompletion=models)] = "small"
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Another target that shares the draft model; may be repeated.", autocompletion=models
        ),
    ] = None
    exclude: Exclude = None
    start: Annotated[
        Path | None, typer.Option("--from", help="Draft model to start from, of the same shape.")
    ] = None
    built_on_target: Annotated[
        bool,
        typer.Option(
            "--built-on-target",
            help="Train a draft that reads the target's hidden states and shares its embedding and output matrix.",
        ),
    ] = False
    vocabulary: Annotated[
        int,
        typer.Option(help="Size of the draft model's vocabulary, the most frequent tokens; 0: all.", min=0),
    ] = 0
    hidden: Annotated[int, typer.Option(help="Hidden size of the draft model.")] = 256
    layers: Annotated[int, typer.Option(help="Layers of the draft model.")] = 3
    writing: Annotated[float, typer.Option(help="Minutes for which the target writes answers.")] = 5.0
    sequences: Annotated[int, typer.Option(help="Answers that the target writes at once.")] = 2048
    texts: Annotated[int, typer.Option(help="Texts that the target reads, of 8,192 tokens each.")] = 640
    lengths: Annotated[str, typer.Option(help="Tokens before an answer.")] = (
        "1024,2048,4096,8192,32768,124928"
    )
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3
    steps: Annotated[int, typer.Option(help="Maximum number of steps.", min=1)] = 20_000
    minutes: Minutes = 6.0
    seed: Seed = 0
    device: Device = "auto"

    def recipe(self) -> DraftRecipe:
        """What the training itself needs."""
        from triforce_chat.lab.training.draft import DraftRecipe

        return DraftRecipe(
            built_on_target=self.built_on_target,
            vocabulary=self.vocabulary,
            hidden=self.hidden,
            layers=self.layers,
            mlp=4 * self.hidden,
            rate=self.rate,
            steps=self.steps,
            minutes=self.minutes,
            seed=self.seed,
        )


def context(data: Data, out: Out, chosen: ContextOptions, debug: bool = False) -> None:
    """Train an adapter (LoRA) for longer texts, by YaRN, or for better answers. On several GPUs under torchrun."""
    with failures(debug):
        lengths = tuple(parse_list(chosen.lengths, repeats=True))
        require_writable(out)
        from triforce_chat.lab.training.jobs import books, train_context
        from triforce_chat.lab.training.ranks import joined
        from triforce_chat.loading.device import device_and_dtype

        with joined(device_and_dtype(Settings(device=chosen.device))[0]) as ranks:
            loaded = load(chosen.model, ranks.device)
            builder = books(loaded, data, chosen.exclude or [], chosen.questions)
            recipe = chosen.recipe(lengths)
            train_context(loaded, builder, recipe, chosen.chats, out, print_figures, chosen.start, ranks)


def draft(
    data: Data,
    out: Out,
    unseen: Annotated[list[Path], typer.Option("--unseen", help="Texts to evaluate on, never trained on.")],
    chosen: DraftOptions,
    debug: bool = False,
) -> None:
    """Distil a small draft model from a target."""
    with failures(debug):
        lengths = tuple(parse_list(chosen.lengths))
        require_writable(out)
        if not (chosen.writing or chosen.texts):
            raise UsageError("nothing to learn from; give --writing or --texts")
        if chosen.built_on_target and chosen.also:
            raise UsageError("a draft that is built on its target has only one; leave out --also")
        if chosen.built_on_target and not chosen.vocabulary:
            raise UsageError("--built-on-target needs --vocabulary, for example 24575")
        targets = [load(model, chosen.device) for model in (chosen.model, *(chosen.also or []))]
        from triforce_chat.lab.training.jobs import Generation, books, train_draft

        held_out = [file for path in unseen for file in (path, *path.rglob("*"))]
        names = [*(chosen.exclude or []), *(file.name for file in held_out)]
        plan = Generation(
            minutes=chosen.writing, sequences=chosen.sequences, lengths=lengths, texts=chosen.texts
        )
        own, others = books(targets[0], data, names), books(targets[0], unseen, [])
        train_draft(targets, own, others, chosen.recipe(), plan, out, print_figures, chosen.start)


app.command()(flattened(context))
app.command()(flattened(draft))


def require_writable(folder: Path) -> None:
    """Make the folder for the result before anything slow starts. Raises UsageError if the system refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written ({error.strerror})") from error


def load(model: str, device: str) -> LoadedModel:
    """A model without an engine, for training."""
    from triforce_chat.loading.device import device_and_dtype
    from triforce_chat.models.load import load_model
    from triforce_chat.models.presets import find_preset

    folder = Path(model).expanduser()
    # An adapter records its base by this name, and must find it from any folder.
    name = model if find_preset(model) or not folder.is_dir() else str(folder.absolute())
    where, dtype = device_and_dtype(Settings(device=device))
    return load_model(name, device=where, dtype=dtype, attention="sdpa")


def print_figures(figures: dict[str, float]) -> None:
    """Print a report of the training as one line on stderr."""
    typer.echo("  ".join(f"{name} {value:g}" for name, value in figures.items()), err=True)
