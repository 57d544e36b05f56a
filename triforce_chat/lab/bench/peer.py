"""llama.cpp on the same GGUF file and the same prompts, as the peer that most people have."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path

import torch

from triforce_chat.chat.events import LevelTally, Tally
from triforce_chat.errors import ModelError, UsageError
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.peer_process import Answer, Job
from triforce_chat.lab.bench.row import Measured, Read, Row, Run, against, row_of
from triforce_chat.loading.device import device_and_dtype
from triforce_chat.settings.settings import Settings

PEER = "llama.cpp"
PACKAGE = "xllamacpp"
SUFFIX = ".gguf"
# Of the time that we waited for an answer, the most that its own figures may leave out or exceed.
UNTOLD_SHARE, UNTOLD_S = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Mode:
    """A way in which llama.cpp decodes."""

    contender: str
    speculation: str  # its speculative type
    drafts: bool = False  # by a draft model


PLAIN_MODE = Mode(PEER, "none")
LOOKUP_MODE = Mode(f"{PEER} lookup", "ngram_simple")
# LOOKUP_MODE drafts nothing in a text that turns in a small circle; this one does.
HASHED_MODE = Mode(f"{PEER} ngram-mod", "ngram_mod")
DRAFT_MODE = Mode(f"{PEER} draft", "draft_simple", drafts=True)


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp as it comes, on a GGUF file, with a draft model if there is one."""

    model: Path
    draft: Path | None
    threads: int

    @property
    def modes(self) -> list[Mode]:
        return [PLAIN_MODE, LOOKUP_MODE, HASHED_MODE, *([DRAFT_MODE] if self.draft else [])]

    def about(self) -> dict[str, str | int | None]:
        """What decides its speed: the version, the instruction sets that it was built for, files and threads."""
        import xllamacpp

        return {
            "name": PEER,
            PACKAGE: version(PACKAGE),
            "system": xllamacpp.get_system_info().strip(" |"),
            "threads": self.threads,
            "model": self.model.name,
            "draft": self.draft.name if self.draft else None,
        }

    def rows(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        repeats: int,
        plain: Measured | None,
        plain_tokens: int | None = None,
    ) -> Iterator[Row]:
        """Every mode on the prompts of one length, beside our own plain greedy decoding of them.

        That may have stopped after ``plain_tokens``. A prompt is read once, by the first mode; the others continue
        from the keys and values that it left, and their rows repeat the rate of that reading. Raises ModelError
        where llama.cpp fails.
        """
        context = len(prompts[0])
        read = Read(context)
        with tempfile.TemporaryDirectory() as states:
            for mode in self.modes:
                answers = list(self.answers(mode, prompts, tokens, repeats, states))
                read = read_by(answers, context) or read
                yield row(mode, read, answers, plain, plain_tokens)

    def answers(
        self, mode: Mode, prompts: Sequence[Sequence[int]], tokens: int, repeats: int, states: str
    ) -> Iterator[Answer]:
        """Answers of a process that ends with this iterator; ``states`` is a folder for what the prompts became."""
        job = Job(
            model=str(self.model),
            draft=str(self.draft) if mode.drafts else None,
            speculation=mode.speculation,
            threads=self.threads,
            tokens=tokens,
            repeats=repeats,
            prompts=[list(ids) for ids in prompts],
            states=states,
        )
        for line in _lines(job):
            answer = Answer(**json.loads(line))
            check(answer, tokens)
            yield answer


def find_peer(name: str, settings: Settings) -> Peer:
    """The peer of that name for the models in the settings. Raises UsageError, before anything is loaded."""
    if name != PEER:
        raise UsageError(f"no peer '{name}'; there is {PEER}")
    if not find_spec(PACKAGE):
        raise UsageError(f"--peer needs {PACKAGE}; install it: pip install {PACKAGE}")
    if settings.repetition_penalty not in (None, 1):
        raise UsageError(f"--peer: {PEER} penalizes other tokens than we do; leave out the penalty")
    model = gguf_file(settings.model)
    if model is None:
        raise UsageError(
            f"--peer runs on a GGUF file, and '{settings.model}' is none; pass --model FILE{SUFFIX}"
        )
    if device_and_dtype(settings)[0] != "cpu":
        raise UsageError(f"--peer compares on the CPU, which is all that {PACKAGE} uses; add --device cpu")
    return Peer(model, gguf_file(settings.draft), torch.get_num_threads())


def gguf_file(name: str) -> Path | None:
    """The GGUF file that the name of a model means: itself, or the only one of a folder without other weights."""
    path = Path(expanduser(name))
    if path.is_dir() and not any(path.glob("*.safetensors")):
        found = [*path.glob(f"*{SUFFIX}")]
        return found[0].absolute() if len(found) == 1 else None
    return path.absolute() if path.is_file() and path.suffix.lower() == SUFFIX else None


def read_by(answers: Sequence[Answer], context: int) -> Read | None:
    """How fast the answers that read their whole prompt did so, or None if none did."""
    rates = [answer.read / answer.prefill_s for answer in answers if answer.read == context]
    return Read(context, rates) if rates else None


def row(
    mode: Mode,
    read: Read,
    answers: Sequence[Answer],
    plain: Measured | None,
    plain_tokens: int | None = None,
) -> Row:
    """The figures of all answers in one mode, which come prompt by prompt."""
    count = answers[-1].prompt + 1
    runs = [[run_of(answer) for answer in answers if answer.prompt == n] for n in range(count)]
    own = Measured(Case(Settings(), {}), runs, peak=max(answer.peak_bytes for answer in answers))
    made = replace(
        row_of(own, 0.0, read, warmup=0), contender=mode.contender, prefill_peak_bytes=None, warmup_s=None
    )
    if plain is None:
        return made
    return replace(against(made, own, plain, plain_tokens), leading_equal=leading_equal(own, plain))


def run_of(answer: Answer) -> Run:
    """An answer as a run: the first token comes with the prefill, and each other one takes as long as these did."""
    made = len(answer.token_ids)
    rounds = made - answer.accepted  # each ends with a token of the target's own
    # It does not say how many of the drafted tokens were tested.
    level = LevelTally(answer.drafted, answer.accepted, answer.drafted, rounds)
    tally = Tally(levels={"target": level}, token_ids=answer.token_ids)
    return Run(tally, answer.decode_s * made / (made - 1))


def leading_equal(own: Measured, plain: Measured) -> int:
    """Tokens before the first one that differs from our plain decoding's, over all prompts."""
    pairs = zip(own.runs, plain.runs, strict=False)
    return sum(common(mine[-1].tally.token_ids, base[-1].tally.token_ids) for mine, base in pairs)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest prefix that two sequences share."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def check(answer: Answer, tokens: int) -> None:
    """Raises ModelError unless an answer is as long as was asked for and its figures agree with the clock."""
    if len(answer.token_ids) != tokens:
        raise ModelError(f"{PEER} made {len(answer.token_ids)} tokens instead of {tokens}")
    reported = answer.prefill_s + answer.decode_s
    if abs(reported - answer.wall_s) > UNTOLD_SHARE * answer.wall_s + UNTOLD_S:
        raise ModelError(f"{PEER} says that it took {reported:.2f} s; the clock says {answer.wall_s:.2f} s")


def _lines(job: Job) -> Iterator[str]:
    """What the process prints. Raises ModelError with its last words if it fails; never leaves it running."""
    command = [sys.executable, "-m", "triforce_chat.lab.bench.peer_process"]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as pipe:
                json.dump(asdict(job), pipe)
            yield from process.stdout
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if code:
            errors.seek(0)
            words = errors.read().strip().splitlines() or [f"exit code {code}"]
            raise ModelError(f"{PEER} cannot run {Path(job.model).name}: {words[-1]}")
