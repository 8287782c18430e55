"""Tables of the documents, from recorded rows: learning, cost, speed, toy studies, the gauntlet.

The README's are of results/flagship/: of each algorithm, preset, task and tuple of seeds the newest
finished row with the settings of today's command, and of a baseline and task that of the default
preset, one cut short only where none finished; of a toy study the newest row of each method and
seed. `--write` puts the tables into their pages, each between its two markers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

from rescore.algorithms import REGISTRY, find, presets_of
from rescore.bench import speed as bench_speed
from rescore.bench.published import published_cost
from rescore.boltzmann.report import decide
from rescore.files.json import plain, read_json, read_jsonl
from rescore.show import text
from rescore.training.config import configure

ROOT = Path(__file__).parents[1]
TASKS = {"Pendulum-v1": -250.0, "InvertedDoublePendulum-v4": 8000.0, "HalfCheetah-v4": None}
AT = 100_000  # environment steps at which HalfCheetah is compared
FLAGSHIP = ROOT / "results" / "flagship"
PUBLISHED = read_json(ROOT / "benchmarks" / "published_returns.json")
STEPS = (100_000, 200_000)  # of the evaluations that the README shows
OURS = ("dpmd", "sdac")  # whose runs are those of the README


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


def baselines() -> str:
    """One row per learner from replay that is not of the paper."""
    head = [f"`{env}`" if solved else f"`{env}`, 100k steps" for env, solved in TASKS.items()]
    lines = []
    for name in (n for n in REGISTRY if find(n).source == "replay" and n not in OURS):
        cells = [cell(newest(name, env), solved) for env, solved in TASKS.items()]
        lines.append([f"[`{name}`](algorithms/{name}.md)", *cells])
    return table(head, lines)


def cost() -> str:
    """Updates of learners from replay under `paper`, their ratios to SAC's, the paper's figures."""
    row, cases = measured()
    found = {name: cases.get(f"{name} paper") for name in REGISTRY if find(name).source == "replay"}
    figures = {name: own for name, own in found.items() if own}
    lines = []
    for name in sorted(figures, key=lambda name: figures[name]["update_ms"]):
        ms, mb = figures[name]["update_ms"], figures[name]["peak_mb"]
        ratio = ms / figures["sac"]["update_ms"]
        paper = ["" if x is None else str(x) for x in published_cost(name)]
        lines.append([f"`{name}`", text.number(ms), f"{ratio:.1f}", f"{mb:.0f}", *paper])
    head = ["ms", "x SAC", "peak MB of the process", "the paper's minutes", "the paper's MB"]
    return f"Commit {row['commit'][:7]}:\n\n{table(head, lines)}"


def measured() -> tuple[dict, dict[str, dict]]:
    """The newest row of `rescore bench speed`, and its cases."""
    rows = read_jsonl(ROOT / "results" / "speed" / "speed.jsonl")
    row = max(rows, key=lambda row: row["written"])
    return row, {n: f for n, f in row["figures"]["cases"].items() if "iteration_ms" in f}


def speed() -> str:
    """The newest measurement by `rescore bench speed`; `paper` is in the table of `cost`."""
    row, cases = measured()
    cases = {name: own for name, own in cases.items() if name.endswith((" default", " released"))}
    where = f"{row['cpu']['count']} cores of {row['cpu']['model']}"
    made = bench_speed.tables(cases, {})
    return f"{where}, {row['written'][:10]}, commit {row['commit'][:7]}:\n\n{made}"


class Runs(NamedTuple):
    """The newest row of each tuple of seeds, all of one task, algorithm and preset."""

    env: str
    algorithm: str
    preset: str
    rows: tuple[dict, ...]

    @property
    def seeds(self) -> int:
        return sum(len(row["seeds"]) for row in self.rows)

    def at(self, step: int) -> str:
        """Mean return of the evaluations at a step and its seeds, as far as runs have got; from
        three seeds on with their standard deviation, if each has a row of its own."""
        rows = [(len(row["seeds"]), dict(row["evaluations"])) for row in self.rows]
        found = [(seeds, float(means[step])) for seeds, means in rows if step in means]
        seeds = sum(n for n, _ in found)
        if not seeds:
            return ""
        value = sum(n * mean for n, mean in found) / seeds
        digits = 0 if abs(value) >= 100 else 1
        spread = ""
        if len(found) == seeds >= 3:
            spread = f" ± {stdev(mean for _, mean in found):,.{digits}f}"
        return f"{value:,.{digits}f}{spread} ({seeds})"


# Settings that rows of an earlier day do not know, and what stood in their place.
BEFORE: dict[str, Any] = {"improve_reduce": None, "n_step": 1, "normalise_rewards": False}
BEFORE |= {"atoms": None, "unit_weights": False, "bonus": 1.0}


def agrees(recorded: Any, current: Any) -> bool:
    """Whether settings are the same; one that is newer than the record must be off."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        new = current.keys() - recorded.keys()
        both = recorded.keys() & current.keys()
        off = all(current[key] == BEFORE.get(key) or not current[key] for key in new)
        return off and all(agrees(recorded[key], current[key]) for key in both)
    return recorded == current


def preset_of_today(row: dict) -> dict | None:
    """What a row's preset means today, without what only watches; none: there is no such preset."""
    if row["preset"] not in presets_of(row["algorithm"]):
        return None
    algo, training = configure(row["algorithm"], row["preset"], {}, {})
    watching = ("eval_", "log_", "checkpoint_", "keep_", "save_")
    own = {name: x for name, x in asdict(training).items() if not name.startswith(watching)}
    return plain({"hyperparameters": asdict(algo), "training": own})


def reproducible(row: dict) -> bool:
    """Whether the command with the row's preset and no further flags trains with its settings."""
    today = preset_of_today(row)
    return today is not None and agrees(row["config"], today)


def changed(recorded: dict, current: dict, within: str = "") -> list[str] | None:
    """Settings of a record that are not those of today; none where it does not know them all."""
    found = []
    for name, now in current.items():
        if name not in recorded and name not in BEFORE:
            return None
        was = recorded[name] if name in recorded else BEFORE[name]
        if isinstance(now, dict) and isinstance(was, dict):
            inner = changed(was, now, f"{within}{name}.")
            if inner is None:
                return None
            found += inner
        elif was != now:
            found.append(f"`{within}{name}` {was}")
    return found


def levers(folder: Path = FLAGSHIP) -> str:
    """A line per run of a default of today or of one with settings changed: its evaluations."""
    files = [*sorted(folder.glob("*.jsonl")), *sorted(folder.glob("levers/*.jsonl"))]
    steps = [*range(20_000, AT + 1, 20_000), STEPS[-1]]
    lines = []
    for row in (row for file in files for row in read_jsonl(file)):
        today = preset_of_today(row)
        parts = today and [changed(row["config"][part], own) for part, own in today.items()]
        if not parts or None in parts:
            continue
        change = ", ".join(name for part in parts for name in part or ()) or "as it is"
        curve = dict(row["evaluations"])
        early = [value for step, value in curve.items() if step <= AT]
        cells = [f"{curve[step]:,.0f}" if step in curve else "" for step in steps]
        average = f"{sum(early) / len(early):,.0f}" if max(curve, default=0) >= AT else ""
        seeds = ", ".join(map(str, row["seeds"]))
        name = f"`{row['algorithm']}` {row['preset']}"
        line = [change, seeds, *cells, average, row["status"], f"`{row['commit'][:7]}`"]
        key = (row["env"], row["algorithm"], row["preset"], change != "as it is", change, seeds)
        lines.append((key, [f"`{row['env']}`, {name}", *line]))
    head = ["change", "seed", *map(text.steps, steps), "mean to 100k", "status", "commit"]
    return table(head, [line for _, line in sorted(lines)] or [["no runs recorded yet"]])


def flagship(folder: Path = FLAGSHIP) -> list[Runs]:
    """Runs behind the table of the README, by task and then in the order of the registry."""
    found: dict[tuple[str, str, str], dict[tuple, dict]] = {}
    every = [row for file in sorted(folder.glob("*.jsonl")) for row in read_jsonl(file)]
    every = [row for row in every if reproducible(row)]
    for row in sorted(every, key=lambda row: (row["status"] == "finished", row["written"])):
        runs = found.setdefault((row["env"], row["algorithm"], row["preset"]), {})
        runs[tuple(row["seeds"])] = row
    order = lambda key: (key[0], list(REGISTRY).index(key[1]), key[2])  # noqa: E731
    return [Runs(*key, tuple(found[key].values())) for key in sorted(found, key=order)]


def returns(folder: Path = FLAGSHIP) -> str:
    """Two lines per task, at 100k and at 200k: algorithms and presets, then published ones."""
    found = flagship(folder)
    columns = list(dict.fromkeys((runs.algorithm, runs.preset) for runs in found))
    columns.sort(key=lambda column: (list(REGISTRY).index(column[0]), column[1]))
    by_place = {(runs.env, runs.algorithm, runs.preset): runs for runs in found}
    lines = []
    for env in dict.fromkeys(runs.env for runs in found):
        for i, step in enumerate(STEPS):
            ours = [by_place.get((env, *column)) for column in columns]
            cells = [(runs.at(step) if runs else "") or "–" for runs in ours]
            for name in ("CrossQ", "best"):
                cells.append(f"{PUBLISHED[name][env][i]:,}" if env in PUBLISHED[name] else "–")
            if env in PUBLISHED["systems"]:
                cells[-1] += f" {PUBLISHED['systems'][env][i]}"
            lines.append([f"`{env}`" if i == 0 else "", text.steps(step), *cells])
    head = ["steps", *(f"`{a}` {preset}" for a, preset in columns)]
    head += ["CrossQ, published", "best published"]
    return table(head, lines or [["no runs recorded yet"]])


def sbx() -> str:
    """Ours and SBX's learners in the newest comparison: the least of its rounds."""
    row = read_jsonl(ROOT / "results" / "speed" / "sbx.jsonl")[-1]
    least = {n: min(cost["wall_ms"] for cost in own) for n, own in row["rounds"].items()}
    lines = [[name, f"{ms:.1f}"] for name, ms in least.items()]
    made = f"{row['env']}, SBX {row['sbx_versions']['sbx']}, commit `{row['commit'][:7]}`:"
    return f"{made}\n\n{table(['ms per step'], lines)}"


def work(folder: Path = FLAGSHIP) -> str:
    """What the runs of `returns` took: updates, time, machine and commit beside their return."""
    lines = []
    for runs in flagship(folder):
        last = runs.rows[-1]
        per_step = 1000 * sum(r["wall_clock_s"] / r["env_steps"] for r in runs.rows)
        commits = dict.fromkeys(row["commit"][:7] for row in runs.rows)
        lines.append(
            [
                f"`{runs.algorithm}` {runs.preset}, `{runs.env}`",
                *(runs.at(step) for step in STEPS),
                f"{last['updates'] / last['env_steps']:.2f}",
                f"{per_step / runs.seeds:.1f}",
                ", ".join(dict.fromkeys(row["cpu"]["model"] for row in runs.rows)),
                ", ".join(f"`{commit}`" for commit in commits),
            ]
        )
    head = [*(f"return at {text.steps(step)} (seeds)" for step in STEPS), "updates per step"]
    head += ["ms per step", "processor", "commit"]
    return table(head, lines or [["no runs recorded yet"]])


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


CALIBRATION = ROOT / "results" / "toys" / "calibration.jsonl"
LIMITS = {"share": 0.03, "marginal": 0.05, "outside": 0.01}  # within which samples are right
TRUTHS = ("samples right", "right once corrected", "wrong")


def calibration_rows() -> list[dict]:
    """The newest row of each energy and seed, with the verdict of today's limits."""
    names = ("effective", "tail", "outside", "off", "apart", "lost")
    rows = [row for row in read_jsonl(CALIBRATION) if all(n in row["report"] for n in names)]
    found = {(row["energy"], row["seed"]): row for row in rows}
    for row in found.values():
        row["verdict"] = decide(*(row["report"][name] for name in names))[0]
        right = [all(row[x][k] <= v for k, v in LIMITS.items()) for x in ("plain", "corrected")]
        row["truth"] = TRUTHS[right.index(True) if True in right else 2]
    return list(found.values())


def silent(row: dict) -> bool:
    """Whether the samples that `sample` gives are wrong, and the verdict does not tell."""
    plain = row["verdict"] == "trusted"
    wrong = row["truth"] != TRUTHS[0] if plain else row["truth"] == TRUTHS[2]
    return wrong and row["verdict"] != "do not use"


def confusion() -> str:
    """Fits by verdict and truth, then silent failures and false alarms."""
    rows = calibration_rows()
    lines = [
        [
            verdict,
            *(
                str(sum(row["verdict"] == verdict and row["truth"] == truth for row in rows))
                for truth in TRUTHS
            ),
        ]
        for verdict in ("trusted", "use weights", "do not use")
    ]
    failed = sorted({row["energy"] for row in rows if silent(row)})
    fine = [row for row in rows if row["truth"] != TRUTHS[2]]
    alarms = sum(row["verdict"] == "do not use" for row in fine)
    return (
        f"{table(list(TRUTHS), lines)}\n\n{len(rows)} fits of {len({r['energy'] for r in rows})} "
        f"energies: {sum(map(silent, rows))} silent failures ({', '.join(failed) or 'none'}), "
        f"{alarms} false alarms among {len(fine)} fits that are right or can be corrected."
    )


def calibration() -> str:
    """A line per energy: verdicts, worst errors over seeds of pilot, samples and corrected ones."""
    by_energy: dict[str, list[dict]] = {}
    for row in calibration_rows():
        by_energy.setdefault(row["energy"], []).append(row)

    def errors(rows: list[dict], which: str) -> str:
        return " / ".join(f"{max(row[which][name] for row in rows):.3f}" for name in LIMITS)

    return table(
        ["dim", "verdicts", "effective", "pilot", "samples", "corrected", "log Z off by"],
        [
            [
                f"`{energy}`",
                str(rows[0]["dim"]),
                ", ".join(row["verdict"] for row in rows),
                f"{min(row['report']['effective'] for row in rows):.2f}",
                *(errors(rows, which) for which in ("pilot", "plain", "corrected")),
                number(worst(rows, "log_z_off")),
            ]
            for energy, rows in by_energy.items()
        ],
    )


def dimensions() -> str:
    """A line per energy and method of `benchmarks/dimensions.py`: means over the newest rows."""
    file = ROOT / "results" / "toys" / "dimensions.jsonl"
    found: dict[tuple[str, str], dict[int, dict]] = {}
    for row in read_jsonl(file) if file.exists() else []:
        row["effective"] = (row.get("report") or {}).get("effective")
        row["energies"], row["gradients"] = row["cost"]["energy"], row["cost"]["gradient"]
        found.setdefault((row["energy"], row["method"]), {})[row["seed"]] = row
    columns = {
        "W2": "w2",
        "shuffled": "w2_shuffled",
        "of energies": "energy_w2",
        "of distances": "distance_w2",
        "TV of distances": "distance_tv",
        "effective": "effective",
        "energies": "energies",
        "gradients": "gradients",
        "seconds": "seconds",
    }
    lines = []
    for (energy, method), by_seed in sorted(found.items(), key=lambda item: item[0][0]):
        rows = list(by_seed.values())
        verdict = " / ".join(
            dict.fromkeys(row["report"]["verdict"] for row in rows if row.get("report"))
        )
        cells = [
            "" if rows[0].get(name) is None else digits(mean(rows, name))
            for name in columns.values()
        ]
        lines.append([f"`{energy}` `{method}`", str(len(rows)), *cells, verdict])
    return table(["seeds", *columns, "verdict"], lines or [["no runs recorded yet"]])


def digits(value: float) -> str:
    """Three digits, or millions."""
    if 1e5 <= value < 1e10:
        return f"{value / 1e6:.1f} M"
    return "0" if value == 0 else f"{value:.3g}"


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


def gauntlet() -> str:
    """The newest row of `python -m benchmarks.gauntlet --record`."""
    row = read_jsonl(ROOT / "results" / "gauntlet" / "gauntlet.jsonl")[-1]
    faults = {name: (n, len(row["failed"][name])) for name, n in row["tried"].items()}
    counts = [(row["promises"][name], *both) for name, both in faults.items()]
    counts.append(("all", *map(sum, zip(*faults.values()))))
    where = f"a share of one core of {row['cpu']}, {row['seconds'] / 60:.0f} minutes"
    made = text.table(["promise", "tried", "failed"], [[p, f"{t:,}", str(f)] for p, t, f in counts])
    return f"Commit {row['commit'][:7]}, seed {row['seed']}, {where}:\n\n{made}"


class Table(NamedTuple):
    page: str
    make: Callable[[], str]


TABLES = {
    "learning": Table("README.md", returns),
    "learning-home": Table("docs/index.md", returns),
    "baselines": Table("docs/baselines.md", baselines),
    "cost": Table("docs/baselines.md", cost),
    "gmm": Table("docs/boltzmann.md", partial(toy, "gmm")),
    "two-moons": Table("docs/boltzmann.md", partial(toy, "two-moons")),
    "ring": Table("docs/boltzmann.md", partial(toy, "ring")),
    "gmm40": Table("docs/boltzmann.md", partial(toy, "gmm40")),
    "dimensions": Table("docs/boltzmann.md", dimensions),
    "confusion": Table("docs/boltzmann.md", confusion),
    "calibration": Table("docs/boltzmann.md", calibration),
    "speed": Table("docs/performance.md", speed),
    "work": Table("docs/performance.md", work),
    "levers": Table("results/flagship/README.md", levers),
    "sbx": Table("docs/performance.md", sbx),
    "gauntlet": Table("docs/reliability.md", gauntlet),
}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: benchmarks/tables.py --write -->", f"<!-- end of {name} -->"


def shown(name: str) -> str:
    """The table that its page holds."""
    begin, end = markers(name)
    page = (ROOT / TABLES[name].page).read_text()
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
            file = ROOT / page
            before, after = file.read_text().split(begin)[0], file.read_text().split(end)[1]
            file.write_text(f"{before}{begin}\n{content}\n{end}{after}")


if __name__ == "__main__":
    main()
