"""The report: from folders of rows to report.md, report.html and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rescore.bench import plots, tables
from rescore.bench.document import Document, Gallery, Section, markdown
from rescore.bench.page import page
from rescore.bench.results import Results, data, load
from rescore.bench.statistics import LEVEL, MEASURES, best, estimate, improvement, iqm, last_tenth
from rescore.bench.suites import SUITES
from rescore.core import UsageError
from rescore.show.text import steps

MARK = "report.md"


def write_report(folders: Sequence[Path], out: Path, title: str) -> list[Path]:
    """Make the report of one matrix and of the studies given with it; the files written."""
    if not folders:
        raise UsageError("name a folder: the --out of `rescore bench run`")
    found = [load(folder) for folder in folders]
    matrices = [results for results in found if not results.is_study]
    if len(matrices) > 1 or len({results.plan.suite for results in found}) < len(found):
        raise UsageError("give one folder of a suite (and studies with it), not several")
    if holds_something_else(out):
        raise UsageError(f"{out} holds something else: choose another --out")
    figures = out / "figures"
    sections = [section for results in matrices for section in body(results, out, figures)]
    for study in (results for results in found if results.is_study):
        sections += sensitivity(study, figures)
    for results in found:
        sections += evidence(results, out)
    document = Document(title, facts(found), sections)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / MARK, out / "report.html"]
    for path, text in zip(written, (markdown(document), page(document))):
        path.write_text(text, encoding="utf-8")
    return written


def holds_something_else(out: Path) -> bool:
    """Whether files of others might be overwritten; figures alone are an interrupted report's."""
    if not out.is_dir():
        return out.exists()
    names = {path.name for path in out.iterdir()}
    return MARK not in names and bool(names - {"figures"})


def facts(found: Sequence[Results]) -> list[tuple[str, str]]:
    """What the numbers are made of."""
    rows = [row for results in found for row in results.rows]
    asked = sum(len(r.labels) * len(r.tasks) * r.plan.seeds for r in found)
    versions: dict[str, set[str]] = {}
    for results in found:
        for name, values in results.versions().items():
            versions.setdefault(name, set()).update(values)
    presets = {
        r.plan.preset + (f" with {dict(r.plan.settings)}" if r.plan.settings else "") for r in found
    }
    commits = sorted({commit[:7] for row in rows for commit in row.data.get("commits", ())})
    return [
        ("suite", ", ".join(r.plan.suite for r in found)),
        ("runs", f"{len(rows)} of {asked} finished"),
        ("seeds asked for", ", ".join(sorted({str(r.plan.seeds) for r in found}))),
        ("environment steps", ", ".join(sorted({steps(row.steps) for row in rows}))),
        ("preset", ", ".join(sorted(presets))),
        *((name, ", ".join(sorted(values))) for name, values in versions.items()),
        ("processor", ", ".join(sorted({row.cpu["model"] for row in rows if "cpu" in row.data}))),
        ("commit", ", ".join(commits) or "unknown"),
    ]


def body(results: Results, out: Path, figures: Path) -> list[Section]:
    """The sections of a matrix."""
    source, own = data("published"), results.plan.steps
    shorter = f" Here every task has {steps(own)} steps: only equal budgets compare." if own else ""
    best_text = (
        f"Suite {results.plan.suite}: {SUITES[results.plan.suite].about}.{shorter} "
        "The paper's measure: for each seed the highest mean of an evaluation during training, "
        "then mean and standard deviation over seeds. It is biased upwards, by choosing. Below "
        f"ours, the paper's number ({source['source']}; {source['returns']['about']}). Bold is the "
        "highest mean of a task, where all have several seeds; it is no test."
    )
    curves = [plots.curves(figures, results, task) for task in results.tasks]
    names = plots.legend(figures, results)
    return [
        Section("Best evaluation over training", [best_text, tables.returns(results, best, True)]),
        Section(
            "Final evaluation",
            [
                "The last evaluation of each seed.",
                tables.returns(results, MEASURES["final"], False),
            ],
        ),
        Section(
            "Last tenth of training",
            [
                "Mean of all evaluations in the last 10 % of the steps, for each seed.",
                tables.returns(results, last_tenth, False),
            ],
        ),
        Section(
            "Learning curves",
            [curve_text(results), *([names] if names else []), Gallery([c for c in curves if c])],
        ),
        *aggregate(results, figures),
        Section(
            "Time and memory",
            [
                "Wall-clock of whole runs scaled to a million steps, evaluations included, median "
                "over runs; milliseconds are of an update alone, peak memory of the process. The "
                f"paper's are of another machine ({source['cost']['about']}). Runs beside others "
                "are slower, and short ones are evaluated more often per step.",
                tables.cost(results),
            ],
        ),
    ]


def curve_text(results: Results) -> str:
    episodes = sorted({row.data.get("episodes") for row in results.rows} - {None})
    each = f" of {' or '.join(map(str, episodes))} episodes" if episodes else ""
    return (
        f"Mean return of evaluations{each} against environment steps; shaded: standard deviation "
        "over seeds."
    )


def aggregate(results: Results, figures: Path) -> list[Section]:
    """IQM, probability of improvement and profile over the tasks that all algorithms have."""
    tasks, labels = results.common(), results.present()
    seeds = results.shared_seeds(tasks)
    if not seeds:
        text = "Missing: no task has both a reference and rows of every algorithm for one seed."
        return [Section("Over all tasks", [text])]
    found = {
        label: {
            name: estimate(iqm, results.scores(label, tasks, seeds, measure))
            for name, measure in MEASURES.items()
        }
        for label in labels
    }
    late = {label: results.scores(label, tasks, seeds, last_tenth) for label in labels}
    text = (
        f"{tables.count(len(seeds))} and {len(tasks)} of {len(results.tasks)} tasks that every "
        f"algorithm has: {', '.join(tasks)}. Interquartile mean (the mean of the middle half of "
        "all runs; of less than four, of all) of scores where 0 is the return of random actions "
        "and 1 the best mean of the paper's Table 1, of its v4 tasks. Below, the "
        f"{LEVEL:.0%} interval of the stratified bootstrap: it knows only the seeds that were run, "
        "and with one seed per task there is none."
    )
    sections = [
        Section(
            "Over all tasks",
            [
                text,
                tables.aggregates(results, found),
                plots.intervals(
                    figures,
                    results,
                    "iqm",
                    "IQM of normalised scores, last 10 %",
                    {label: per["last 10 %"] for label, per in found.items()},
                ),
            ],
        )
    ]
    if len(labels) > 1:
        sections += comparisons(results, figures, late)
    return sections


def comparisons(results: Results, figures: Path, late: dict) -> list[Section]:
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
    return [
        Section(
            "Probability of improvement",
            [
                chance_text,
                tables.improvements(results, chances, list(late)),
                plots.intervals(figures, results, "improvement", title, ahead, middle=0.5),
            ],
        ),
        Section(
            "Performance profile",
            [
                "Share of all runs whose normalised score (last 10 %) is above each threshold.",
                plots.profiles(figures, results, late),
            ],
        ),
    ]


def sensitivity(study: Results, figures: Path) -> list[Section]:
    """Curves and numbers of a study's variants."""
    curves = [plots.curves(figures, study, task, plots.WIDE) for task in study.tasks]
    names = plots.legend(figures, study)
    return [
        Section(
            f"Sensitivity: {study.plan.suite}",
            [
                SUITES[study.plan.suite].about + ".",
                *([names] if names else []),
                *(curve for curve in curves if curve),
                "Best evaluation over training:",
                tables.returns(study, best, False),
                "Mean of the last 10 %:",
                tables.returns(study, last_tenth, False),
            ],
        )
    ]


def evidence(results: Results, out: Path) -> list[Section]:
    """What was run and what is missing, and every row with its file and line."""
    sections = [
        Section(
            tables.run_section(results),
            ["Seeds that finished, of those asked for.", tables.coverage(results)],
        )
    ]
    for task in results.tasks:
        rows = tables.raw(results, task, out)
        blocks = [rows] if rows.rows else ["Missing: no row yet."]
        sections.append(Section(tables.rows_section(results, task), blocks, level=3))
    return sections
