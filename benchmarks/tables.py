"""The tables of docs/rivals.md, from recorded rows: what was learned, and what an update costs.

Of each algorithm and task the newest finished row of the default preset counts, one cut short only
where none finished. `--write` puts the tables into the page, each between its two markers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from off_policy import PAPER

from rescore.algorithms import REGISTRY, find

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "rivals.md"
COST = ROOT / "results" / "off_policy" / "speed.jsonl"
TASKS = {"Pendulum-v1": -250.0, "InvertedDoublePendulum-v4": 8000.0, "HalfCheetah-v4": None}
AT = 100_000  # environment steps at which HalfCheetah is compared


def rows(algorithm: str, env: str) -> list[dict]:
    file = ROOT / "results" / algorithm / "runs.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [row for row in map(json.loads, lines) if row["env"] == env]
    return [row for row in found if row["preset"] == "default"]


def newest(algorithm: str, env: str) -> dict | None:
    found = rows(algorithm, env)
    finished = [row for row in found if row["status"] == "finished"]
    return (finished or found or [None])[-1]


def cell(row: dict | None, solved: float | None) -> str:
    """When it was solved and its final mean; or the mean at 100k steps; and the time it took."""
    if row is None:
        return "missing"
    cut = "" if row["status"] == "finished" else f", cut short at {row['env_steps']:,}"
    if solved is None:
        step, mean = max((pair for pair in row["evaluations"] if pair[0] <= AT), default=(0, None))
        if mean is None:
            return f"no evaluation{cut}"
        when = "" if step == AT else f" at {step:,}"
        cut = cut if row["env_steps"] < AT else ""
        minutes = row["wall_clock_s"] / 60 * min(1.0, AT / row["env_steps"])
        return f"{mean:,.0f}{when}{cut} ({minutes:.0f} min)"
    at = next((step for step, mean in row["evaluations"] if mean >= solved), None)
    mean = (row["final"] or row["best"])["mean"]
    when = f"{at:,}" if at else "not solved"
    return f"{when}: {mean:,.0f}{cut} ({row['wall_clock_s'] / 60:.0f} min)"


def learning() -> str:
    """One row per replay learner."""
    head = [f"`{env}`" if solved else f"`{env}`, 100k steps" for env, solved in TASKS.items()]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(TASKS) + 1) + "|"]
    for name in REGISTRY:
        if find(name).source == "replay":
            cells = [cell(newest(name, env), solved) for env, solved in TASKS.items()]
            lines.append(f"| [`{name}`](algorithms/{name}.md) | {' | '.join(cells)} |")
    return "\n".join(lines)


def cost() -> str:
    """Milliseconds and megabytes of an update, and their ratios to SAC's: newest run of all."""
    figures = json.loads(COST.read_text().splitlines()[-1])["figures"]
    head = [f"`{preset}`: ms | x SAC | MB | x SAC" for preset in figures]
    lines = [f"| | {' | '.join(head)} | paper: minutes | MB |"]
    lines.append("|---" * (4 * len(figures) + 3) + "|")
    first = next(iter(figures.values()))
    for name in sorted(first, key=lambda name: first[name]["ms"]):
        cells = [figures[p][name][k] for p in figures for k in ("ms", "ms_ratio", "mb", "mb_ratio")]
        cells += PAPER.get(name, ("", ""))
        lines.append(f"| `{name}` | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


TABLES = {"learning": learning, "cost": cost}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: benchmarks/tables.py --write -->", f"<!-- end of {name} -->"


def shown(page: str, name: str) -> str:
    """The table that the page holds."""
    begin, end = markers(name)
    return page.split(begin)[1].split(end)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    page = PAGE.read_text()
    for name, make in TABLES.items():
        table = make()
        print(table, end="\n\n")
        begin, end = markers(name)
        page = f"{page.split(begin)[0]}{begin}\n{table}\n{end}{page.split(end)[1]}"
    if args.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
