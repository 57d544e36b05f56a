"""Tables of speed, from the records of ``triforce-chat bench``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import exp, log

from records import (
    Json,
    accepted,
    factor,
    gigabytes,
    median_range,
    number,
    record,
    row,
    rows,
    source,
    span,
    table,
)

# TriForce (arXiv 2404.11912), Llama2-7B-128K with 122K tokens of context on an A100, by temperature.
PUBLISHED = {0.0: 2.31, 0.2: 2.25, 0.4: 2.20, 0.6: 2.19, 0.8: 2.08, 1.0: 2.08, 1.2: 2.02}
NAMES = {"autoregressive": "plain decoding", "transformers": "stock transformers"}
LONG = 124_928
# Records of stacks on the same text, by models that the preset names.
SAME_TEXT = (
    *("large", "medium", "large-draft", "large-7b-contexts", "large-8b", "large-13b", "large-offload"),
    *(
        "small-same",
        "small-same-later",
        "small-same-sampled",
        "small-offload-same",
        "7b-same-sampled",
        "8b-same-sampled",
        "7b-same",
    ),
    *("penalty-same", "8b-same", "four-bits-8b-131000"),
)
PEER = "llama.cpp"
PEERS = (
    *("cpu-peer-small", "cpu-peer-0.5b", "cpu-peer-0.5b-8192", "cpu-peer-0.5b-32600"),
    *("cpu-peer-1.5b", "cpu-peer-1.5b-8192", "cpu-peer-1.5b-32600"),
)
KVS = ("float16", "int8", "int4")
H200_KVS = ("auto", "int8", "fp8", "int4")
LEAST_TEXTS = 4  # for a confidence interval


def cpu_stacks() -> str:
    """Stacks on a CPU with the draft model."""
    header = (
        "context",
        "stack",
        "ms/token (range)",
        "speed-up",
        "tokens/round",
        "accepted",
        "fresh",
        "predicted",
    )
    lines = [
        (
            f"{each['context']:,}",
            f"`{each['contender']}`",
            median_range(each),
            factor(each["speedup"]),
            number(each["tokens_per_round"]),
            accepted(each),
            number(each["fresh"]),
            number(each["predicted_ms_per_token"], 1),
        )
        for each in rows("cpu-2-cores-draft")
    ]
    return table(header, lines) + "\n" + source("cpu-2-cores-draft")


def peer(*names: str) -> str:
    """Our decoding and default stack beside llama.cpp's and its fastest mode, by model and context."""
    header = (
        *("model", "context", "plain ms", "llama.cpp plain ms", "ratio"),
        *("`auto` ms", "llama.cpp fastest ms", "ratio"),
        *("prefill tokens/s", "llama.cpp", "peak GB", "llama.cpp", "fresh"),
    )
    lines = [
        _peer_line(record(name)["settings"]["model"].removesuffix(".gguf"), context, found)
        for name in names
        for context, found in _by_context(name).items()
    ]
    return table(header, lines) + "\n" + source(*names)


def _by_context(name: str) -> dict[int, dict[str, Json]]:
    """Rows of a record by their context and contender."""
    found: dict[int, dict[str, Json]] = {}
    for each in rows(name):
        found.setdefault(each["context"], {})[each["contender"]] = each
    return found


def _peer_line(model: str, context: int, found: dict[str, Json]) -> tuple[str, ...]:
    theirs = [each for name, each in found.items() if name.startswith(PEER)]
    plain, auto, other = found["autoregressive"], found["auto"], found[PEER]
    fastest = min(theirs, key=lambda each: each["ms_per_token"])
    mode = fastest["contender"].removeprefix(PEER).strip() or "plain"
    return (
        *(model, f"{context:,}", median_range(plain), median_range(other)),
        number(plain["ms_per_token"] / other["ms_per_token"]),
        *(median_range(auto), f"{median_range(fastest)}, {mode}"),
        number(auto["ms_per_token"] / fastest["ms_per_token"]),
        *(number(each["prefill_tokens_per_s"], 0) for each in (plain, other)),
        *(number(max(each["peak_bytes"] for each in some) / 1e9) for some in ((plain, auto), theirs)),
        number(auto["fresh"]),
    )


def logits(*names: str) -> str:
    """Logits beside those of expanded fp32 weights."""
    header = (
        "weights",
        "keys and values",
        "positions",
        "largest difference",
        "median",
        "largest logit",
        "same best",
    )
    lines = [
        (
            each["weights"],
            each["kv"],
            f"{each['positions']:,}",
            f"{each['largest']:.2g}",
            f"{each['median']:.2g}",
            number(each["scale"], 1),
            f"{100 * each['same_best']:.2f} %",
        )
        for each in map(record, names)
    ]
    return table(header, lines) + "\n" + source(*names)


def formats(contents: Sequence[str], times: Sequence[str]) -> str:
    """What formats of keys and values take and change: records of a perplexity each, and of a bench each."""
    header = ("`--kv`", "bytes of a token", "share", "perplexity", "change", "context", "ms/token (range)")
    first, *_ = read = [*map(record, contents)]
    size, nats = first["kv_bytes_per_token"], _perplexity(first)
    lines = [
        (
            f"`{each['kv']}`",
            f"{each['kv_bytes_per_token']:,.0f}",
            f"{100 * each['kv_bytes_per_token'] / size:.1f} %",
            number(_perplexity(each), 3),
            f"{100 * (_perplexity(each) / nats - 1):+.2f} %",
            f"{run['context']:,}",
            median_range(run),
        )
        for each, name in zip(read, times, strict=True)
        for run in rows(name, contender="autoregressive")
    ]
    return table(header, lines) + "\n" + source(*contents, *times)


def _perplexity(found: Json) -> float:
    """Over all tokens of a record."""
    return exp(
        sum(each["tokens"] * log(each["perplexity"]) for each in found["rows"]) / (found["tokens"] - 1)
    )


def cold_ask(name: str) -> str:
    """A question about a document, answered by a new process, beside llama.cpp's server."""
    header = ("", "prompt tokens", "answer tokens", "seconds (range)")
    lines = [
        (
            who,
            f"{each['prompt_tokens']:,}",
            str(each["tokens"]),
            f"{each['seconds']:.1f} ({each['range_s'][0]:.1f}–{each['range_s'][1]:.1f})",
        )
        for who, each in record(name)["rows"].items()
    ]
    return table(header, lines) + "\n" + source(name)


def warm_ask(name: str) -> str:
    """From Enter to the first token of an answer about a book that was read before, and where the time goes."""
    found = record(name)
    spans = {part: seconds for part, seconds in found["spans_s"].items() if part != "complete"}
    parts = (part.replace("_", " ") for part in spans)
    header = ("prompt tokens", "kept", "first token, s (range)", *parts)
    low, high = found["range_s"]
    first = f"{found['first_token_s']:.1f} ({low:.1f}–{high:.1f})"
    line = (f"{found['prompt_tokens']:,}", f"{found['cached_tokens']:,}", first, *map(number, spans.values()))
    return table(header, [line]) + "\n" + source(name)


def same_text(*names: str, greedy: bool = False) -> str:
    """Every stack on the text that plain decoding drew: which is fastest, and how near `auto` comes to it.

    ``greedy``: only the rows at T=0.
    """
    found = [each for name in names for each in rows(name) if not (greedy and each["temperature"])]
    stacks = list(dict.fromkeys(each["contender"] for each in found if each["contender"] != "autoregressive"))
    header = (
        "context",
        "T",
        "texts",
        "fresh",
        "plain ms/token",
        *(f"`{stack}`" for stack in stacks),
        "`auto` / best",
        "`auto` accepted",
    )
    lines = []
    for context, heat in dict.fromkeys((each["context"], each["temperature"]) for each in found):
        of = {
            each["contender"]: each
            for each in found
            if (each["context"], each["temperature"]) == (context, heat)
        }
        # Times of all texts together: in a mean of factors one easy text would decide.
        best = max(each["speedup_together"] for name, each in of.items() if name != "auto")
        lines.append(
            (
                f"{context:,}",
                number(heat, 1),
                str(of["auto"]["prompts"]),
                number(of["auto"]["fresh"]),
                number(of["autoregressive"]["ms_per_token"], 1),
                *(factor(of[stack]["speedup_together"]) for stack in stacks),
                number(of["auto"]["speedup_together"] / best),
                accepted(of["auto"]),
            )
        )
    return "\n".join([table(header, lines), *map(source, names)])


def temperatures(name: str) -> str:
    """A large shape beside the paper, by temperature."""
    header = (
        "T",
        "stack",
        "plain ms/token",
        "ms/token",
        "speed-up, mean (95 %)",
        "pooled",
        "each novel",
        "tokens/round",
        "accepted",
        "fresh",
        "paper, A100",
    )
    lines = [
        (
            f"{each['temperature']:g}",
            f"`{each['contender']}`",
            number(each["plain_ms_per_token"], 1),
            number(each["ms_per_token"], 1),
            f"**{factor(each['speedup'])}**{span(each['speedup_interval'])}",
            factor(each["speedup_together"]),
            ", ".join(f"{one:.1f}" for one in each["speedups"]),
            number(each["tokens_per_round"], 1),
            accepted(each),
            number(each["fresh"]),
            factor(PUBLISHED[each["temperature"]]),
        )
        for each in rows(name)
        if each["contender"] != "autoregressive"
    ]
    return table(header, lines) + "\n" + source(name)


def engine_change() -> str:
    """The same stacks by the engine of version 0.2.0 and by the one engine that replaced it."""
    header = ("shape", "stack", "T", "ms/token before (range)", "after (range)", "tokens/round", "fresh")
    shapes = {
        "7b": "Llama-2-7B",
        "seed": "Llama-2-7B, seed 1",
        "8b": "Llama-3.1-8B",
        "small": "`small`, 8,192 tokens",
        "cpu": "`small`, {context:,} tokens, two CPU cores",
    }
    lines = []
    for name in shapes:
        pairs = zip(rows(f"engine-before-{name}"), rows(f"engine-after-{name}"), strict=True)
        for before, after in pairs:
            assert before["contender"] == after["contender"]
            both = (before, after)
            shape = shapes[name].format(context=after["context"])
            stack, temperature = f"`{after['contender']}`", number(after["temperature"], 1)
            times = [f"{each['ms_per_token']:.2f}{span(each['spread_ms'])}" for each in both]
            rounds = " / ".join(number(each["tokens_per_round"]) for each in both)
            fresh = " / ".join(number(each["fresh"]) for each in both)
            lines.append((shape, stack, temperature, *times, rounds, fresh))
    return table(header, lines) + "\n" + source("engine-after-7b", "engine-after-small", "engine-after-cpu")


def cpu_prefill() -> str:
    """How fast two cores read."""
    plain = rows("cpu-2-cores-draft", contender="autoregressive")
    lines = [
        (
            f"{each['context']:,}",
            number(each["prefill_tokens_per_s"], 0),
            gigabytes(each["prefill_peak_bytes"]),
        )
        for each in plain
    ]
    return table(("context", "prefill tokens/s", "peak GB"), lines)


def cpu_stock() -> str:
    """The first release beside stock transformers."""
    header = (
        "context",
        "",
        "ms/token (range)",
        "speed-up",
        "tokens/round",
        "accepted",
        "prefill tokens/s",
        "peak GB",
    )
    lines = [
        (
            f"{each['context']:,}",
            NAMES.get(each["contender"], f"`{each['contender']}`"),
            median_range(each),
            factor(each["speedup"]),
            number(each["tokens_per_round"]),
            accepted(each),
            number(each["prefill_tokens_per_s"], 0),
            gigabytes(each["peak_bytes"]),
        )
        for each in rows("cpu-2-cores")
    ]
    return table(header, lines) + "\n" + source("cpu-2-cores")


def _several(*names: str) -> str:
    """``triforce`` over several prompts, one line per temperature."""
    header = (
        "record",
        "T",
        "plain ms/token",
        "`triforce` ms/token",
        "speed-up, mean (95 %)",
        "pooled",
        "each novel",
        "fresh",
        "tokens/round",
        "accepted",
        "peak GB",
    )
    lines = [
        (
            f"`{name}`",
            f"{each['temperature']:g}",
            number(each["plain_ms_per_token"], 1),
            number(each["ms_per_token"], 1),
            factor(each["speedup"]) + _interval(each),
            factor(each["speedup_together"]),
            ", ".join(f"{one:.1f}" for one in each["speedups"]),
            number(each["fresh"]),
            number(each["tokens_per_round"], 1),
            accepted(each),
            gigabytes(each["peak_bytes"]),
        )
        for name in names
        for each in rows(name, contender="triforce")
    ]
    return table(header, lines) + "\n" + source(*names)


def _interval(each: Json) -> str:
    """The confidence interval, where there are enough texts for it to say something."""
    return span(each["speedup_interval"] if each["prompts"] >= LEAST_TEXTS else None)


def penalty() -> str:
    return _several("h200-penalty")


def llama_8b() -> str:
    return _several("h200-llama-3.1-8b")


def offload() -> str:
    return _several("h200-offload")


def card() -> str:
    return _several("h200-card")


def contexts() -> str:
    """``auto`` and ``triforce`` by length of the context."""
    header = (
        "context",
        "plain ms/token",
        "`auto`",
        "speed-up (each)",
        "fresh",
        "`triforce`",
        "speed-up (each)",
        "fresh",
        "prefill tokens/s",
    )
    lines = []
    for auto in rows("h200-contexts", contender="auto"):
        other = row("h200-contexts", contender="triforce", context=auto["context"])
        cells = [f"{auto['context']:,}", number(auto["plain_ms_per_token"])]
        for each in (auto, other):
            apart = ", ".join(f"{one:.2f}" for one in each["speedups"])
            cells += [
                number(each["ms_per_token"]),
                f"{factor(each['speedup'])} ({apart})",
                number(each["fresh"]),
            ]
        lines.append([*cells, number(auto["prefill_tokens_per_s"], 0)])
    return table(header, lines) + "\n" + source("h200-contexts")


def stacks() -> str:
    """All stacks at one length."""
    found = sorted(rows("h200-stacks"), key=lambda each: -each["speedup"])
    header = ("stack", "ms/token", "speed-up", "each novel", "fresh", "accepted")
    lines = [
        (
            f"`{each['contender']}`",
            number(each["ms_per_token"], 1),
            factor(each["speedup"]),
            ", ".join(f"{one:.2f}" for one in each["speedups"]),
            number(each["fresh"]),
            accepted(each),
        )
        for each in found
    ]
    return table(header, lines) + "\n" + source("h200-stacks")


def small() -> str:
    """The small model itself on a GPU."""
    names = ("autoregressive", "auto", "triforce", "lookup", "naive")
    header = ("context", *(NAMES.get(name, f"`{name}`") for name in names))
    found = rows("h200-small")
    lines = []
    for context in sorted({each["context"] for each in found}):
        cells = [f"{context:,}"]
        for name in names:
            each = row("h200-small", context=context, contender=name)
            times = median_range(each, 2)
            gain = "" if name == "autoregressive" else f", {factor(each['speedup'])}"
            cells.append(f"{times}{gain}, fresh {number(each['fresh'])}")
        lines.append(cells)
    return table(header, lines) + "\n" + source("h200-small")


def ablations(name: str) -> str:
    """One setting varied at a time."""
    header = ("setting", "value", "ms/token", "speed-up", "fresh", "accepted")
    lines = [
        (
            f"`--{setting}`",
            f"{int(value):,}" if value.isdigit() else value,
            number(each["ms_per_token"]),
            factor(each["speedup"], 1),
            number(each["fresh"]),
            accepted(each),
        )
        for each in rows(name, contender="triforce")
        for setting, value in each["varied"].items()
    ]
    return table(header, lines) + "\n" + source(name)


def offload_int4(name: str) -> str:
    """Keys and values in host memory, with and without a level over a 4-bit copy of them."""
    return rounds("stack", [(each["contender"], each) for each in rows(name)]) + source(name)


def four_bits(wide: str, narrow: str) -> str:
    """The same model in 16 and in 4 bits."""
    cases = [(f"16 bits, {each['contender']}", each) for each in rows(wide)]
    cases += [(f"4 bits, {each['contender']}", each) for each in rows(narrow)]
    return rounds("weights, stack", cases) + source(wide, narrow)


def by_setting(setting: str, name: str) -> str:
    """Stacks with each value of one setting, beside plain decoding."""
    cases = [(" ".join([each["contender"], *each["varied"].values()]), each) for each in rows(name)]
    return rounds(f"stack, `--{setting}`", cases) + source(name)


def trees_short(name: str) -> str:
    """Short prompts: chains beside trees of two kinds, on several texts."""
    header = (
        *("tokens", "T", "draft", "ms/token", "tokens/verification"),
        *("speed-up, mean (95 %)", "each text", "fresh"),
    )
    lines = [
        (
            f"{each['context']:,}",
            f"{each['temperature']:g}",
            drafted_by(each),
            number(each["ms_per_token"]),
            number(each["tokens_per_verification"].get("target", 1.0)),
            factor(each["speedup"]) + span(each["speedup_interval"]),
            ", ".join(f"{ratio:.1f}" for ratio in each["speedups"]),
            number(each["fresh"]),
        )
        for each in rows(name)
    ]
    return table(header, lines) + "\n" + source(name)


def drafted_by(each: Json) -> str:
    """What a row's draft model drafts; SpecInfer's trees as sequences by tokens where their depth is known."""
    varied = each["varied"]
    if not varied:
        return f"`{each['contender']}`"
    kind, size, depth = varied.get("tree", ""), varied.get("tree-size"), varied.get("tree-depth")
    said = [f"`{kind}`" if kind else "", f"{size} tokens" if size else "", f"depth {depth}" if depth else ""]
    return " ".join(filter(None, said))


def trees_sizes(name: str) -> str:
    """Trees by their kind, size and depth, the fastest of each kind marked."""
    header = ("T", "draft", "tokens/verification", "ms/token", "speed-up")
    lines: list[tuple[str, ...]] = []
    for temperature, kind in dict.fromkeys((each["temperature"], kind_of(each)) for each in rows(name)):
        alike = [each for each in rows(name, temperature=temperature) if kind_of(each) == kind]
        fastest = min(each["ms_per_token"] for each in alike)
        lines += [
            (
                f"{temperature:g}",
                drafted_by(each),
                number(each["tokens_per_verification"].get("target", 1.0)),
                marked(number(each["ms_per_token"]), len(alike) > 1 and each["ms_per_token"] == fastest),
                factor(each["speedup"]),
            )
            for each in alike
        ]
    return table(header, lines) + "\n" + source(name)


def marked(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def kind_of(each: Json) -> tuple[str, str]:
    return each["contender"], each["varied"].get("tree", "")


def rounds(what: str, cases: Sequence[tuple[str, Json]]) -> str:
    """What rounds take and bring in several cases, which the first column names."""
    header = (what, "T", "ms/token", "speed-up", "tokens/round", "ms/round", "fresh", "accepted", "peak GB")
    lines = [
        (
            f"`{name}`",
            f"{each['temperature']:g}",
            number(each["ms_per_token"]),
            factor(each["speedup"]),
            number(each["tokens_per_round"], 1),
            number(each["ms_per_token"] * each["tokens_per_round"], 1),
            number(each["fresh"]),
            accepted(each),
            number(each["peak_bytes"] / 1e9, 1),
        )
        for name, each in cases
    ]
    return table(header, lines) + "\n"


def parallel() -> str:
    """Several GPUs."""
    cases = (
        ("on chip, H100", "h100-parallel"),
        ("on chip", "h200-parallel"),
        ("on chip", "h200-parallel-four"),
        ("KV in host memory", "h200-parallel-offload"),
        ("KV in host memory", "h200-parallel-offload-four"),
        ("KV in host memory, Llama-2-13B's shape", "h200-parallel-offload-13b"),
    )
    header = (
        "",
        "context",
        "GPUs",
        "T",
        "plain ms/token",
        "`triforce` ms/token",
        "speed-up",
        "fresh",
        "accepted",
        "prefill tokens/s",
        "peak GB of rank 0",
    )
    lines = [
        (
            words,
            f"{each['context']:,}",
            str(record(name)["machine"]["accelerators"]),
            f"{each['temperature']:g}",
            number(each["plain_ms_per_token"], 1),
            number(each["ms_per_token"], 1),
            factor(each["speedup"]),
            number(each["fresh"]),
            accepted(each),
            number(each["prefill_tokens_per_s"], 0),
            gigabytes(each["peak_bytes"]),
        )
        for words, name in cases
        for each in rows(name, contender="triforce")
    ]
    return table(header, lines) + "\n" + source(*(name for _, name in cases))


def together(*names: str) -> str:
    """Questions about one text that are answered at once."""
    header = (
        "context",
        "stack",
        "T",
        "answers",
        "one, s",
        "all, s (range)",
        "all/one",
        "ms/token",
        "tokens/round",
        "fresh",
    )
    lines = [
        (
            f"{each['context']:,}",
            f"`{each['contender']}`",
            f"{each['temperature']:g}",
            str(each["sequences"]),
            number(each["one_s"]),
            f"{each['together_s']:.2f} ({each['spread_s'][0]:.2f}–{each['spread_s'][1]:.2f})",
            number(each["times_one"]),
            number(each["ms_per_token"], 1),
            number(each["tokens_per_round"]),
            number(each["fresh"]),
        )
        for name in names
        for each in record(name)["shared"]
    ]
    return table(header, lines) + "\n" + source(*names)


def batches(*names: str) -> str:
    """Different texts at once, beside plain decoding of the same."""
    header = (
        *("texts", "context", "T", "stack", "ms/token", "tokens/round", "over plain"),
        *("all running", "fresh"),
    )
    lines = [
        (
            str(each["sequences"]),
            f"{each['context']:,}",
            f"{each['temperature']:g}",
            f"`{each['contender']}`",
            number(each["ms_per_token"]),
            number(each["tokens_per_round"]),
            factor(each["speedup"]),
            factor(each.get("full_speedup")),
            number(each["fresh"]),
        )
        for name in names
        for each in record(name)["batches"]
    ]
    return table(header, lines) + "\n" + source(*names)


def soak(*names: str) -> str:
    """Clients of a server, beside one of them."""
    header = (
        *("clients", "seconds", "answers", "left", "errors", "tokens/s"),
        *("first token p50, s", "p95, s", "over one client", "other answers", "memory, GB"),
    )
    lines = []
    for name in names:
        read = record(name)
        for clients, part, gain in ((read["clients"], "together", read["times_alone"]), (1, "alone", None)):
            seen = read[part]
            held = read["device_bytes" if read["device_bytes"][1] else "resident_bytes"]
            lines.append(
                (
                    str(clients),
                    number(seen["seconds"], 0),
                    *(str(seen[each]) for each in ("answers", "left", "errors")),
                    number(seen["tokens_per_s"], 1),
                    *(number(seen["first_token_s"][each]) for each in ("p50", "p95")),
                    *(
                        ("", "", "")
                        if gain is None
                        else (
                            factor(gain),
                            f"{len(read['differing'])} of {read['compared']}",
                            " → ".join(f"{size / 1e9:.2f}" for size in held),
                        )
                    ),
                )
            )
    return table(header, lines) + "\n" + source(*names)


def workers(name: str) -> str:
    """Batches by one worker and by several, and by one that reads a book again for every question."""
    read = record(name)
    of = {each["name"]: each for each in read["rows"]}
    cases = (
        ("every question reads its book", of["unshared"], None),
        ("a book is read once", of["one"], read["shared_over_unshared"]),
        ("a book is read once", of["several"], read["several_over_one"]),
    )
    header = ("", "workers", "answers", "prompt tokens", "answer tokens", "answers/s", "over the line above")
    lines = [
        (
            words,
            str(each["workers"]),
            str(each["counted"]),
            number(each["prompt_tokens"], 0),
            number(each["completion_tokens"], 1),
            number(each["answers_per_s"]),
            factor(gain),
        )
        for words, each, gain in cases
    ]
    return table(header, lines) + "\n" + source(name)


def start_up() -> str:
    """Loading and the longest warm-up of each record."""
    names = (
        "h200-small",
        "h200-temperatures",
        "h200-llama-3.1-8b",
        "h200-offload",
        "h200-parallel",
        "h200-parallel-four",
        "h200-parallel-offload-four",
    )
    header = ("record", "loading, s", "plain warm-up, s", "`triforce` warm-up, s")
    lines = []
    for name in names:
        cells = [f"`{name}`", number(record(name)["load_s"], 1)]
        for contender in ("autoregressive", "triforce"):
            waits = [each["warmup_s"] for each in rows(name, contender=contender)]
            cells.append(f"{min(waits):.1f}–{max(waits):.1f}")
        lines.append(cells)
    return table(header, lines)


def exactness() -> str:
    """Greedy tokens scored again by the full cache."""
    names = (
        "h200-identity",
        "h200-temperatures",
        "h200-penalty",
        "h200-contexts",
        "h200-llama-3.1-8b",
        "h200-offload",
        "h200-card",
        "h200-parallel",
        "h200-parallel-four",
        "h200-parallel-offload",
        "h200-parallel-offload-four",
        "h200-parallel-offload-13b",
        "h200-small",
    )
    header = (
        "record",
        "stack",
        "tokens",
        "ties",
        "beyond rounding",
        "widest gap, logits",
        "same tokens as plain",
    )
    lines, totals = [], {True: [0, 0, 0], False: [0, 0, 0]}
    for name in names:
        for contender, found in _greedy(name).items():
            counts = [sum(each[key] for each in found) for key in ("tokens", "ties", "mismatches")]
            plain = contender == "autoregressive"
            totals[plain] = [a + b for a, b in zip(totals[plain], counts, strict=True)]
            widest = max(each["widest_tie"] or 0 for each in found)
            same = "" if plain else ("yes" if all(each["same_tokens"] for each in found) else "no")
            words = NAMES.get(contender, f"`{contender}`")
            lines.append((f"`{name}`", words, *(f"{count:,}" for count in counts), number(widest), same))
    for plain, words in ((True, "plain decoding"), (False, "speculative")):
        lines.append(("**all**", f"**{words}**", *(f"**{count:,}**" for count in totals[plain]), "", ""))
    return table(header, lines)


def _greedy(name: str) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for each in rows(name, temperature=0.0):
        if each["ties"] is not None:
            found.setdefault(each["contender"], []).append(each)
    return found


def cpu_exactness() -> str:
    """The same on a CPU in fp32."""
    header = ("context", "stack", "tokens", "ties", "beyond rounding", "same tokens as plain")
    lines = [
        (
            f"{each['context']:,}",
            f"`{each['contender']}`",
            str(each["tokens"]),
            str(each["ties"]),
            str(each["mismatches"]),
            "yes" if each["same_tokens"] else "no",
        )
        for each in rows("cpu-2-cores-draft")
    ]
    return table(header, lines) + "\n" + source("cpu-2-cores-draft")


def headline() -> str:
    """The README's figures."""
    shape = "Llama-2-7B's shape"
    cases = (
        (f"{shape}, 124,928 tokens, 1 GPU", "h200-temperatures", "triforce", LONG),
        (f"{shape}, 124,928 tokens, 1 GPU, repetition penalty 1.1", "h200-penalty", "triforce", LONG),
        ("Llama-3.1-8B's shape, 124,928 tokens, 1 GPU", "h200-llama-3.1-8b", "triforce", LONG),
        (f"{shape}, 130,048 tokens, KV in host memory", "h200-offload", "triforce", 130_048),
        ("`small` (135M), 32,768 tokens, 1 GPU", "h200-small", "auto", 32_768),
        ("`small` (135M), 32,768 tokens, 2 CPU cores", "cpu-2-cores-draft", "auto", 32_768),
    )
    lines = [
        _headline(words, name, each)
        for words, name, contender, context in cases
        for each in rows(name, contender=contender, context=context)
        if each["temperature"] in (0.0, 0.6)
    ]
    header = ("measured on", "T", "texts", "plain ms/token", "with speculation", "speed-up (95 %)", "`fresh`")
    return table(header, lines)


def _headline(words: str, name: str, each: Json) -> tuple[str, ...]:
    link = f"[{words}](benchmarks/{name}.json)"
    times = number(each["plain_ms_per_token"], 1), f"`{each['contender']}` {each['ms_per_token']:.1f}"
    gain = f"**{factor(each['speedup'])}**{_interval(each)}"
    return link, f"{each['temperature']:g}", str(each["prompts"]), *times, gain, number(each["fresh"])


TABLES = {
    "cpu-stacks": cpu_stacks,
    "cpu-same-text": partial(same_text, "cpu-same-text", "cpu-same-text-32768"),
    **{name: partial(same_text, f"h200-{name}") for name in SAME_TEXT},
    "7b-same-contexts-greedy": partial(same_text, "h200-7b-same-contexts", greedy=True),
    "8b-same-contexts-greedy": partial(same_text, "h200-8b-same-contexts", greedy=True),
    "engine-change": engine_change,
    "cpu-prefill": cpu_prefill,
    "cpu-together": partial(together, "cpu-together"),
    "cpu-soak": partial(soak, "cpu-soak"),
    "h200-soak": partial(soak, "h200-soak"),
    "h200-batches": partial(batches, "h200-batch-2x57344", "h200-batch-6x19456", "h200-batch-10x12288"),
    "h200-batches-8b": partial(batches, "h200-batch-8b-7x124928", "h200-batch-8b-20x32768"),
    "h200-together": partial(together, "h200-together-8", "h200-together-32"),
    "workers": partial(workers, "h100-batch"),
    "cpu-stock": cpu_stock,
    "cpu-peer": partial(peer, *PEERS),
    "warm-ask": partial(warm_ask, "cpu-warm-ask"),
    "cpu-logits": partial(logits, "cpu-logits-0.5b-kv16", "cpu-logits-0.5b-kv32"),
    "cpu-kv": partial(
        formats, [f"cpu-perplexity-{each}" for each in KVS], [f"cpu-kv-{each}" for each in KVS]
    ),
    "cpu-cold-ask": partial(cold_ask, "cpu-cold-ask-0.5b"),
    "temperatures": partial(temperatures, "h200-temperatures"),
    "large-7b": partial(temperatures, "h200-large-7b"),
    "penalty": penalty,
    "llama-8b": llama_8b,
    "offload": offload,
    "offload-int4": partial(offload_int4, "h200-offload-int4"),
    "offload-int4-same": partial(offload_int4, "h200-offload-int4-same"),
    "four-bits": partial(four_bits, "h200-bf16-8b-4096", "h200-four-bits-8b-4096"),
    "offload-int4-long": partial(offload_int4, "h200-offload-int4-long"),
    "offload-baselines": partial(offload_int4, "h200-offload-baselines"),
    "card-8b": partial(offload_int4, "h200-card-8b"),
    "million": partial(offload_int4, "h200-million"),
    "million-offload": partial(offload_int4, "h200-million-offload"),
    "offload-settings": partial(by_setting, "gamma`, `--budget`, `--policy", "h200-offload-settings"),
    "h200-kv": partial(
        formats, [f"h200-perplexity-{each}" for each in H200_KVS], [f"h200-kv-{each}" for each in H200_KVS]
    ),
    "weights": partial(by_setting, "tree", "h200-weights-13b"),
    "trees": partial(by_setting, "tree", "h200-trees-124928"),
    "trees-auto": partial(by_setting, "tree", "h200-trees-auto"),
    "trees-offload": partial(by_setting, "tree", "h200-trees-offload"),
    "trees-short": partial(trees_short, "h200-trees-short"),
    "trees-short-13b": partial(trees_short, "h200-trees-short-13b"),
    "weights-34b": partial(by_setting, "tree", "h200-weights-34b"),
    "weights-34b-large-trees": partial(by_setting, "tree`, `--tree-size", "h200-weights-34b-large-trees"),
    "four-bits-34b": partial(by_setting, "tree`, `--tree-size", "h200-four-bits-34b"),
    "four-bits-34b-16gb": partial(by_setting, "tree`, `--tree-size", "h200-four-bits-34b-16gb"),
    "batch-trees": partial(batches, "h200-batch-trees-7b"),
    "offload-drafts": partial(offload_int4, "h200-offload-drafts"),
    "trees-sizes": partial(trees_sizes, "h200-trees-sizes"),
    "trees-best": partial(trees_short, "h200-trees-best"),
    "trees-penalty": partial(by_setting, "tree", "h200-trees-penalty"),
    "trees-penalty-8b": partial(by_setting, "tree", "h200-trees-penalty-8b"),
    "four-bits-7b-131000": partial(offload_int4, "h200-four-bits-7b-131000"),
    "card": card,
    "contexts": contexts,
    "stacks": stacks,
    "small": small,
    "ablations": partial(ablations, "h200-ablations"),
    "ablations-same": partial(ablations, "h200-ablations-same"),
    "gpu-policies": partial(by_setting, "policy", "h200-7b-policies"),
    "parallel": parallel,
    "start-up": start_up,
    "exactness": exactness,
    "cpu-exactness": cpu_exactness,
    "headline": headline,
}
