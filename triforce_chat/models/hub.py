"""Models of the Hugging Face hub: downloaded once, safetensors only, used offline afterwards."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from triforce_chat.errors import ModelError
from triforce_chat.models.complete import check_complete
from triforce_chat.models.progress import Progress, Report
from triforce_chat.models.quiet import quiet

# No pattern matches a pickle (.bin, .pt), and nothing in a subfolder is taken; ``pickles`` asks for its own.
WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
UNWANTED = ["*/*", "consolidated*"]  # the same weights again, in the form of their authors' own program


def snapshot(repository: str, report: Report) -> Path:
    """The local folder of ``owner/name``; asks the network only when the local copy is not complete.

    Raises ModelError if the model cannot be had, NoSafetensors if it has no weights in that format.
    """
    folder = local_snapshot(repository)
    if folder is None:
        folder = download(repository, report)
        check_complete(repository, folder)
    return folder


def local_snapshot(repository: str) -> Path | None:
    """The complete local folder of ``owner/name``, if there is one; asks no network."""
    try:
        folder = Path(_fetch(repository, local_files_only=True))
        check_complete(repository, folder)
    except (ModelError, errors.LocalEntryNotFoundError, errors.HFValidationError):
        return None
    return folder


def download(repository: str, report: Report, more: Sequence[str] = ()) -> Path:
    """Fetch what is wanted of ``owner/name``, and files that match ``more``; checks nothing.

    Raises ModelError, with what can be done about it, if the hub does not deliver.
    """
    try:
        return Path(_fetch(repository, more, tqdm_class=_meter(report)))
    except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors derive from these
        raise ModelError(f"{repository}: {_reason(repository, error)}") from error


def configuration_folder(repository: str) -> Path:
    """A local folder with the config.json of ``owner/name``, which is fetched alone if it is not here.

    Raises ModelError if the hub does not deliver.
    """
    try:
        with quiet():
            return Path(huggingface_hub.hf_hub_download(repository, "config.json")).parent
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{repository}: {_reason(repository, error)}") from error


def _fetch(repository: str, more: Sequence[str] = (), **options: Any) -> str:
    with quiet():
        folder: str = huggingface_hub.snapshot_download(
            repository, allow_patterns=[*WANTED, *more], ignore_patterns=UNWANTED, **options
        )
        return folder


def _reason(repository: str, error: Exception) -> str:
    match error:
        case errors.GatedRepoError():
            page = f"https://huggingface.co/{repository}"
            return f"gated: accept its terms at {page}, then log in with 'hf auth login'"
        case errors.RepositoryNotFoundError():
            return "not on the hub (or private: log in with 'hf auth login'), and no such folder here"
        case errors.HFValidationError():
            return "not a valid hub id"
        case errors.HfHubHTTPError():
            return f"the hub refused the download: {_first_line(error)}"
    return (
        "not downloaded yet and the hub cannot be reached: connect once, or pass --model FOLDER "
        f"({_first_line(error)})"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _meter(report: Report) -> type[Any]:
    """A tqdm class that draws nothing and reports bytes; the hub keeps up to two such bars at once."""
    lock, furthest = threading.Lock(), [0]

    class Meter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            with lock:
                if self.unit == "B" and self.total and self.n > furthest[0]:
                    furthest[0] = int(self.n)
                    report(Progress("downloading", furthest[0], max(int(self.total), furthest[0])))
            return drawn

    return Meter
