"""Figures of `rescore bench speed` as ratios and as Markdown."""

from __future__ import annotations

from typing import Any

from rescore.algorithms.presets import COMPARISON
from rescore.bench.published import published_cost
from rescore.show.text import table

COLUMNS = {
    "iteration_ms": "iteration, ms",
    "steps_per_s": "env steps/s",
    "update_ms": "update, ms",
    "act_ms": "act, ms",
    "predict_ms": "predict, ms",
    "env_step_ms": "env step, ms",
    "gflop": "GFLOP",
    "share_of_peak": "share of float32 peak",
    "peak_mb": "peak MB",
    "compile_s": "compile, s",
}
ENVS = COMPARISON["num_envs"]
ITERATIONS = 200_000  # of the paper's Table 2, whose minutes are of an RTX 4090


def best(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Of two measurements of a case the better figures: other work only ever adds."""
    if before is None:
        return now
    more = ("steps_per_s", "peak_gflops")
    made = {n: (max if n in more else min)(before[n], now[n]) for n in now}
    if "share_of_peak" in now:  # of the better update in the better peak
        work = now["share_of_peak"] * now["peak_gflops"] * now["update_ms"]
        made["share_of_peak"] = work / made["peak_gflops"] / made["update_ms"]
    return made


def compare(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """The ratios that were asked for, as far as their parts were measured."""
    ratios = {}
    for name in ("dpmd", "sdac"):
        paper = 60e3 * published_cost(name)[0] / ITERATIONS
        fast = found.get(f"{name} default", {}).get("iteration_ms")
        if fast is None:
            continue
        if (label := f"{name} released") in found:
            ratios[f"{label} / {name} default"] = found[label]["iteration_ms"] / fast
        ratios[f"{name} default / the paper's iteration on its GPU"] = fast / paper
    for label, figures in found.items():
        if "env_step_ms" in figures and "update_ms" not in figures:  # learners from rollouts
            alone = ENVS * figures["env_step_ms"]
            ratios[f"{label} / environments alone"] = alone / figures["iteration_ms"]
    if (sac := found.get("sac default")) is None:
        return ratios
    if "bare default" in found:
        ratios["sac default / bare update"] = sac["update_ms"] / found["bare default"]["update_ms"]
    for label, figures in found.items():
        if "iteration_ms" in figures and not label.startswith("sac"):
            ratios[f"{label} / sac default"] = figures["iteration_ms"] / sac["iteration_ms"]
    return ratios


def tables(figures: dict[str, Any]) -> str:
    """All of it for people."""
    parts = [grid(["", *COLUMNS.values()], [row(*item) for item in figures["cases"].items()])]
    ratios = [[name, f"{value:.2f}"] for name, value in figures["ratios"].items()]
    parts.append(grid(["ratio", ""], ratios))
    for algo, scales in figures["scaling"].items():
        for what, by_value in scales.items():
            first = next(iter(by_value.values()))["update_ms"]
            lines = [
                [str(value), number(f["update_ms"]), f"{f['update_ms'] / first:.2f}"]
                for value, f in by_value.items()
            ]
            parts.append(grid([f"{algo}: {what}", "update, ms", "ratio"], lines))
    return "\n\n".join(part for part in parts if part)


def row(label: str, figures: dict[str, float]) -> list[str]:
    return [label, *(number(figures.get(column)) for column in COLUMNS)]


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def grid(head: list[str], lines: list[list[str]]) -> str:
    return table(head, lines, aligned=True) if lines else ""
