"""Tables of the documents, from recorded rows: learning, cost, speed, the toy studies.

Of each algorithm and task the newest finished row of the default preset counts, one cut short only
where none finished; of a toy study the newest row of each method and seed. `--write` puts the
tables into their pages, each between its two markers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import work

from rescore.algorithms import REGISTRY, find
from rescore.bench import speed_tables
from rescore.bench.published import published, published_cost
from rescore.files.json import read_jsonl
from rescore.show import text

ROOT = Path(__file__).parents[1]
COST = ROOT / "results" / "off_policy" / "speed.jsonl"
TASKS = {"Pendulum-v1": -250.0, "InvertedDoublePendulum-v4": 8000.0, "HalfCheetah-v4": None}
AT = 100_000  # environment steps at which HalfCheetah is compared


def rows(algorithm: str, env: str) -> list[dict]:
    file = ROOT / "results" / algorithm / "runs.jsonl"
    found = read_jsonl(file) if file.exists() else []
    return [row for row in found if row["env"] == env and row["preset"] == "default"]


def table(head: list[str], lines: list[list[str]]) -> str:
    return text.table(["", *head], lines)


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
    lines = []
    for name in (name for name in REGISTRY if find(name).source == "replay"):
        cells = [cell(newest(name, env), solved) for env, solved in TASKS.items()]
        lines.append([f"[`{name}`](algorithms/{name}.md)", *cells])
    return table(head, lines)


def cost() -> str:
    """Milliseconds and megabytes of an update, and their ratios to SAC's: newest run of all."""
    figures = read_jsonl(COST)[-1]["figures"]
    head = [x for preset in figures for x in (f"`{preset}`: ms", "x SAC", "MB", "x SAC")]
    first = next(iter(figures.values()))
    lines = []
    for name in sorted(first, key=lambda name: first[name]["ms"]):
        own = [figures[p][name][k] for p in figures for k in ("ms", "ms_ratio", "mb", "mb_ratio")]
        paper = ["" if x is None else x for x in published_cost(name)]
        lines.append([f"`{name}`", *map(str, [*own, *paper])])
    return table([*head, "paper: minutes", "MB"], lines)


def by_processor(file: str) -> dict[str, dict]:
    """The newest measurement of a kind on each processor, by its name; newest first."""
    rows = read_jsonl(ROOT / "results" / "speed" / f"{file}.jsonl")
    return {row["cpu"]["model"]: row for row in sorted(rows, key=lambda row: row["written"])}


def by_jax(row: dict) -> dict[str, dict]:
    """Cases that JAX alone computed: rows of older commits have others, by compiled kernels."""
    cases = row["figures"]["cases"].items()
    off = {name: f for name, f in cases if f.get("kernels", "switched off").startswith("switched")}
    return {name.replace(" JAX alone", ""): figures for name, figures in off.items()}


def measured() -> dict[str, tuple[dict, dict[str, dict]]]:
    """Of each processor the newest row that has a default, and its cases by JAX; newest first."""
    found = {model: (row, by_jax(row)) for model, row in by_processor("speed").items()}
    return {m: pair for m, pair in reversed(found.items()) if "dpmd default" in pair[1]}


def speed() -> str:
    """The newest measurements by `rescore bench speed`, one for each processor."""
    made = []
    for model, (row, cases) in measured().items():
        table = speed_tables.tables({"cases": cases, "ratios": {}, "scaling": {}})
        where = f"{row['cpu']['count']} cores of {model}, {row['written'][:10]}"
        made.append(f"{where}, commit {row['commit'][:7]}:\n\n{table}")
    return "\n\n".join(made)


def ratios() -> str:
    """Ratios of the newest measurements, a column for each processor."""
    found = {model: speed_tables.compare(cases) for model, (_, cases) in measured().items()}
    names = dict.fromkeys(name for ratios in found.values() for name in ratios)
    shown = lambda x: "" if x is None else f"{x:.2f}"  # noqa: E731
    lines = [[name, *(shown(ratios.get(name)) for ratios in found.values())] for name in names]
    return text.table(["ratio", *found], lines)


def predict() -> str:
    """Milliseconds and return of trained policies: the newest row of each algorithm and task."""
    rows = read_jsonl(ROOT / "results" / "speed" / "predict.jsonl")
    newest_of = {(row["algorithm"], row["env"]): row["figures"] for row in rows}
    entry = lambda f: f"{f['ms']:.2f} ms: {f['mean']:,.0f} ± {f['std']:,.0f}"  # noqa: E731
    return table(
        list(rows[-1]["figures"]),
        [[f"`{a}`, `{env}`", *map(entry, f.values())] for (a, env), f in newest_of.items()],
    )


def seeds() -> str:
    """Five seeds in one program against five programs: the newest measurement."""
    row = read_jsonl(ROOT / "results" / "speed" / "seeds.jsonl")[-1]
    head = [f"{row['seeds']} programs, ms", "one program, ms", "speed of one program"]
    lines = []
    for name, f in row["figures"].items():
        times = [f"{f[key]:.1f}" for key in ("programs_ms", "one_program_ms")]
        lines.append([f"`{name}`", *times, f"{f['ratio']:.2f}x"])
    return table(head, lines)


def cells_under(*parts: str) -> list[dict]:
    """Rows of a matrix below a folder of results, by cell."""
    files = (ROOT / "results").joinpath(*parts).rglob("*.jsonl")
    return [row for file in sorted(files) for row in read_jsonl(file)]


def work_of(row: dict) -> str:
    """What an update of a run did, where defaults have changed."""
    used = row["config"]["hyperparameters"]
    parts = [f"best of {used['target_candidates']}"] * (used["target_candidates"] > 1)
    parts.append(f"T = {used['T']}")
    parts += [f"K = {used['reverse_draws']}"] if "reverse_draws" in used else []
    parts += ["one judge"] * (used.get("ranking_critics", used.get("judges")) == 1)
    parts += [f"{len(used['hidden'])} layers"] * (len(used["hidden"]) != 2)
    return ", ".join(parts)


def long_runs() -> list[dict]:
    """Cells of the paper's length, of the defaults at their time."""
    return cells_under("mujoco", "rows") + cells_under("mujoco", "lean", "rows")


def full_length() -> str:
    """Runs of the paper's length beside the paper's own numbers."""
    head = ["best evaluation", "the paper's", "minutes", "the paper's, on its GPU"]
    lines = []
    for row in long_runs():
        step, best, *_ = max(row["evaluations"], key=lambda entry: entry[1])
        name = row["algorithm"]
        mean, std = published(row["env"])[name]
        what = f"`{name}`, {work_of(row)}, seed {row['seed']}, {row['cpu']['model']}"
        minutes = [f"{row['wall_clock_s'] / 60:.1f}", str(published_cost(name)[0])]
        lines.append([what, f"{best:,.0f} at {step:,}", f"{mean:,} ± {std:,}", *minutes])
    return table(head, lines)


def ablation() -> str:
    """Returns of longer runs with one setting changed, and of the full-length ones."""
    at = (100_000, 150_000, 200_000, 250_000, 300_000)
    studies = cells_under("ablation", "dpmd-sdac", "rows") + cells_under("ablation", "sdac", "rows")
    lines = []
    for row in sorted(long_runs() + studies, key=lambda row: row["algorithm"]):
        means = {step: mean for step, mean, *_ in row["evaluations"]}
        minutes = row["wall_clock_s"] / 60 * at[-1] / row["env_steps"]
        what = f"`{row['algorithm']}` {row['variant'] or work_of(row)}"
        lines.append([what, *(f"{means[step]:,.0f}" for step in at), f"{minutes:.0f}"])
    return table([*(f"{step:,}" for step in at), "minutes"], lines)


def toy(target: str) -> str:
    """A line per method of a toy study: ranges of shares, worst errors, means of the rest."""
    found: dict[str, dict[int, dict]] = {}
    for row in read_jsonl(ROOT / "results" / "toys" / f"{target}.jsonl"):
        found.setdefault(row["method"], {})[row["config"]["seed"]] = row
    columns = {
        "seeds": lambda rows: str(len(rows)),
        "heaviest mode's share": lambda rows: span([heaviest(row) for row in rows]),
        "mean off by": lambda rows: number(worst(rows, "mean_error")),
        "covariance off by": lambda rows: f"{100 * worst(rows, 'cov_error'):.0f} %",
        "sliced W2": lambda rows: number(mean(rows, "sliced_w2")),
        "MMD^2": lambda rows: number(mean(rows, "mmd2")),
        "bridge": lambda rows: number(worst(rows, "bridge")),
        "log Z off by": lambda rows: number(worst(rows, "log_z_error")),
        "energies": lambda rows: number(mean(rows, "energy")),
        "gradients": lambda rows: number(mean(rows, "gradient")),
        "seconds": lambda rows: number(mean(rows, "seconds")),
    }
    if target != "two-moons":
        del columns["bridge"]
    return table(
        list(columns),
        [
            [f"`{method}`", *(column(list(by_seed.values())) for column in columns.values())]
            for method, by_seed in found.items()
        ],
    )


def heaviest(row: dict) -> float:
    exact = [round(share, 2) for share in row["mode_weights_exact"]]  # equal modes: the first
    return row["mode_weights"][exact.index(max(exact))]


def span(values: list[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"


def worst(rows: list[dict], name: str) -> float | None:
    values = [abs(row[name]) for row in rows if row[name] is not None]
    return max(values, default=None)


def mean(rows: list[dict], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def number(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.1e}" if abs(value) < 0.001 else short(value)


def short(value: float) -> str:
    return (
        f"{value / 1e6:.1f} M" if value >= 1e5 else f"{value:.2g}" if value < 1 else f"{value:.0f}"
    )


class Table(NamedTuple):
    page: str  # in docs/
    make: Callable[[], str]


TABLES = {
    "learning": Table("rivals.md", learning),
    "cost": Table("rivals.md", cost),
    "gmm": Table("boltzmann.md", partial(toy, "gmm")),
    "two-moons": Table("boltzmann.md", partial(toy, "two-moons")),
    "speed": Table("performance.md", speed),
    "ratios": Table("performance.md", ratios),
    "predict": Table("performance.md", predict),
    "seeds": Table("performance.md", seeds),
    "full-length": Table("performance.md", full_length),
    "ablation": Table("performance.md", ablation),
    "work-dpmd": Table("performance.md", partial(work.table, "dpmd")),
    "work-sdac": Table("performance.md", partial(work.table, "sdac")),
}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: benchmarks/tables.py --write -->", f"<!-- end of {name} -->"


def shown(name: str) -> str:
    """The table that its page holds."""
    begin, end = markers(name)
    page = (ROOT / "docs" / TABLES[name].page).read_text()
    return page.split(begin)[1].split(end)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into the pages")
    args = parser.parse_args()
    for name, (page, make) in TABLES.items():
        content = make()
        print(f"{name}:\n{content}", end="\n\n")
        if args.write:
            begin, end = markers(name)
            file = ROOT / "docs" / page
            before, after = file.read_text().split(begin)[0], file.read_text().split(end)[1]
            file.write_text(f"{before}{begin}\n{content}\n{end}{after}")


if __name__ == "__main__":
    main()
