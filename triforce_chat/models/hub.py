"""Models of the Hugging Face hub: downloaded once, safetensors only, then used offline."""

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
from triforce_chat.models.completeness import check_complete
from triforce_chat.models.progress import Progress, Report
from triforce_chat.models.silence_logs import silence_logs

# No pattern matches a pickle (.bin, .pt) or a file in a subfolder; ``pickles`` adds a pattern of its own.
INCLUDED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
EXCLUDED = ["*/*", "consolidated*"]  # consolidated*: the same weights in the authors' own format


def snapshot(repository: str, report: Report) -> Path:
    """The local folder of ``owner/name``; uses the network only if the local copy is incomplete.

    Raises ModelError if the model cannot be downloaded, NoSafetensors if it has no weights in that format.
    """
    folder = local_snapshot(repository)
    if folder is None:
        folder = download(repository, report)
        check_complete(repository, folder)
    return folder


def local_snapshot(repository: str) -> Path | None:
    """The complete local folder of ``owner/name``, if there is one; never uses the network."""
    try:
        folder = Path(_fetch(repository, local_files_only=True))
        check_complete(repository, folder)
    except (ModelError, errors.LocalEntryNotFoundError, errors.HFValidationError):
        return None
    return folder


def download(repository: str, report: Report, more: Sequence[str] = ()) -> Path:
    """Download the included files of ``owner/name``, and files that match ``more``, without checking them.

    Raises ModelError, with advice, if the download fails.
    """
    try:
        return Path(_fetch(repository, more, tqdm_class=_meter(report)))
    except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors derive from these
        raise ModelError(f"{repository}: {_reason(repository, error)}") from error


def download_file(repository: str, file: str, folder: Path, report: Report) -> Path:
    """Download one file of ``owner/name`` into ``folder``; goes on with what is there of an earlier attempt.

    Raises ModelError, whose text is the cause alone, if the download fails.
    """
    try:
        with silence_logs():
            return Path(
                huggingface_hub.hf_hub_download(repository, file, local_dir=folder, tqdm_class=_meter(report))
            )
    except (OSError, ValueError, RuntimeError) as error:
        cause = _refusal(repository, error) or f"the hub cannot be reached: {_first_line(error)}"
        raise ModelError(f"{repository}: {cause}") from error


def configuration_folder(repository: str) -> Path:
    """A local folder with the config.json of ``owner/name``, which is fetched alone if it is not here.

    Raises ModelError if it cannot be downloaded.
    """
    try:
        with silence_logs():
            return Path(huggingface_hub.hf_hub_download(repository, "config.json")).parent
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{repository}: {_reason(repository, error)}") from error


def _fetch(repository: str, more: Sequence[str] = (), **options: Any) -> str:
    with silence_logs():
        folder: str = huggingface_hub.snapshot_download(
            repository, allow_patterns=[*INCLUDED, *more], ignore_patterns=EXCLUDED, **options
        )
        return folder


def _reason(repository: str, error: Exception) -> str:
    return _refusal(repository, error) or (
        "not downloaded yet and the hub cannot be reached: connect once, or pass --model FOLDER "
        f"({_first_line(error)})"
    )


def _refusal(repository: str, error: Exception) -> str | None:
    """What the hub answered; None if it did not answer."""
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
    return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _meter(report: Report) -> type[Any]:
    """A tqdm class that draws nothing and reports bytes; the hub uses up to two such bars at once."""
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
