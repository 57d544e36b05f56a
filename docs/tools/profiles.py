"""Tables of where time goes, from the records of ``bench --profile`` and of the kernel benchmark."""

from __future__ import annotations

from functools import partial

from records import Json, number, record, source, table

LEVELS = (
    ("target", "target, full cache"),
    ("retrieval", "middle level"),
    ("draft", "draft"),
    ("planner", "planner"),
    ("elsewhere", "elsewhere"),
)


def rounds(name: str) -> str:
    """A mean round on chip."""
    return _profiles(name) + "\n" + source(name)


def offload_round() -> str:
    """A mean round with keys and values in host memory."""
    (found,) = record("h200-offload-profile")["profiles"]
    overlap = found["overlap"]
    note = (
        f"Of {found['ms_per_round']:,.0f} ms ({found['traced_ms_per_round']:,.0f} while traced), copies from host "
        f"memory take {overlap['copies_ms']:,.0f} ms and compute {overlap['compute_ms']:.0f} ms, of which "
        f"{overlap['both_ms']:.0f} ms run while copies run: the bus is the limit.\n"
    )
    return _profiles("h200-offload-profile") + "\n" + note + "\n" + source("h200-offload-profile")


def _profiles(name: str) -> str:
    found = record(name)["profiles"]
    header = ("ms per round", *(f"{_case(each)}, T={each['temperature']:g}" for each in found))
    lines = [(words, *(_level(each, level) for each in found)) for level, words in LEVELS]
    lines = [line for line in lines if any(line[1:])]
    lines.append(("idle", *(number(each["idle_ms"], 1) for each in found)))
    lines.append(("**round, traced**", *(number(each["traced_ms_per_round"], 1) for each in found)))
    lines.append(("**round, not traced**", *(number(each["ms_per_round"], 1) for each in found)))
    lines.append(("least time for its bytes", *(number(each["floor_total_ms"], 1) for each in found)))
    lines.append(("tokens per round", *(number(each["tokens_per_round"], 1) for each in found)))
    return table(header, lines)


def _case(profile: Json) -> str:
    return "plain" if profile["case"] == "autoregressive" else f"`{profile['case']}`"


def _level(profile: Json, level: str) -> str:
    spent = sum(profile["ms"].get(level, {}).values())
    forwards = profile["forwards"].get(level)
    if not spent:
        return ""
    return number(spent, 1) + (f" in {forwards:g} forwards" if forwards else "")


def bandwidth() -> str:
    """The rates that the least times assume, and the prefill's."""
    found = record("h200-profile")["profiles"][0]
    prefill = found["prefill"]
    return (
        f"The least time of the bytes assumes {found['bandwidth'] / 1e12:.1f} TB/s, the rate of a copy on the "
        f"device, and {found['host_bandwidth'] / 1e9:.0f} GB/s from host memory. The prefill runs at "
        f"{prefill['tokens_per_s']:,.0f} tokens/s, "
        f"{prefill['flops'] / prefill['matmul_flops']:.0%} of the rate of a large matrix product.\n"
    )


def kernels() -> str:
    """Each kernel beside torch and beside its bytes."""
    found = record("h200-kernels")["rows"]
    plain = {(each["kernel"].split(":")[0], each["shape"]): each for each in found if ":" in each["kernel"]}
    header = ("kernel", "shape", "ms", "torch, ms", "least time for its bytes, ms")
    lines = []
    for each in found:
        if ":" not in each["kernel"] and each["ms"] is not None:
            other = plain.get((each["kernel"], each["shape"]))
            times = each["ms"], None if other is None else other["ms"], each["floor_ms"]
            lines.append((f"`{each['kernel']}`", each["shape"], *(number(time, 3) for time in times)))
    return table(header, lines) + "\n" + source("h200-kernels")


TABLES = {
    "rounds": partial(rounds, "h200-profile"),
    "rounds-since": partial(rounds, "h200-profile-draft"),
    "offload-round": offload_round,
    "bandwidth": bandwidth,
    "kernels": kernels,
}
