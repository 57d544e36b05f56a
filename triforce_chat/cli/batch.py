"""``triforce-chat batch``: the same questions about many books, or many requests, answered into a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.batch_job import BatchJob
from triforce_chat.cli.batch_plans import BatchFiles, Plan, plan_of
from triforce_chat.cli.engines import compile_ahead, fetch, with_shown_model
from triforce_chat.cli.options import PARALLEL, Parallel
from triforce_chat.cli.output import print_record, screen_of, show_warning
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.batch.lines import Line
    from triforce_chat.batch.output_file import OutputFile
    from triforce_chat.batch.worker_pool import WorkerPool
    from triforce_chat.documents import Document
    from triforce_chat.ui.batch_progress import BatchView
    from triforce_chat.ui.terminal import Screen


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Who answers, how long an answer may take, and which lines are answered again."""

    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of worker processes (default: one per GPU, or per --tp GPUs; without "
            "several GPUs, this process does the work itself).",
        ),
    ] = None
    parallel: Parallel = PARALLEL
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run the workers on a Ray cluster: auto, local, or an address."),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, help="Maximum seconds per answer, including the reading of its book."),
    ] = None
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry the lines that have an error.")
    ] = False
    retry_changed: Annotated[
        bool,
        typer.Option(
            "--retry-changed",
            help="Answer again where a book, a request, the model or the settings have changed.",
        ),
    ] = False


def batch(
    paths: BatchFiles,
    options: Options,
    how: BatchWork,
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOOK...]",
            help="Files, folders and patterns; with --requests, documents that all requests share.",
        ),
    ] = None,
) -> None:
    """Answer questions about many books, or a file of requests; run it again to continue after an interruption."""
    from triforce_chat.batch.driver import NoWorkerLeft
    from triforce_chat.batch.output_file import NotWritten
    from triforce_chat.batch.run import require_all, stopped

    if options.jsonl:
        raise UsageError("--jsonl is for ask and summarize")
    if how.ray is not None:
        check_ray(options)
    plan = plan_of(paths, documents or [])
    for line in plan.skipped:
        show_warning(options, screen_of(options), line)
    shared = () if paths.requests is None else tuple(documents or ())
    job = BatchJob(options, options.model == AUTO, paths.requests, shared, how.parallel)
    run = Run(plan, job, how)
    interrupted, refused = False, None
    with plan.output() as output:
        try:
            interrupted = run.answer(output)
        except (NotWritten, NoWorkerLeft) as error:
            refused = stopped(error, plan.lines, output)
        except KeyboardInterrupt:
            interrupted = True
        if options.json:
            print_record(summary(plan.lines, output, run.view))
        if refused:
            raise refused
        require_all(plan.lines, output, interrupted)


def check_ray(options: Options) -> None:
    """Raises UsageError if a cluster cannot be used."""
    from triforce_chat.batch.ray_actors import require_extra

    require_extra()
    if options.model == AUTO:
        raise UsageError(
            "--ray needs a --model: the one that suits this machine may not suit those of the cluster"
        )


class Run:
    """One run of the command; until something is answered it has no view."""

    def __init__(self, plan: Plan, job: BatchJob, how: BatchWork) -> None:
        self._plan, self._job, self._how = plan, job, how
        self._documents: list[Document] | None = None  # of the command line, once they have been read
        self.view: BatchView | None = None

    def answer(self, output: OutputFile) -> bool:
        """Answer what the output lacks; returns whether Ctrl-C stopped that. Raises UsageError for changed answers."""
        from triforce_chat.batch.run import unanswered

        if self._how.retry_failed:
            output.forget(output.failed)
        # Which model "auto" is takes seconds to find out, which a finished batch is not worth.
        if not self._job.automatic or unanswered(self._plan.lines, output):
            self._check_changes(output)
        left = unanswered(self._plan.lines, output)
        return bool(left) and self._answer(left, output)

    def _check_changes(self, output: OutputFile) -> None:
        from triforce_chat.batch.run import refuse_changed, what_changed

        changes = what_changed(self._plan.lines, output, self._chosen().maker())
        if self._how.retry_changed:
            output.forget(changes.keys())
        else:
            refuse_changed(changes, output)

    def _chosen(self) -> BatchJob:
        """The job with the model that answers, whose documents have been read."""
        options = self._job.options
        if options.model == AUTO:
            screen = screen_of(options)
            self._documents = self._plan.documents(options, screen)
            self._job = dataclasses.replace(self._job, options=with_shown_model(options, screen))
        return self._job

    def _answer(self, lines: Sequence[Line], output: OutputFile) -> bool:
        from triforce_chat.batch.run import answer_lines
        from triforce_chat.ui.batch_progress import batch_view

        options = self._chosen().options
        screen = screen_of(options)
        pool = self._pool(lines, screen)
        quiet, names = options.quiet or options.json, [line.name for line in lines]
        self.view = batch_view(names, self._plan.has_books, screen.err, quiet, options.plain)
        return answer_lines(lines, pool, output, self.view, self._how.time_limit)

    def _pool(self, lines: Sequence[Line], screen: Screen) -> WorkerPool:
        groups = len({line.group for line in lines})
        return self._pool_here(groups, screen) if self._how.ray is None else self._pool_of_ray(groups, screen)

    def _pool_of_ray(self, groups: int, screen: Screen) -> WorkerPool:
        from triforce_chat.batch.ray_actors import RayActors

        options, how = self._job.options, self._how
        self._plan.documents(options, screen)  # unreadable files are reported before a cluster is used
        return RayActors(self._job, how.ray or "", options.settings, how.workers, groups, how.time_limit)

    def _pool_here(self, groups: int, screen: Screen) -> WorkerPool:
        """Workers on this machine, or this process, whose model is then loaded."""
        from triforce_chat.batch.places import environments, worker_count
        from triforce_chat.batch.worker_pool import ThisProcess
        from triforce_chat.loading.gpu import count_gpus
        from triforce_chat.loading.spec import EngineSpec
        from triforce_chat.parallel.rank_info import by_torchrun

        wanted, settings, gpus = self._how.workers, self._job.options.settings, count_gpus()
        workers = None if by_torchrun(os.environ) else worker_count(wanted, settings, gpus, groups)
        compile_ahead(EngineSpec(settings, sequences=self._how.parallel), screen)
        documents = (
            self._plan.documents(self._job.options, screen) if self._documents is None else self._documents
        )
        if workers is None:
            return ThisProcess(*self._job.load(documents, screen), limit=self._how.time_limit)
        from triforce_chat.batch.processes import Processes

        fetch(screen, self._job.options.model)
        return Processes(self._job, environments(workers, settings, gpus, os.environ), self._how.time_limit)


def summary(lines: Sequence[Line], output: OutputFile, view: BatchView | None) -> dict[str, Any]:
    """The state of a batch and the work of this run, for ``--json``."""
    ids = [line.id for line in lines]
    tokens, seconds = (view.tokens, view.seconds) if view else (0, 0.0)
    answered, failed = (sum(each in known for each in ids) for known in (output.answered, output.failed))
    return {
        "out": str(output.path),
        "lines": len(ids),
        "answered": answered,
        "failed": failed,
        "missing": len(ids) - answered - failed,
        "new": view.done if view else 0,
        "completion_tokens": tokens,
        "timing": {
            "load_s": view.load_s if view else 0.0,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds if seconds else 0.0,
        },
    }
