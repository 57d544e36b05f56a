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
from triforce_chat.cli.output import print_record, screen_of
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.batch.crew import Crew
    from triforce_chat.batch.lines import Line
    from triforce_chat.batch.output_file import OutputFile
    from triforce_chat.ui.batch_progress import BatchView
    from triforce_chat.ui.terminal import Screen


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Who answers, and how long an answer may take."""

    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Worker processes, each with an engine (default: one per GPU, or per --tp of them; without "
            "several GPUs this process answers by itself).",
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds that an answer may take, reading its book included."),
    ] = None


def batch(
    paths: BatchFiles,
    options: Options,
    how: BatchWork,
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOOK...]", help="Files, folders and patterns; with --requests the documents of all."
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Answer the lines with an error again.")
    ] = False,
) -> None:
    """Answer questions about many books, or a file of requests; the same command goes on after an interruption."""
    from triforce_chat.batch.driver import NoWorkerLeft
    from triforce_chat.batch.output_file import NotWritten
    from triforce_chat.batch.run import require_all, stopped, unanswered

    if options.jsonl:
        raise UsageError("--jsonl goes with ask and summarize")
    plan = plan_of(paths, documents or [])
    shared = () if paths.requests is None else tuple(documents or ())
    job = BatchJob(options, options.model == AUTO, paths.requests, shared)
    run, interrupted, refused = Run(plan, job, how), False, None
    with plan.output() as output:
        try:
            if retry_failed:
                output.forget_failed()
            left = unanswered(plan.lines, output.answered | output.failed)
            if left:
                interrupted = run.answer(left, output)
        except (NotWritten, NoWorkerLeft) as error:
            refused = stopped(error, plan.lines, output)
        except KeyboardInterrupt:
            interrupted = True
        if options.json:
            print_record(summary(plan.lines, output, run.view))
        if refused:
            raise refused
        require_all(plan.lines, output, interrupted)


class Run:
    """One run of the command; until something is answered it has no view."""

    def __init__(self, plan: Plan, job: BatchJob, how: BatchWork) -> None:
        self._plan, self._job, self._how = plan, job, how
        self.view: BatchView | None = None

    def answer(self, lines: Sequence[Line], output: OutputFile) -> bool:
        """Load the model and answer the lines; returns whether Ctrl-C stopped it."""
        from triforce_chat.batch.run import answer_lines
        from triforce_chat.ui.batch_progress import batch_view

        options = self._job.options
        screen = screen_of(options)
        crew = self._crew(lines, screen)
        quiet, names = options.quiet or options.json, [line.name for line in lines]
        self.view = batch_view(names, self._plan.has_books, screen.err, quiet, options.plain)
        return answer_lines(lines, crew, output, self.view, self._how.time_limit)

    def _crew(self, lines: Sequence[Line], screen: Screen) -> Crew:
        """Workers on this machine, or this process, whose model is then loaded."""
        from triforce_chat.batch.crew import ThisProcess
        from triforce_chat.batch.places import environments, worker_count
        from triforce_chat.loading.gpu import count_gpus
        from triforce_chat.loading.spec import EngineSpec
        from triforce_chat.parallel.rank_info import by_torchrun

        wanted, settings, gpus = self._how.workers, self._job.options.settings, count_gpus()
        groups = len({line.group for line in lines})
        workers = None if by_torchrun(os.environ) else worker_count(wanted, settings, gpus, groups)
        compile_ahead(EngineSpec(settings), screen)
        documents = self._plan.documents(self._job.options, screen)
        job = dataclasses.replace(self._job, options=with_shown_model(self._job.options, screen))
        if workers is None:
            return ThisProcess(*job.load(documents, screen), limit=self._how.time_limit)
        from triforce_chat.batch.processes import Processes

        fetch(screen, job.options.model)
        return Processes(job, environments(workers, settings, gpus, os.environ), self._how.time_limit)


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
