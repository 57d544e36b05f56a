"""Loading a model with progress on the screen, in this process or split over several GPUs."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from triforce_chat.cli.output import show_notes, show_warning
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO, Settings
from triforce_chat.settings.sizes import GIGABYTE

if TYPE_CHECKING:
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.engine.engine import Engine
    from triforce_chat.engine.protocol import EngineProtocol
    from triforce_chat.engine.speculation.calibrator import MemoryCalibrations
    from triforce_chat.loading.calibration_file import CalibrationFile
    from triforce_chat.loading.spec import Calibrations, EngineSpec, LoadHooks
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.models.progress import Note
    from triforce_chat.ui.terminal import Screen

LOADER = "triforce_chat.loading.load_engine"
# What an answer needs besides.
FURTHER = ("triforce_chat.chat.session", "triforce_chat.storage.kv.disk_cache", "triforce_chat.ui.answer")
KERNELS = "triforce_chat.engine.kernels"
Made = TypeVar("Made")


def with_model(options: Options, screen: Screen) -> Options:
    """The options, with the model that suits this machine in place of "auto"; that one is then on this machine.

    A model that cannot be had is replaced by a smaller one, which a warning says. Raises ModelError if none can be
    had, and UsageError.
    """
    if options.model != AUTO:
        return options
    from triforce_chat.loading.garbage import no_garbage_collection

    busy = screen.err.status("choosing a model") if screen.detail == "live" else nullcontext()
    with no_garbage_collection(), busy:
        from triforce_chat.loading import choose_model  # imports torch, which takes seconds
        from triforce_chat.models.inventory import is_missing

        settings = options.settings
        choice = choose_model.choose(settings, choose_model.this_computer(settings))
        is_new = is_missing(choice.model)
    if is_new and choice.advice:
        show_notes([choice.advice], screen)
    model, line = choose_model.obtain(choice.models, partial(fetch, screen))
    if line:
        show_warning(options, screen, line)
    return dataclasses.replace(options, model=model)


def with_shown_model(options: Options, screen: Screen) -> Options:
    """Like ``with_model``, for a command that has no header: a note names the model that was chosen."""
    chosen = with_model(options, screen)
    if options.model == AUTO:
        show_notes([f"{chosen.model} answers (auto)"], screen)
    return chosen


def fetch(screen: Screen, name: str) -> None:
    """Download a model, with progress on the screen, unless it is on this machine. Raises ModelError."""
    from triforce_chat.models.inventory import is_missing
    from triforce_chat.models.registry import resolve
    from triforce_chat.ui.loading import loading

    if not is_missing(name):
        resolve(name)
        return
    with loading(screen, name) as report:
        resolve(name, report=report)


def compile_ahead(spec: EngineSpec, screen: Screen) -> None:
    """Have the GPU's kernels compiled meanwhile, unless an earlier process did.

    To be called first of all: documents are read, and torch and the model are loaded, at the same time.
    """
    from triforce_chat.loading import compile_job
    from triforce_chat.loading.gpu import find_gpu

    if compile_job.start(spec, find_gpu(spec.settings.device)):
        show_notes(["compiling GPU kernels for this model in the background, once"], screen)


def begin_on_gpu(settings: Settings) -> None:
    """Have the GPU, and Triton's kernels for it, get ready for this process while it imports torch."""
    from triforce_chat.loading.compile_job import released
    from triforce_chat.loading.gpu import begin_context

    # Of several ranks each is a process of its own, on a GPU of its own.
    if settings.tp == 1 and not (released("torch") or "").endswith("+cpu"):
        begin_context(settings.device)
        Thread(target=_begin_kernels, args=(settings.device,), name="kernels", daemon=True).start()


def _begin_kernels(device: str) -> None:
    from triforce_chat.engine.kernels_available import FIRST, identify_triton, kernels_compile
    from triforce_chat.loading.gpu import find_gpu

    with suppress(Exception):
        gpu = find_gpu(device)
        if gpu and gpu.capability >= FIRST and kernels_compile():
            identify_triton()
            import_module(KERNELS)


def import_ahead() -> Thread | None:
    """Have another thread import torch and what loads a model, while a process of its own parses documents.

    None if that was done before. Where it fails, so will the import that needs it.
    """
    if LOADER in sys.modules:
        return None
    ahead = Thread(target=_import_loader, name="imports", daemon=True)
    ahead.start()
    return ahead


def _import_loader() -> None:
    from triforce_chat.loading.garbage import no_garbage_collection

    with no_garbage_collection(), suppress(Exception):
        import_module(LOADER)
        # From here on the thread that waits for the loader goes on, and will find these when it needs them.
        for each in FURTHER:
            import_module(each)


def index_ahead(documents: list[Document], options: Options) -> Thread | None:
    """Have another thread find the passages of long documents, of which the question's best may be quoted.

    None where they are not wanted.
    """
    from triforce_chat.chat.quoting import LONG, index_of

    if not options.passages or sum(len(each.text) for each in documents) < LONG:
        return None  # they have no more tokens than characters
    ahead = Thread(target=index_of, args=(tuple(documents),), name="passages", daemon=True)
    ahead.start()
    return ahead


def open_engine(
    spec: EngineSpec,
    screen: Screen,
    remembering: bool = False,
    cache_size: float | None = None,
    warn: Note | None = None,
    calibrations: Calibrations | None = None,
    before_weights: Callable[[int, Any], None] | None = None,
) -> tuple[Engine, LoadedModel, float]:
    """Load a model in this process: (engine, model, seconds of loading).

    ``remembering`` connects the engine to the document cache on the disk, of at most ``cache_size`` GB. ``warn``
    receives what makes the answers doubtful; what the program chose by itself is shown as notes. ``calibrations`` makes
    the store of what planners measure; None keeps nothing. ``before_weights`` gets the tokens of the context and the
    tokenizer first, and may refuse what does not fit. Raises ModelError, OutOfMemory and UsageError.
    """
    require_one_process(spec.settings)

    def load(hooks: LoadHooks) -> tuple[Engine, LoadedModel]:
        from triforce_chat.loading.load_engine import load_engine  # imports torch, which takes seconds

        if before_weights:
            hooks = dataclasses.replace(hooks, before_weights=before_weights)
        if remembering:
            from triforce_chat.storage.kv.disk_cache import KVDiskCache

            limit = None if cache_size is None else cache_size * GIGABYTE
            store = partial(KVDiskCache.of, limit=limit, notify=hooks.note)
            hooks = dataclasses.replace(hooks, prefix_store=store)
        return load_engine(spec, hooks)

    return _timed(load, spec, screen, warn, calibrations)


def open_answering(
    spec: EngineSpec,
    screen: Screen,
    remembering: bool = False,
    cache_size: float | None = None,
    warn: Note | None = None,
    calibrations: Calibrations | None = None,
    before_weights: Callable[[int, Any], None] | None = None,
) -> tuple[EngineProtocol, LoadedModel, float]:
    """Load a model split over ``spec.settings.tp`` processes; parameters and result as of ``open_engine``.

    Several processes use no document cache.
    """
    if spec.settings.tp == 1:
        return open_engine(spec, screen, remembering, cache_size, warn, calibrations, before_weights)

    def load(hooks: LoadHooks) -> tuple[EngineProtocol, LoadedModel]:
        from triforce_chat.parallel.rank_info import this_rank
        from triforce_chat.parallel.rendezvous import connect_workers

        info = this_rank(spec.settings.tp, os.environ)
        from triforce_chat.parallel.launcher import Launcher, check_split

        if not info.by_torchrun:  # before hundreds of processes are started for nothing
            check_split(spec, info, hooks)
        workers, store = connect_workers(info)

        if remembering:
            hooks.note("with --tp the document cache is not used")
        return Launcher(info, workers, store).load(spec, hooks)

    return _timed(load, spec, screen, warn, calibrations)


def open_session(
    documents: list[Document], options: Options, screen: Screen, coming: Sequence[Document] = ()
) -> tuple[ChatSession, float]:
    """Load the model and add the documents to a conversation: (session, seconds of loading).

    ``coming``: documents that the caller is going to add; they are refused here if they are much too long.
    """
    from triforce_chat.loading.spec import EngineSpec

    engine, target, seconds = open_answering(
        EngineSpec(options.settings),
        screen,
        remembering=not options.no_cache,
        cache_size=options.cache_size,
        warn=partial(show_warning, options, screen),
        # A seed is worth nothing in the next process without the times that this one went by.
        calibrations=forgotten_calibrations
        if options.no_cache and options.seed is None
        else stored_calibrations,
        before_weights=partial(refuse_early, [*documents, *coming], options),
    )
    from triforce_chat.chat.session import ChatSession

    session = ChatSession(engine, target, options.settings, options.system_text)
    for document in documents:
        session.add(document)
    return session, seconds


def refuse_early(documents: list[Document], options: Options, context: int, tokenizer: Any) -> None:
    """Refuse, before the weights are read, what the tokenizer alone shows to be impossible.

    Raises DoesNotFit for documents that no context of so many tokens holds, and UsageError for thoughts that the model
    cannot be told to have, or not to have.
    """
    from triforce_chat.chat.context_check import check_before_weights
    from triforce_chat.chat.template import ChatFormat
    from triforce_chat.chat.thinking import checked_think

    form = ChatFormat(tokenizer)
    checked_think(options.think, form)
    check_before_weights(documents, form.encode_each, options.max_tokens, context)


def stored_calibrations(target: LoadedModel, draft: LoadedModel | None, ranks: int) -> CalibrationFile:
    """The store of what planners measure that all processes of the user share."""
    from triforce_chat.loading.calibration_file import CalibrationFile, about

    return CalibrationFile(about(target, draft, ranks))


def forgotten_calibrations(
    target: LoadedModel,  # noqa: ARG001
    draft: LoadedModel | None,  # noqa: ARG001
    ranks: int,  # noqa: ARG001
) -> MemoryCalibrations:
    """A store of what planners measure that ends with the process: a server's requests may have seeds in turns."""
    from triforce_chat.engine.speculation.calibrator import MemoryCalibrations

    return MemoryCalibrations()


def require_one_process(settings: Settings) -> None:
    """Raises UsageError if --tp asks for several processes, which this command cannot use."""
    if settings.tp > 1:
        raise UsageError(f"this command runs in one process; use --tp 1 instead of {settings.tp}")


def follows_rank_zero(tp: int) -> bool:
    """Where torchrun started this process as a rank other than 0: serve rank 0 to its end, then return True."""
    if tp == 1:
        return False
    from triforce_chat.parallel.rank_info import this_rank

    info = this_rank(tp, os.environ)
    if info.rank == 0:
        return False
    from triforce_chat.parallel.worker import run_launched

    run_launched(info)
    return True


def _timed(
    load: Callable[[LoadHooks], tuple[Made, LoadedModel]],
    spec: EngineSpec,
    screen: Screen,
    warn: Note | None,
    calibrations: Calibrations | None,
) -> tuple[Made, LoadedModel, float]:
    from triforce_chat.loading.garbage import no_garbage_collection
    from triforce_chat.loading.spec import LoadHooks, no_calibrations
    from triforce_chat.ui.loading import loading

    def note(line: str) -> None:
        show_notes([line], screen)

    started = time.perf_counter()
    with loading(screen, spec.settings.model) as report, no_garbage_collection():
        made, target = load(
            LoadHooks(report, note, warn or note, calibrations=calibrations or no_calibrations)
        )
    return made, target, time.perf_counter() - started
