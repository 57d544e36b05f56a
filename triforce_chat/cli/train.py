"""``triforce-chat train``: long contexts and drafts for a user's own models, from the user's own texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.complete import models
from triforce_chat.cli.options import failures, listed
from triforce_chat.errors import UsageError
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from triforce_chat.lab.training.jobs import Tell
    from triforce_chat.models.load import LoadedModel

app = typer.Typer(
    help="Train a long-context adapter or a draft for a model.", no_args_is_help=True, rich_markup_mode=None
)

Data = Annotated[list[Path], typer.Option("--data", help="Text files or folders of them; repeatable.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the result; a stopped run goes on there.")]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="Names of texts to leave out; repeatable.")
]
Minutes = Annotated[float, typer.Option(help="Longest training time.", min=0.01)]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@app.command()
def context(
    data: Data,
    out: Out,
    model: Annotated[str, typer.Option(help="Model to stretch.", autocompletion=models)] = "smollm2-135m",
    exclude: Exclude = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="Adapter to begin with, of the same rank.")
    ] = None,
    factor: Annotated[float, typer.Option(help="Of YaRN, over the model's own positions.")] = 16.0,
    lengths: Annotated[
        str, typer.Option(help="Of the sequences; one that is named twice comes twice as often.")
    ] = "2048,8192,32768,124928",
    tokens: Annotated[int, typer.Option(help="Tokens of one step, in every process.")] = 131_072,
    rank: Annotated[int, typer.Option(help="Of the low-rank updates.")] = 32,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 4e-4,
    chats: Annotated[int, typer.Option(help="Conversations the model has with itself first.")] = 2048,
    steps: Annotated[int, typer.Option(help="Most steps.", min=1)] = 300,
    minutes: Minutes = 25.0,
    seed: Seed = 0,
    device: Device = "auto",
    debug: bool = False,
) -> None:
    """Train an adapter that lets a model read further: YaRN and LoRA. On several GPUs under torchrun."""
    with failures(debug):
        reached = tuple(listed(lengths, again=True))
        writable(out)
        from triforce_chat.lab.training.context import ContextRecipe
        from triforce_chat.lab.training.jobs import books, train_context
        from triforce_chat.lab.training.ranks import joined
        from triforce_chat.loading.device import device_and_dtype

        recipe = ContextRecipe(
            factor=factor,
            rank=rank,
            alpha=float(rank),
            rate=rate,
            steps=steps,
            minutes=minutes,
            seed=seed,
            lengths=reached,
            tokens=tokens,
        )
        with joined(device_and_dtype(Settings(device=device))[0]) as ranks:
            loaded = load(model, ranks.device)
            builder = books(loaded, data, exclude or [])
            train_context(loaded, builder, recipe, chats, out, teller(), start, ranks)


@app.command()
def draft(
    data: Data,
    out: Out,
    unseen: Annotated[list[Path], typer.Option("--unseen", help="Texts that judge and are not trained on.")],
    model: Annotated[str, typer.Option(help="Target to imitate.", autocompletion=models)] = "default",
    exclude: Exclude = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="Draft to begin with, of the same shape.")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Width of the draft.")] = 256,
    layers: Annotated[int, typer.Option(help="Layers of the draft.")] = 3,
    writing: Annotated[float, typer.Option(help="Minutes that the target writes.")] = 5.0,
    sequences: Annotated[int, typer.Option(help="Answers that the target writes at once.")] = 2048,
    texts: Annotated[int, typer.Option(help="Texts that the target reads, of 8,192 tokens each.")] = 640,
    lengths: Annotated[
        str, typer.Option(help="Tokens before an answer.")
    ] = "1024,2048,4096,8192,32768,124928",
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 3e-3,
    steps: Annotated[int, typer.Option(help="Most steps.", min=1)] = 20_000,
    minutes: Minutes = 6.0,
    seed: Seed = 0,
    device: Device = "auto",
    debug: bool = False,
) -> None:
    """Distil a small draft from a target."""
    with failures(debug):
        before = tuple(listed(lengths))
        writable(out)
        if not (writing or texts):
            raise UsageError("nothing to learn from; give --writing or --texts")
        loaded = load(model, device)
        from triforce_chat.lab.training.draft import DraftRecipe
        from triforce_chat.lab.training.jobs import Generation, books, train_draft

        held = [file for path in unseen for file in (path, *path.rglob("*"))]
        names = [*(exclude or []), *(file.name for file in held)]
        recipe = DraftRecipe(
            hidden=hidden,
            layers=layers,
            mlp=4 * hidden,
            rate=rate,
            steps=steps,
            minutes=minutes,
            seed=seed,
        )
        plan = Generation(minutes=writing, sequences=sequences, lengths=before, texts=texts)
        own, others = books(loaded, data, names), books(loaded, unseen, [])
        train_draft(loaded, own, others, recipe, plan, out, teller(), start)


def writable(folder: Path) -> None:
    """Make the folder for the result before anything slow begins. Raises UsageError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written ({error.strerror})") from error


def load(model: str, device: str) -> LoadedModel:
    from triforce_chat.loading.device import device_and_dtype
    from triforce_chat.models.load import load_model
    from triforce_chat.models.presets import find_preset

    folder = Path(model).expanduser()
    # An adapter names its base: it must find it from any folder.
    name = model if find_preset(model) or not folder.is_dir() else str(folder.absolute())
    where, dtype = device_and_dtype(Settings(device=device))
    return load_model(name, device=where, dtype=dtype, attention="sdpa")


def teller() -> Tell:
    """Prints every report as one line."""
    tell: Callable[[dict[str, Any]], None] = lambda figures: typer.echo(  # noqa: E731
        "  ".join(f"{name} {value:g}" for name, value in figures.items()), err=True
    )
    return tell
