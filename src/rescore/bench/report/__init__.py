"""The report: from folders of rows to report.md, report.html and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rescore.bench.matrix import demand_own
from rescore.bench.published import data
from rescore.bench.report import plots, tables
from rescore.bench.report.document import Block, Document, Gallery, Section, markdown
from rescore.bench.report.page import page
from rescore.bench.report.results import PHYSICS, Results, load
from rescore.bench.report.statistics import (
    LEVEL,
    MEASURES,
    SEEDS_TO_RANK,
    best,
    estimate,
    improvement,
    iqm,
    last_tenth,
)
from rescore.bench.rows import Row
from rescore.core import UsageError
from rescore.show.text import steps

MARK = "report.md"


def write_report(
    folders: Sequence[Path], out: Path, title: str, figures: bool = True
) -> list[Path]:
    """Make the report of one matrix and of the studies given with it; the files written.

    Without figures only the Markdown is written; it refers to them all the same.
    """
    if not folders:
        raise UsageError("name a folder: the --out of `rescore bench run`")
    found = sorted((load(folder) for folder in folders), key=lambda results: results.is_study)
    names = [results.plan.suite.name for results in found]
    if sum(not results.is_study for results in found) > 1 or len(set(names)) < len(names):
        raise UsageError("give one folder of a suite (and studies with it), not several")
    demand_own(out, MARK, lambda path: path.name == "figures")  # of an interrupted report
    drawings = out / "figures" if figures else None
    sections = []
    for results in found:
        sections += (sensitivity if results.is_study else body)(results, drawings)
    for results in found:
        sections += evidence(results, out)
    document = Document(title, facts(found), sections)
    out.mkdir(parents=True, exist_ok=True)
    made = {MARK: markdown(document)} | ({"report.html": page(document)} if figures else {})
    for name, text in made.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in made]


def facts(found: Sequence[Results]) -> list[tuple[str, str]]:
    """What the numbers are made of."""
    rows = [row for results in found for row in results.rows]
    asked = sum(len(r.tasks) * r.plan.seeds_of(label) for r in found for label in r.labels)
    versions = {name: {str(row.versions.get(name)) for row in rows} for name in PHYSICS}
    presets = {
        str(row.data.get("preset")) + (f" with {dict(own)}" if own else "")
        for results in found
        for own in [results.plan.settings]
        for row in results.rows
    }
    commits = sorted({commit[:7] for row in rows for commit in row.data.get("commits", ())})
    return [
        ("suite", ", ".join(r.plan.suite.name for r in found)),
        ("runs", f"{len(rows)} of {asked} finished"),
        ("seeds asked for", seeds_asked_for(found)),
        ("environment steps", ", ".join(sorted({steps(row.steps) for row in rows}))),
        ("preset", ", ".join(sorted(presets))),
        *((name, ", ".join(sorted(values))) for name, values in versions.items()),
        ("processor", ", ".join(sorted({row.cpu["model"] for row in rows if "cpu" in row.data}))),
        ("commit", ", ".join(commits) or "unknown"),
    ]


def seeds_asked_for(found: Sequence[Results]) -> str:
    each = {r.plan.suite.name: shared({k: str(n) for k, n in r.plan.seeds.items()}) for r in found}
    same = len(set(each.values())) == 1
    return next(iter(each.values())) if same else "; ".join(f"{k}: {v}" for k, v in each.items())


def shared(values: Mapping[str, str]) -> str:
    """A value that all have, or each with those that have it: 3 (dpmd, sac), 1 (ppo)."""
    having: dict[str, list[str]] = {}
    for name, value in values.items():
        having.setdefault(value, []).append(name)
    if len(having) == 1:
        return next(iter(having))
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in having.items())


def budgets(results: Results) -> str:
    """A sentence on how long runs are, unless they are as long as the paper's."""
    own = {
        label: {task: results.plan.budget(label.split()[0], task) for task in results.tasks}
        for label in results.labels
    }
    pairs = [pair for each in own.values() for pair in each.items()]
    if all(n in (None, tables.paper_budget(task)) for task, n in pairs):
        return ""
    said = {
        label: " or ".join(steps(n) for n in sorted({n for n in each.values() if n}))
        for label, each in own.items()
    }
    return f" Steps of a run here: {shared(said)}; only equal budgets compare."


def body(results: Results, drawings: Path | None) -> list[Section]:
    """The sections of a matrix."""
    source, suite = data("published"), results.plan.suite
    best_text = (
        f"Suite {suite.name}: {suite.about}.{budgets(results)} "
        "The paper's measure: for each seed the highest mean of an evaluation during training, "
        "then mean and standard deviation over seeds. Taking the maximum biases it upwards. Below "
        f"ours, the paper's number ({source['source']}; {source['returns']['about']}). Bold is the "
        f"highest mean of a task, where all have {SEEDS_TO_RANK} seeds; it is no test."
    )
    cost_text = (
        "Wall-clock of whole runs scaled to a million steps, evaluations included, median "
        "over runs; milliseconds are of an update alone, peak memory of the process. The "
        f"paper's are of another machine ({source['cost']['about']}). Runs that share "
        "the machine are slower; short runs spend more of their time on evaluation."
    )
    late_text = "Mean of all evaluations in the last 10 % of the steps, for each seed."
    final = tables.returns(results, MEASURES["final"])
    glance = plots.heat_map(drawings, results)
    success = tables.successes(results)
    told = [Section("Success", [SUCCESS_TEXT, success])] if len(success.head) > 1 else []
    return [
        *([Section("At a glance", [GLANCE_TEXT, glance])] if glance else []),
        Section("Best evaluation over training", [best_text, tables.returns(results, best, True)]),
        Section("Final evaluation", ["The last evaluation of each seed.", final]),
        *told,
        Section("Last tenth of training", [late_text, tables.returns(results, last_tenth)]),
        Section("Seeds that a claim needs", [SEEDS_TEXT, tables.seeds_needed(results)]),
        Section("Learning curves", [curve_text(results), *curves(results, drawings)]),
        *aggregate(results, drawings),
        Section("Time and memory", [cost_text, tables.cost(results)]),
    ]


GLANCE_TEXT = (
    "Best evaluation over training, mean over seeds, where 0 is the return of random actions and 1 "
    "the best mean of the paper's Table 1; below each algorithm, the paper's own number for it at "
    "the paper's own budget."
)
NOT_ALL = "Not ranked: these tasks are not all of them. Those with seeds enough are ranked below."
SUCCESS_TEXT = (
    "Share of the episodes of the last evaluation that the task itself calls a success; mean and "
    "range over seeds."
)
SEEDS_TEXT = (
    "How many seeds each of two needs, for a two-sided Welch t test at the 5 % level to tell its "
    "mean from the highest of the task with 80 % power, if means and deviations (last 10 %) are "
    "those measured here. One seed has no deviation, and that of few is itself uncertain. Nothing "
    f"is bold or ranked below {SEEDS_TO_RANK} seeds."
)


def curve_text(results: Results) -> str:
    episodes = sorted({row.data["episodes"] for row in results.rows if "episodes" in row.data})
    each = f" of {' or '.join(map(str, episodes))} episodes" if episodes else ""
    rhythm = sorted({rhythm_of(row) for row in results.rows})
    return (
        f"Mean return of evaluations{each} against environment steps; shaded: standard deviation "
        f"over seeds. {'; '.join(rhythm)}. Dotted: the paper's mean "
        "for the algorithm of that colour, at the paper's own budget."
    )


def rhythm_of(row: Row) -> str:
    """How the run of a row was driven."""
    training = row.data.get("config", {}).get("training", {})
    envs, utd = training.get("num_envs", "unknown"), training.get("utd", "unknown")
    preset = row.data.get("preset", "unknown")
    return (
        f"Preset {preset}, {steps(row.steps)} steps, {envs} environment(s), {utd} updates per step"
    )


def curves(results: Results, drawings: Path | None) -> list:
    """Learning curves of every task that has rows, below the legend that they share."""
    size = plots.WIDE if results.is_study else plots.SMALL
    drawn = [c for task in results.tasks if (c := plots.curves(drawings, results, task, size))]
    names = plots.legend(drawings, results)
    return [names, *(drawn if results.is_study else [Gallery(drawn)])]


def aggregate(results: Results, drawings: Path | None) -> list[Section]:
    """Over all tasks: of all algorithms, then of those that have enough seeds to be ranked."""
    labels, several = results.present(), results.with_seeds(SEEDS_TO_RANK)
    if several == labels or len(several) < 2:
        return over_tasks(results, drawings, labels)
    few = over_tasks(results, drawings, labels, ranked=False)
    return few + over_tasks(results, drawings, several, f", algorithms with {SEEDS_TO_RANK} seeds")


def over_tasks(
    results: Results,
    drawings: Path | None,
    labels: Sequence[str],
    which: str = "",
    ranked: bool = True,
) -> list[Section]:
    """IQM, probability of improvement and profile over the tasks that these algorithms share."""
    title, tasks = f"Over all tasks{which}", results.common(labels)
    seeds = results.shared_seeds(labels, tasks)
    if not seeds:
        text = "Missing: no task has both a reference and rows of every algorithm for one seed."
        return [Section(title, [text])]
    scores = {
        name: {label: results.scores(label, tasks, seeds, measure) for label in labels}
        for name, measure in MEASURES.items()
    }
    found = {
        name: {label: estimate(iqm, own) for label, own in per.items()}
        for name, per in scores.items()
    }
    text = (
        f"{tables.count(len(seeds))} and {len(tasks)} of {len(results.tasks)} tasks that every "
        f"algorithm here has: {', '.join(tasks)}. Interquartile mean (the mean of the middle half "
        "of all runs; of less than four, of all) of scores where 0 is the return of random actions "
        "and 1 the best mean of the paper's Table 1, of its v4 tasks. Below, the "
        f"{LEVEL:.0%} interval of the stratified bootstrap: it knows only the seeds that were run, "
        "and with one seed per task there is none."
    )
    blocks: list[Block] = [text, tables.aggregates(results, found)]
    if len(labels) < 2:
        return [Section(title, blocks)]
    if len(seeds) < SEEDS_TO_RANK:
        refusal = f"Not ranked: {tables.count(len(seeds))}, and a rank needs {SEEDS_TO_RANK}."
        return [Section(title, [*blocks, refusal])]
    if not ranked:
        return [Section(title, [*blocks, NOT_ALL])]
    late = "last 10 %"
    axis = f"IQM of normalised scores, {late}"
    blocks.append(plots.intervals(drawings, results, "iqm", axis, found[late]))
    return [Section(title, blocks), *comparisons(results, drawings, scores[late])]


def comparisons(results: Results, drawings: Path | None, late: dict) -> list[Section]:
    """Which algorithm ends above which, and the share of runs above each score."""
    first, *others = late
    chances = {
        (ours, theirs): estimate(improvement, late[ours], late[theirs])
        for ours in late
        for theirs in late
        if ours != theirs
    }
    chance_text = (
        "Chance that a run of the row's algorithm ends above one of the column's on the same task, "
        "averaged over tasks; scores of the last 10 %, ties count half."
    )
    ahead = {label: chances[first, label] for label in others}
    title = f"chance that {first} is better"
    drawn = plots.intervals(drawings, results, "improvement", title, ahead, middle=0.5)
    table = tables.improvements(results, chances, list(late))
    text = "Share of all runs whose normalised score (last 10 %) is above each threshold."
    return [
        Section("Probability of improvement", [chance_text, table, drawn]),
        Section("Performance profile", [text, plots.profiles(drawings, results, late)]),
    ]


def sensitivity(study: Results, drawings: Path | None) -> list[Section]:
    """Curves and numbers of a study's variants."""
    blocks = [
        study.plan.suite.about + ".",
        *curves(study, drawings),
        "Best evaluation over training:",
        tables.returns(study, best),
        "Mean of the last 10 %:",
        tables.returns(study, last_tenth),
        SEEDS_TEXT,
        tables.seeds_needed(study),
    ]
    return [Section(f"Sensitivity: {study.plan.suite.name}", blocks)]


def evidence(results: Results, out: Path) -> list[Section]:
    """What was run and what is missing, and every row with its file and line."""
    text = "Seeds that finished, of those asked for."
    sections = [Section(tables.run_section(results), [text, tables.coverage(results)])]
    for task in results.tasks:
        rows = tables.raw(results, task, out)
        blocks = [rows] if rows.rows else ["Missing: no row yet."]
        sections.append(Section(tables.rows_section(results, task), blocks, level=3))
    return sections
