"""Tables of quality, from the records of ``triforce-chat evaluate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from records import factor, number, record, row, rows, source, span, table

from triforce_chat.models.presets import find_preset

CONTEXTS = (8_192, 32_768, 124_928)
KINDS = ("date", "object", "place", "name", "number", "two-step", "absent")


def comprehension() -> str:
    """Questions about novels, by model and context."""
    header = (
        "model",
        "context",
        "quoted",
        "right",
        "one passage",
        "two passages",
        "not in the book",
        "denied",
        "commonest opening",
    )
    names = [
        ("small", [f"h200-comprehension-small-{context}" for context in CONTEXTS]),
        ("medium", [f"h200-comprehension-medium-{context}" for context in CONTEXTS]),
        ("medium", ["h200-passages-medium"]),
        ("qwen2.5-coder-0.5b", [f"h200-comprehension-0.5b-{context}" for context in CONTEXTS]),
        ("large", [f"h200-comprehension-large-{context}" for context in CONTEXTS]),
        ("large", ["h200-passages-large", "h200-passages-large-32768"]),
        ("qwen2.5-coder-1.5b", [f"h200-comprehension-1.5b-{context}" for context in CONTEXTS[:2]]),
    ]
    lines = []
    for model, every in names:
        found = [(each, record(name).get("passages", 0)) for name in every for each in rows(name)]
        for each, quoted in sorted(found, key=lambda pair: pair[0]["context"]):
            lines.append((f"`{model}`", f"{each['context']:,}", str(quoted), *_answers(each)))
    return table(header, lines) + "\n" + source("h200-passages-large")


def _answers(found: Mapping[str, Any]) -> tuple[str, ...]:
    right, asked = found["right"], found["asked"]
    total = f"**{sum(right.values())} of {sum(asked.values())}**"
    groups = (f"{right[group]} of {asked[group]}" for group in ("one", "two", "absent"))
    return total, *groups, str(found["denied"]), f"“{found['opening']}” {found['opening_share']:.0%}"


def facts() -> str:
    """Planted facts by kind and context."""
    return _facts("h200-facts")


def facts_of_models() -> str:
    """Planted facts asked of ``large`` and ``medium``."""
    parts = (f"`{model}`:\n\n{_facts(f'h200-facts-{model}')}" for model in ("large", "medium"))
    return "\n".join(parts)


def _facts(name: str) -> str:
    header = ("kind", *(f"{context:,} tokens" for context in CONTEXTS))
    lines = [[_kind(kind), *(_found(name, context, kind) for context in CONTEXTS)] for kind in KINDS]
    total = ["**all that are there**", *(f"**{_right(name, context)}**" for context in CONTEXTS)]
    return table(header, [total, *lines]) + "\n" + source(name)


def _kind(kind: str) -> str:
    return {"absent": "not in the document (recognized as such)", "two-step": "two steps"}.get(kind, kind)


def _found(name: str, context: int, kind: str) -> str:
    (found,) = [each for each in record(name)["kinds"] if (each["context"], each["kind"]) == (context, kind)]
    return f"{found['right']} of {found['asked']}"


def _right(name: str, context: int) -> str:
    found = rows(name, context=context)
    return f"{sum(each['right'] for each in found)} of {sum(each['asked'] for each in found)}"


def depths() -> str:
    """Planted facts by depth."""
    first = rows("h200-facts", context=CONTEXTS[0])
    header = ("context", *(f"{each['depth']:.0%}" for each in first))
    lines = [
        (
            f"{context:,}",
            *(f"{each['right']}/{each['asked']}" for each in rows("h200-facts", context=context)),
        )
        for context in CONTEXTS
    ]
    return table(header, lines)


def denied() -> str:
    """Facts that are there and that the model said were not."""
    read = record("h200-facts")
    missed = sum(each["asked"] - each["right"] for each in read["rows"])
    return f"Of the {missed} facts missed, the model said of {read['denied']} that they are not in the document.\n"


def base_facts() -> str:
    """The adapter beside the bare model on a CPU."""
    lines = [
        (words, *(_right(name, 4096).split(" of ")))
        for words, name in (("default (adapter)", "cpu-facts-4096"), ("bare model", "cpu-facts-4096-base"))
    ]
    return (
        table(("4,096 tokens", "facts found", "asked"), lines)
        + "\n"
        + source("cpu-facts-4096", "cpu-facts-4096-base")
    )


def questions() -> str:
    """Short everyday questions."""
    lines = []
    for words, name in (("CPU, fp32", "cpu-questions"), ("H200, bf16", "h200-questions")):
        asked = record(name)["questions"]
        right = [row(name, model=model)["right"] for model in ("default", "smollm2-135m")]
        lines.append((words, *(f"{count} of {asked}" for count in right)))
    header = ("", "default (adapter)", "bare model")
    return table(header, lines) + "\n" + source("cpu-questions", "h200-questions")


def perplexity() -> str:
    """By position in one pass."""
    read = record("h200-perplexity")
    lines = [
        (
            f"{each['start']:,}–{each['end']:,}",
            number(each["perplexity"], 1),
            "" if each["reference"] is None else number(each["reference"], 1),
            "" if each["ratio"] is None else number(each["ratio"], 3),
        )
        for each in read["rows"]
    ]
    window = read["windows"][0]
    header = ("positions", "perplexity", "bare model", "ratio")
    last = (
        f"Over the {window['tokens']:,} last tokens, perplexity with the whole text is {window['ratio']:.3f} of the "
        f"perplexity with only the latest {window['least']:,} to {window['most']:,} tokens.\n"
    )
    return table(header, lines) + "\n" + last + "\n" + source("h200-perplexity")


def eviction(*names: str) -> str:
    """A stream that the cache forgets as it goes, by rule, and one text continued under each."""
    read = [*map(record, names)]
    bands = read[0]["rows"][0]["parts"]
    header = ("rule", *(f"{part['start']:,}–{part['end']:,}" for part in bands), "ms/token", "continued")
    told = [pair for each in read for pair in each["continued"].items()]
    said = {name: text.replace("\n", " ").strip() for name, text in told}
    lines = [
        (
            f"`{each['rule']}`",
            *(number(part["perplexity"], 1) for part in each["parts"]),
            number(each["ms_per_token"], 0 if each["ms_per_token"] >= 20 else 1),
            said.get(each["rule"], "")[:120],
        )
        for found in read
        for each in found["rows"]
    ]
    lines.append(("nothing forgotten", *("" for _ in bands), "", said["full"][:120]))
    return table(header, lines) + "\n" + source(*names)


def facts_by_kv() -> str:
    """Planted facts over keys and values in 16 and in 8 bits."""
    names = [f"cpu-facts-4096-{kv}" for kv in ("float16", "int8")]
    lines = []
    for name in names:
        there, absent = ([0, 0], [0, 0])
        for each in record(name)["kinds"]:
            into = absent if each["kind"] == "absent" else there
            into[0], into[1] = into[0] + each["right"], into[1] + each["asked"]
        kv = record(name)["settings"]["kv"]
        lines.append((f"`--kv {kv}`", *(f"{right} of {asked}" for right, asked in (there, absent))))
    header = ("4,096 tokens", "facts found", "not in the document, and said so")
    return table(header, lines) + "\n" + source(names[1], names[0])


def eviction_example() -> str:
    """The end of a text, and how it is continued by a fifth of the cache under two rules, and by all of it."""
    read = record("cpu-eviction")
    whole, share = read["plan"]["example"], read["plan"]["example"] // 5
    kinds = (
        ("full", f"All {whole:,} tokens"),
        ("window", f"The latest {share} of them (local window)"),
        ("h2o", f"{share} of them by H2O, half heavy hitters and half the latest"),
    )

    def quoted(words: str, text: str) -> str:
        return f"{words}:\n\n> {' '.join(text.split())}\n"

    said = [quoted(words, read["continued"][name]) for name, words in kinds]
    return "\n".join([quoted("The text ends", "… " + read["before"].strip()), *said])


def policies() -> str:
    """The middle level's acceptance by policy, at one budget, over all kinds of text."""
    name = "cpu-acceptance-policies"
    read = record(name)
    inside = "`streaming-h2o`: the same, positions counted inside"
    words = {
        "h2o": "`h2o`: heavy hitters",
        "streaming-h2o": inside,
        "streaming": "the latest tokens alone (StreamingLLM)",
    }
    kinds = list(dict.fromkeys(row["kind"] for row in read["rows"]))

    def alpha(policy: str, kind: str) -> float:
        (row,) = (row for row in read["rows"] if (row["policy"], row["kind"]) == (policy, kind))
        return float(row["alpha"]["value"])

    lines = []
    for policy in read["plan"]["policies"]:
        found = [alpha(policy, kind) for kind in kinds]
        lines.append((words.get(policy, f"`{policy}`"), *(f"{each:.2f}" for each in [*found, fmean(found)])))
    return table(("policy", *kinds, "mean"), lines) + "\n" + source(name)


def _pooled(name: str, temperature: float, policy: str, context: int | None, measure: str) -> float:
    """The mean over kinds of text (and contexts, if none is given)."""
    found = [
        each[measure]["value"]
        for each in rows(name, temperature=temperature, policy=policy)
        if context in (None, each["context"]) and each[measure]["value"] is not None
    ]
    return fmean(found)


def _triple(name: str, policy: str, context: int | None, measure: str) -> str:
    return " / ".join(f"{_pooled(name, t, policy, context, measure):.2f}" for t in (0.0, 0.6, 1.0))


def acceptance() -> str:
    """Acceptance of every level at T=0 / 0.6 / 1."""
    measures = (
        ("retrieval cache under the target, `mean` policy", "alpha", "mean"),
        ("retrieval cache under the target, `minmax` policy", "alpha", "minmax"),
        ("draft under the retrieval cache", "beta", "mean"),
        ("draft straight under the target", "direct", "mean"),
    )
    header = ("T = 0 / 0.6 / 1", *(f"{context:,} tokens" for context in CONTEXTS), "all three")
    lines = [
        [words, *(_triple("h200-acceptance", policy, context, measure) for context in (*CONTEXTS, None))]
        for words, measure, policy in measures
    ]
    return table(header, lines) + "\n" + source("h200-acceptance")


def acceptance_penalty() -> str:
    """The draft under the preset's repetition penalty."""
    header = ("T = 0 / 0.6 / 1", *(f"{context:,} tokens" for context in CONTEXTS), "all three")
    name = "h200-acceptance-penalty"
    cells = [_triple(name, "mean", context, "beta") for context in (*CONTEXTS, None)]
    return table(header, [["draft under the retrieval cache", *cells]]) + "\n" + source(name)


def spread() -> str:
    """Standard errors of the acceptances of single kinds of text."""

    def widest(greedy: bool) -> float:
        found = [each for each in record("h200-acceptance")["rows"] if (each["temperature"] == 0) == greedy]
        return max(each[measure]["error"] or 0 for each in found for measure in ("alpha", "beta"))

    least = min(each["beta"]["value"] for each in rows("h200-acceptance", policy="mean"))
    return (
        f"Each mean is over summaries, answers and continuations. Standard errors of a single kind of text reach "
        f"{widest(True):.2f} at T=0 (two samples each) and {widest(False):.2f} otherwise (eight). The draft's lowest "
        f"acceptance of any kind, length and temperature is {least:.2f}.\n"
    )


def sparsity() -> str:
    """Attention recovered by each way to select, over all layers."""
    found = record("cpu-sparsity")
    names = ("best", "exact", "minmax", "mean")
    budgets = found["plan"]["budgets"]
    lines = []
    for budget in budgets:
        each = [
            [r for r in found["layers"] if (r["policy"], r["budget"]) == (name, budget)] for name in names
        ]
        shares = [f"{fmean(r['recovered'] for r in rows_):.1%}" for rows_ in each]
        late = next(
            r for r in found["decay"] if (r["policy"], r["budget"], r["after"]) == ("exact", budget, 256)
        )
        lines.append([f"{budget:,}", *shares, f"{late['recovered']:.1%}"])
    header = ("budget", *(f"`{name}`" for name in names), "`exact`, 256 tokens later")
    return table(header, lines) + "\n" + source("cpu-sparsity")


def sources() -> str:
    """How often the right page is named first."""
    header = (
        "kind",
        "asked",
        "answered rightly",
        "right page first",
        "right page among three",
        "right sentence",
    )
    lines = [
        tuple(str(each[key]) for key in ("kind", "asked", "right", "first", "named", "sentences"))
        for each in record("cpu-sources")["rows"]
    ]
    chance = row("cpu-sources", kind="all")["chance"]
    note = f"Three of nine pages are named, so chance is {chance:.0%}.\n"
    return table(header, lines) + "\n" + note + "\n" + source("cpu-sources")


def aims() -> str:
    """What we aimed for, and what was reached."""
    return table(("", "aim", "reached"), [*_speed_aims(), *_acceptance_aims(), *_fact_aims()])


def _speed_aims() -> Iterator[tuple[str, str, str]]:
    cases = (
        ("h200-temperatures", "Llama-2-7B's shape, no penalty, eight novels"),
        ("h200-penalty", "Llama-2-7B's shape, repetition penalty 1.1, four novels"),
        ("h200-llama-3.1-8b", "Llama-3.1-8B's shape, no penalty, four novels"),
    )
    for temperature, aim in ((0.0, 3.5), (0.6, 3.0)):
        for name, words in cases:
            each = row(name, contender="triforce", temperature=temperature)
            reached = factor(each["speedup"]) + span(each["speedup_interval"])
            repeats = f", fresh {number(each['fresh'])}"
            yield f"speed-up, T={temperature:g}, {words}", factor(aim, 1), reached + repeats


def _acceptance_aims() -> Iterator[tuple[str, str, str]]:
    name = "h200-acceptance"
    for temperature, aim in ((0.0, 0.95), (0.6, 0.90)):
        reached = (number(_pooled(name, temperature, "mean", each, "alpha"), 3) for each in CONTEXTS)
        lengths = " / ".join(f"{each:,}" for each in CONTEXTS)
        words = f"acceptance of the retrieval cache, T={temperature:g}, at {lengths} tokens"
        yield words, number(aim), " / ".join(reached)
    for temperature, aim in ((0.0, 0.80), (0.6, 0.62), (1.0, 0.50)):
        reached_draft = number(_pooled(name, temperature, "mean", None, "beta"))
        yield f"acceptance of the draft, T={temperature:g}", number(aim), reached_draft


def _fact_aims() -> Iterator[tuple[str, str, str]]:
    for context, aim in zip(CONTEXTS, (95, 95, 90), strict=True):
        yield f"planted facts found at {context:,} tokens", f"{aim} of 100", _right("h200-facts", context)


def summaries() -> str:
    """Every chapter with its summaries, whole; those that a penalty changed only as a count."""
    found = [each for each in rows("cpu-summaries") if each["repetition_penalty"] == _penalty(each["model"])]
    parts = []
    for each in found:
        if each["model"] == "large":
            parts.append(
                f"**{each['book']}**, {each['chapter'].title()} ({each['prompt_tokens']:,} tokens)\n"
            )
        parts.append(f"> `{each['model']}`: {each['text']}\n")
    return "\n".join(parts) + "\n" + source("cpu-summaries")


def _penalty(model: str) -> float:
    """The repetition penalty of a preset."""
    preset = find_preset(model)
    assert preset is not None
    return preset.sampling.get("repetition_penalty", 1.0)


def loops() -> str:
    """How many of the summaries repeat themselves until they are cut off."""
    header = (
        "model",
        "repetition penalty",
        "summaries",
        "cut off at 512 tokens",
        "four-word sequences repeated",
    )
    groups = sorted({(each["model"], each["repetition_penalty"]) for each in rows("cpu-summaries")})
    lines = []
    for model, penalty in groups:
        found = rows("cpu-summaries", model=model, repetition_penalty=penalty)
        cut = sum(each["finish_reason"] == "length" for each in found)
        repeated = fmean(each["repeated_grams"] for each in found)
        lines.append((f"`{model}`", f"{penalty:g}", str(len(found)), str(cut), f"{repeated:.0%}"))
    return table(header, lines)


TABLES = {
    "comprehension": comprehension,
    "summaries": summaries,
    "loops": loops,
    "facts": facts,
    "facts-of-models": facts_of_models,
    "depths": depths,
    "denied": denied,
    "base-facts": base_facts,
    "questions": questions,
    "perplexity": perplexity,
    "facts-by-kv": facts_by_kv,
    "eviction": partial(eviction, "cpu-eviction"),
    "h200-eviction": partial(eviction, "h200-eviction", "h200-eviction-h2o"),
    "eviction-example": eviction_example,
    "policies": policies,
    "acceptance": acceptance,
    "acceptance-penalty": acceptance_penalty,
    "acceptance-spread": spread,
    "sparsity": sparsity,
    "sources": sources,
    "aims": aims,
}
