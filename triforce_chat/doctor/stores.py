"""Checks of the files on the disk: settings, models, document cache and sessions."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from triforce_chat.doctor.check_result import CheckResult, ok, problem, warning
from triforce_chat.doctor.software import INSTALL, first_line
from triforce_chat.errors import ModelError, TriforceError, UsageError
from triforce_chat.settings.paths import config_file, kv_folder, sessions_file
from triforce_chat.settings.settings import AUTO
from triforce_chat.settings.sizes import readable

if TYPE_CHECKING:
    from triforce_chat.models.packed import PackedModel
    from triforce_chat.models.presets import Preset

SMALL = "small"  # the model that answers where no other one can


def settings() -> Iterator[CheckResult]:
    from triforce_chat.settings.layers import from_environment, from_file, unknown_variables

    path = config_file()
    file = from_file(path)
    for message in file.problems:
        yield problem("settings", message, "triforce-chat config edit", UsageError)
    environment = from_environment(os.environ, file.values)
    for message in environment.problems:
        yield problem("settings", message, "correct or unset the variable", UsageError)
    for message in unknown_variables(os.environ):
        yield warning("settings", message, "correct or unset it")
    if not file.problems and not environment.problems:
        source = str(path) if path.exists() else "no file"
        yield ok("settings", ", ".join([source, *environment.origins.values()]))


def small_model() -> Iterator[CheckResult]:
    """Compare the files of the small model with their checksums, if it is here or would answer."""
    from triforce_chat.models.inventory import folder_of
    from triforce_chat.models.presets import find_preset

    preset = find_preset(SMALL)
    assert preset is not None
    if folder_of(preset) or find_preset(_model_in_effect()[0]) is preset:
        yield from _packed_model(preset)


def _model_in_effect() -> tuple[str, str | None]:
    """(the model in the settings, one line if it was chosen for this machine)."""
    from triforce_chat.settings.layers import effective

    name: str = effective().values["model"]
    if name != AUTO:
        return name, None
    from triforce_chat.loading.choose_model import users_choice

    choice = users_choice()
    return choice.model, choice.summary


def _packed_model(preset: Preset) -> Iterator[CheckResult]:
    """Compare the files of a model that comes in wheels with their checksums, reading all of them."""
    from triforce_chat.models.fetch import identity, is_complete
    from triforce_chat.models.inventory import own_folder, size_of
    from triforce_chat.models.model_cache import damaged_files

    assert preset.packed is not None
    name, folder = preset.name, own_folder(preset)
    pull = f"triforce-chat models pull {name}"
    if not is_complete(preset.packed):
        yield warning("model", f"{name} is not here yet; the first start downloads it", pull)
        return
    wrong = damaged_files(folder, identity(preset.packed))
    if wrong:
        renew = f"triforce-chat models rm {name}, then {pull}"
        yield problem("model", f"damaged in {folder}: {', '.join(wrong)}", renew, ModelError)
    else:
        size = readable(size_of(folder))
        yield ok("model", f"{name} is intact, {size} in {folder}; weights in {_format_in_use(preset.packed)}")


def _format_in_use(packed: PackedModel) -> str:
    from triforce_chat.loading.prepare import format_in_use
    from triforce_chat.settings.layers import user_values
    from triforce_chat.settings.options import Options

    try:
        return format_in_use(packed, Options(**user_values()).settings)
    except TriforceError:  # of the settings, which have a check of their own
        return packed.stored.format


def chosen_model() -> Iterator[CheckResult]:
    """The model in the settings, if it is not the small one: is it on this machine?"""
    from triforce_chat.models.inventory import folder_of
    from triforce_chat.models.presets import find_preset

    name, chosen = _model_in_effect()
    if chosen:
        yield ok("model", chosen)
    preset = find_preset(name)
    if preset is not None and preset.name == SMALL:
        return
    if preset is not None and preset.packed is not None:
        yield from _packed_model(preset)
        return
    if preset is not None:
        folder = folder_of(preset)
    elif Path(name).expanduser().exists():
        yield from _own_model(name)
        return
    else:
        folder = _snapshot(name)
    if folder:
        yield ok("model", f"{name} is in {folder}")
    else:
        yield warning(
            "model", f"{name} is not on this machine", "the first start downloads it; or check its name"
        )


def _own_model(name: str) -> Iterator[CheckResult]:
    from triforce_chat.models.adapter import is_adapter, read_adapter
    from triforce_chat.models.completeness import check_complete
    from triforce_chat.models.draft_head import check_answers

    path = Path(name).expanduser()
    try:
        if is_adapter(path):
            read_adapter(path)
        elif path.is_dir() and not any(path.glob("*.gguf")):
            check_complete(name, path)
            check_answers(name, path)
    except TriforceError as error:
        yield problem("model", str(error), "correct 'model' in the settings", ModelError)
        return
    yield ok("model", f"{name} is complete")


def converted_models() -> Iterator[CheckResult]:
    """The conversions of GGUF files: their size, and those of files that are gone or changed."""
    from triforce_chat.models.gguf_cache import conversions, conversions_folder
    from triforce_chat.models.inventory import size_of

    found, folder = conversions(), conversions_folder()
    useless = [each for each in found if not each.is_current]
    if useless:
        size = readable(sum(size_of(each.folder) for each in useless))
        message = (
            f"{len(useless)} of {len(found)} are out of date: "
            f"their GGUF files are gone or changed ({size} in {folder})"
        )
        yield warning("converted", message, f"triforce-chat models rm {quote(useless[0].origin.file)}")
    elif found:
        yield ok("converted", f"{len(found)} from GGUF files, {readable(size_of(folder))} in {folder}")
    else:
        yield ok("converted", "no GGUF file yet")


def _snapshot(name: str) -> Path | None:
    from triforce_chat.models.hub import local_snapshot
    from triforce_chat.models.registry import looks_like_hub_id

    return local_snapshot(name) if looks_like_hub_id(name) else None


def shipped_weights() -> Iterator[CheckResult]:
    """The adapter and the draft model in the package: their configurations and the lengths of their weights."""
    from triforce_chat.models.adapter import read_adapter
    from triforce_chat.models.completeness import check_complete
    from triforce_chat.models.presets import shipped

    adapter, draft = Path(shipped("context")), Path(shipped("draft"))
    for name, folder in (("adapter", adapter), ("draft", draft)):
        try:
            if name == "adapter":
                read_adapter(folder)
            else:
                check_complete(name, folder)
            tensors = sum(map(_tensors, folder.glob("*.safetensors")))
        except Exception as error:
            yield problem(name, f"cannot be read: {first_line(error)}", INSTALL, ModelError)
        else:
            yield ok(name, f"{tensors} tensors in {folder}")


def _tensors(path: Path) -> int:
    """The number of tensors in a file; raises for a truncated file."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return len(file.keys())


def document_cache() -> Iterator[CheckResult]:
    """The document cache: its size, and files that are damaged or unreachable."""
    from triforce_chat.settings.layers import cache_limit
    from triforce_chat.storage.kv.cache_directory import CacheDirectory

    cache = CacheDirectory(kv_folder(), cache_limit())
    texts, files = cache.texts(), cache.files()
    used = cache.used()
    message = (
        f"{len(texts)} texts, {readable(used)} of at most {readable(cache.limit(used))} in {cache.folder}"
    )
    reachable = {path for text in texts for path in text.paths}
    useless = [file for file in files if file.path not in reachable]
    if useless:
        size = readable(sum(file.bytes for file in useless))
        message = f"{len(useless)} of {len(files)} files are damaged or useless ({size}) in {cache.folder}"
        yield warning("documents", message, "triforce-chat cache gc")
    else:
        yield ok("documents", message)


def calibration() -> Iterator[CheckResult]:
    """What was measured with the model in the settings on this machine, by the versions that are installed."""
    import torch

    from triforce_chat.engine.speculation.calibrator import outlooks
    from triforce_chat.loading.calibration_file import about_machine, entries_for
    from triforce_chat.loading.device import device_and_dtype
    from triforce_chat.settings.layers import effective
    from triforce_chat.settings.settings import Settings

    name, _ = _model_in_effect()
    device = torch.device(device_and_dtype(Settings(device=effective().values["device"]))[0])
    found = [outlooks(entry.calibration) for entry in entries_for(about_machine(device), name)]
    found = [each for each in found if each]
    if not found:
        yield ok(
            "calibration", f"{name} has not been measured on this machine yet; the first answers do that"
        )
        return
    contexts = sorted({each.context for rows in found for each in rows})
    last = found[0][-1]
    yield ok(
        "calibration",
        f"{name}: {len(found)} {'entry' if len(found) == 1 else 'entries'} for contexts of at least "
        f"{', '.join(f'{context:,}' for context in contexts)} tokens; from {last.context:,} tokens on "
        f"{last.plain_ms:.1f} ms per token without drafts, {last.best_ms:.1f} expected with drafts",
    )


def sessions() -> Iterator[CheckResult]:
    """The integrity of the stored sessions; reads the whole file and writes nothing."""
    path = sessions_file()
    if not path.exists():
        yield ok("sessions", "none stored yet")
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            count = connection.execute("SELECT count(*) FROM sessions").fetchone()[0]
    except sqlite3.Error as error:
        found = first_line(error)
    if found == "ok":
        yield ok("sessions", f"{count} in {path} ({readable(path.stat().st_size)})")
    else:
        advice = "move it away to start afresh, or restore a copy"
        yield problem("sessions", f"{path}: {found}", advice, TriforceError)
