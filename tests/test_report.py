"""The report on synthetic rows: its numbers by hand, what it refuses, and a real browser's view."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rescore import UsageError
from rescore.bench.matrix import CellFolder, open_matrix
from rescore.bench.plan import cells, plan
from rescore.bench.published import data, published, reference
from rescore.bench.report import plots, write_report
from rescore.bench.report.document import anchor
from rescore.bench.report.results import load
from rescore.bench.rows import evaluations
from rescore.bench.suites import SUITES
from rescore.files.json import write_jsonl
from tests.small import rescore_command

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
SUITE_FILES = Path(__file__).parents[1] / "benchmarks" / "suites"
STUDIES = ("steps", "schedules")
ALGORITHMS = ("dpmd", "sdac", "sac", "td3", "ppo")  # more than share a drawing with their legend
VERSIONS = {"gymnasium": "1.4.0", "mujoco": "3.4.0", "jax": "0.10.2"}


def synthetic(cell, seed: int, level: float) -> dict:
    """A row whose evaluations climb to `level`, with its best in the middle."""
    steps = np.linspace(cell.steps / 20, cell.steps, 20)
    means = level * (1 - np.exp(-4 * steps / cell.steps)) + 10 * seed
    means[9] = level + 10 * seed + 1
    return {
        "cell": cell.name,
        "algorithm": cell.algorithm,
        "variant": cell.variant,
        "preset": cell.preset,
        "env": cell.env,
        "seed": seed,
        "steps": cell.steps,
        "env_steps": cell.steps,
        "updates": cell.steps // 5,
        "group": list(cell.seeds),
        "episodes": 20,
        "evaluations": [[int(s), float(m), 1.0] for s, m in zip(steps, means)],
        "wall_clock_s": 3_600.0,
        "update_ms": 12.5,
        "peak_memory_mb": 900.0,
        "versions": VERSIONS,
        "commits": ["0123456789abcdef"],
        "dirty": False,
        "cpu": {"count": 2, "model": "a processor"},
    }


def fill(out: Path, missing: str = "", **choices) -> Path:
    """A folder of results; cells whose name contains `missing` are left out."""
    of_mujoco = {"suite": "mujoco", "algorithms": ("dpmd", "sac", "td3")}
    chosen = {**({} if "suite" in choices else of_mujoco), "seeds": 2, **choices}
    made = plan(**chosen)
    open_matrix(out, made)
    every = cells(made)
    once = len([cell for cell in every if cell.seeds == every[0].seeds])
    for index, cell in enumerate(every):
        if not missing or missing not in cell.name:
            level = 100.0 * (1 + index % once % 7) + 500.0
            write_jsonl(CellFolder(out, cell).rows, [synthetic(cell, s, level) for s in cell.seeds])
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A report of a matrix with a hole, and of two studies; without figures."""
    root = tmp_path_factory.mktemp("report")
    folders = [fill(root / "mujoco", missing="Humanoid-v4/td3")]
    folders += [fill(root / s, suite=str(SUITE_FILES / f"{s}.json")) for s in STUDIES]
    assert write_report(folders, root / "report", "A report", figures=False) == [
        root / "report" / "report.md"
    ]
    return root / "report"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """A small report with every kind of figure."""
    root = tmp_path_factory.mktemp("drawn")
    chosen = {"algorithms": ALGORITHMS, "tasks": ("Ant", "Hopper"), "seeds": 3}
    folders = [fill(root / "mujoco", **chosen)]
    folders += [fill(root / "steps", suite=str(SUITE_FILES / "steps.json"))]
    write_report(folders, root / "report", "A report")
    return root / "report"


def table(text: str, title: str) -> list[list[str]]:
    """The cells of the first table below a title."""
    part = text.split(f"# {title}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_published_numbers():
    """Against the paper's Table 1, by eye: two cells, and all hundred there."""
    tasks = data("published")["returns"]["tasks"]
    assert len(tasks) == 10 and all(len(row) == 10 for row in tasks.values())
    assert published("Ant-v4")["dpmd"] == [5683, 138]
    assert published("Reacher-v4")["sac"] == [-65.35, 56.42]
    assert set(tasks) == {task.rpartition("-")[0] for task in SUITES["mujoco"].tasks}


@pytest.mark.parametrize("suite", SUITES)
def test_every_task_has_references(suite):
    for task in SUITES[suite].tasks:
        low, high = reference(task)
        assert low < high, task


def test_numbers_by_hand(made):
    text = (made / "report.md").read_text()
    best = table(text, "Best evaluation over training")
    cell = dict(zip(best[0], best[2]))["HalfCheetah-v4"]  # dpmd is the first cell: level 600
    assert cell == "[606 ± 7.07](#rows-of-halfcheetah-v4)<br>2 seeds<br>paper 11,924 ± 609"
    final = dict(zip(best[0], table(text, "Final evaluation")[2]))["HalfCheetah-v4"]
    assert final.startswith(f"[{600 * (1 - np.exp(-4)) + 5:.0f} ± 7.07]")
    late = np.mean(1 - np.exp(-4 * np.array([0.95, 1.0]))) * 600 + 5
    last = dict(zip(best[0], table(text, "Last tenth of training")[2]))["HalfCheetah-v4"]
    assert last.startswith(f"[{late:.0f} ±")
    cost = table(text, "Time and memory")
    # Humanoid has five times the updates in the same hour.
    minutes = "[60](#what-was-run-of-mujoco)<br>12 to 60<br>20 runs"
    assert cost[2][:3] == ["dpmd", minutes, "21.1"]
    assert cost[2][3:] == ["12.5", "900", "1,192"]


def test_missing_is_shown_and_left_out_of_aggregates(made):
    text = (made / "report.md").read_text()
    best = table(text, "Best evaluation over training")
    td3 = dict(zip(best[0], best[4]))
    assert td3["Humanoid-v4"] == "missing<br>paper 5,816 ± 358"
    assert "58 of 60" not in text and "9 of 10 tasks" in text
    assert dict(zip(best[0], table(text, "What was run of mujoco")[4]))["Humanoid-v4"] == "missing"
    assert "70 of 72 finished" in text


def test_every_number_leads_to_its_rows(made):
    text = (made / "report.md").read_text()
    titles = {anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 150
    for target in links:
        if not target.startswith("figures/"):
            assert target[1:] in titles if target[0] == "#" else (made / target).exists(), target
    rows = table(text, "Rows of Ant-v4")
    assert "rows/Ant-v4/dpmd/s0.jsonl:1" in rows[2][-1] and "mujoco 3.4.0" in rows[2][-3]
    assert len(rows) == 2 + 6


def test_success_stands_beside_the_return(tmp_path):
    """Where the task tells it: a table of its own, and a column of the rows."""
    tasks = ("Reacher-v4", "InvertedPendulum-v4")
    out = fill(tmp_path / "out", suite="small", algorithms=("dpmd", "sac"), tasks=tasks)
    plain = write_report([out], tmp_path / "plain", "t", figures=False)[0].read_text()
    assert "success" not in plain.lower()
    for path, share in zip(sorted((out / "rows" / "Reacher-v4" / "dpmd").iterdir()), (0.5, 1.0)):
        steps = json.loads(path.read_text())["evaluations"]
        edit(path, evaluations=[[*each, 0.25] for each in steps[:-1]] + [[*steps[-1], share]])
    text = write_report([out], tmp_path / "told", "t", figures=False)[0].read_text()
    head, _, dpmd, sac = table(text, "Success")
    assert head == ["", "Reacher-v4"] and sac[1] == "missing"
    assert dpmd[1].startswith("[75% (50% to 100%)](#rows-of-reacher-v4)<br>2 seeds")
    rows = table(text, "Rows of Reacher-v4")
    at = rows[0].index("success")
    assert [row[at] for row in rows[2:]] == ["50%", "100%", "", ""]
    assert "success" not in table(text, "Rows of InvertedPendulum-v4")[0]
    edit(path, evaluations=[[1, 2.0, 0.0, "often"]])
    with pytest.raises(UsageError, match="is damaged"):
        load(out)


def test_rows_keep_the_success_of_a_run(tmp_path):
    head = "env_steps,seed,episode,env_seed,return,length,success\n"
    lines = ["10,0,0,5,-1.0,7,1.0", "10,0,1,6,-3.0,7,0.0", "10,1,0,5,9.0,7,", "20,0,0,5,-1.0,7,1.0"]
    (tmp_path / "eval.csv").write_text(head + "\n".join(lines) + "\n")
    assert evaluations(tmp_path, 0) == {
        "episodes": 2,
        "evaluations": [[10, -2.0, 1.0, 0.5], [20, -1.0, 0.0, 1.0]],
    }
    assert evaluations(tmp_path, 1)["evaluations"] == [[10, 9.0, 0.0]]


def test_studies_are_part_of_it(made):
    text = (made / "report.md").read_text()
    assert [row[0] for row in table(text, "Sensitivity: steps")[2:]] == [
        *("dpmd T=10", "dpmd T=20", "dpmd T=30")
    ]
    assert [row[0] for row in table(text, "Sensitivity: schedules")[2:]] == [
        *("dpmd linear", "dpmd cosine", "dpmd vp")
    ]
    assert not (made / "figures").exists()


def test_figures(drawn):
    found = {path.name for path in (drawn / "figures").iterdir()}
    names = ("mujoco-curve-Ant-v4", "mujoco-curve-Hopper-v4", "mujoco-legend", "mujoco-iqm")
    names += ("mujoco-improvement", "mujoco-profile", "steps-curve-Ant-v4")
    names += ("mujoco-scores", "steps-legend")
    assert found == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    text = (drawn / "report.md").read_text()
    assert set(re.findall(r"\(figures/([\w-]+)\.png\)", text)) == set(names)


def test_a_resting_pointer_is_told_the_values(drawn):
    """One title per evaluation and algorithm, with the number that the rows have."""
    svg = (drawn / "figures" / "mujoco-curve-Ant-v4.svg").read_text()
    titles = re.findall(r"<use [^>]*><title>(.*?)</title></use>", svg)
    told = dict.fromkeys(ALGORITHMS, 0)
    results = load(drawn.parent / "mujoco")
    for title in titles:
        label, value, at = re.fullmatch(r"(\w+): (-?[\d.,]+) at ([\d.]+k|1M) steps", title).groups()
        at = float(at[:-1]) * {"k": 1e3, "M": 1e6}[at[-1]]
        means = [dict(map(tuple, row.curve))[at] for row in results.of(label, "Ant-v4")]
        assert float(value.replace(",", "")) == pytest.approx(np.mean(means), rel=5e-3)
        told[label] += 1
    assert set(told.values()) == {len(results.rows[0].curve)}


def test_scores_by_hand():
    """Between random actions and the paper's best; nothing without a return."""
    assert plots.score([10.0, 30.0], 0.0, 80.0) == 0.25
    assert np.isnan(plots.score([], 0.0, 80.0))


class Links(HTMLParser):
    """Everything that an HTML page refers to, its ids, and tags left open."""

    VOID = frozenset({"meta", "link", "br", "img", "hr"})

    def __init__(self, text: str):
        super().__init__()
        self.targets, self.ids, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.targets += [v for k, v in attrs if k in ("href", "src") and tag != "use"]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else(drawn):
    text = (drawn / "report.html").read_text()
    seen = Links(text)
    assert not seen.open and len(seen.ids) == len(set(seen.ids))
    for target in seen.targets:
        assert not re.match(r"[a-z]+:|//", target), target
        assert target[1:] in seen.ids if target[0] == "#" else (drawn / target).exists()
    assert "<script" not in text and "@import" not in text and "http" not in text
    assert "prefers-color-scheme: dark" in text and "url(" not in text.replace("url(#", "")


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt-get install chromium")
def test_in_a_real_browser(drawn, tmp_path):
    """Nothing is wider than the window: tables scroll in boxes of their own, drawings shrink."""
    probe = (
        "<script>addEventListener('load', () => { const e = document.documentElement; "
        "const wide = [...document.querySelectorAll('p, figure, svg, dl, .scroll, h1, h2')]"
        ".filter(x => x.getBoundingClientRect().right > innerWidth + 1).length; "
        "document.title = JSON.stringify({wide, window: innerWidth, page: e.scrollWidth, "
        "svg: document.querySelectorAll('figure svg path').length, "
        "tables: document.querySelectorAll('table').length}); });</script>"
    )
    inner = (drawn / "report.html").read_text().replace("</head>", probe + "</head>")
    (tmp_path / "inner.html").write_text(inner)
    # Frames, because a window of headless Chromium is never narrower than 500 pixels.
    widths = (390, 1280)
    frames = (f'<iframe src="inner.html" width="{w}" height="900"></iframe>' for w in widths)
    page = tmp_path / "page.html"
    page.write_text(
        f"{''.join(frames)}<script>addEventListener('load', () => {{ document.body.dataset.seen = "
        "'[' + [...document.querySelectorAll('iframe')].map(f => f.contentDocument.title) + ']';"
        " });</script>"
    )
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=180, check=True
    )
    found = re.search(r'data-seen="([^"]*)"', done.stdout)[1].replace("&quot;", '"')
    for width, seen in zip(widths, json.loads(found), strict=True):
        assert seen["window"] == width and seen["page"] <= width and seen["wide"] == 0
        assert seen["svg"] > 50 and seen["tables"] > 10


# Few seeds


def test_no_section_is_drawn_over_by_another(tmp_path):
    """Two algorithms have three seeds on both tasks, the third on one only."""
    suite = {"about": "<b>a</b> [mixture](x)", "tasks": ["Ant-v4", "Hopper-v4"], "steps": 200_000}
    path = tmp_path / "mixture.json"
    path.write_text(json.dumps(suite | {"algorithms": ["dpmd", "sac", "td3"], "seeds": 3}))
    out = fill(tmp_path / "out", missing="Hopper-v4/td3", suite=str(path), seeds=None)
    write_report([out], tmp_path / "report", "<i>a mixture</i>", figures=False)
    text = (tmp_path / "report" / "report.md").read_text()
    heads = re.findall(r"^##? .*", text, flags=re.MULTILINE)
    assert len(set(heads)) == len(heads) and "## Probability of improvement" in heads
    assert "Not ranked: these tasks are not all of them." in text
    assert "<b>" not in text.replace("\\<b", "") and "<i>" not in text.replace("\\<i", "")


def test_algorithms_with_enough_seeds_are_ranked_beside_others_with_one(tmp_path):
    suite = {"about": "a mixture", "tasks": ["Ant-v4", "Hopper-v4"], "steps": 200_000}
    suite["algorithms"] = {"dpmd": {"seeds": 3}, "sac": {"seeds": 3}, "ppo": {"steps": 1_000_000}}
    path = tmp_path / "mixture.json"
    path.write_text(json.dumps(suite))
    out = fill(tmp_path / "out", suite=str(path), seeds=None)
    write_report([out], tmp_path / "report", "a mixture", figures=False)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| seeds asked for | 3 (dpmd, sac), 1 (ppo) |" in text and "| runs | 14 of 14" in text
    assert "Steps of a run here: 200k (dpmd, sac), 1M (ppo); only equal budgets compare." in text
    every, ranked = re.split("## Over all tasks, algorithms with 3 seeds", text)
    assert "Not ranked: 1 seed" in every and "Not ranked" not in ranked
    table = ranked[ranked.index("## Probability of improvement") :]
    assert "| over | dpmd | sac |" in table
    assert "paper, 1M: " in every  # beside the 200k of dpmd; ppo's budget is the paper's own
    assert re.search(r"\| ppo \| .*paper \d", every)


def test_nothing_is_ranked_below_three_seeds(made, drawn):
    few, enough = ((folder / "report.md").read_text() for folder in (made, drawn))
    assert "**" not in few and "Not ranked: 2 seeds, and a rank needs 3." in few
    assert "Probability of improvement" not in few and "Performance profile" not in few
    assert "**" in enough and "Not ranked" not in enough
    assert "Probability of improvement" in enough and "Performance profile" in enough


def test_seeds_that_a_claim_needs_by_hand(made, drawn):
    """The deviation of seeds 0 and 1 is 10 / sqrt(2), of three seeds 10; means differ by 100s."""
    two, three = (
        table((folder / "report.md").read_text(), "Seeds that a claim needs")
        for folder in (made, drawn)
    )
    assert [row[0] for row in two[2:]] == ["dpmd", "sac", "td3"]
    assert sorted(row[1] for row in two[2:]) == ["3", "3", "highest"]  # 14 deviations apart
    assert two[4][two[0].index("Humanoid-v4")] == "missing"
    assert "highest" in [row[1] for row in three[2:]]
    assert "3<br>are there" in [row[1] for row in three[2:]]


def test_one_seed_has_no_deviation(tmp_path):
    out = fill(tmp_path / "out", suite="small", algorithms=("dpmd", "sac"), seeds=1)
    write_report([out], tmp_path / "report", "t", figures=False)
    needed = table((tmp_path / "report" / "report.md").read_text(), "Seeds that a claim needs")
    assert {row[1] for row in needed[2:]} == {"highest", "no deviation"}


# What is refused


def test_nothing_there(tmp_path, capsys):
    assert rescore_command(f"report {tmp_path / 'no'} --out {tmp_path / 'r'}") == 2
    assert "is not a folder" in capsys.readouterr().err
    assert rescore_command(f"report {tmp_path} --out {tmp_path / 'r'}") == 2
    assert "holds no benchmark" in capsys.readouterr().err
    open_matrix(tmp_path / "empty", plan("small", seeds=1))
    assert rescore_command(f"report {tmp_path / 'empty'} --out {tmp_path / 'r'}") == 2
    assert "holds no result yet" in capsys.readouterr().err
    assert rescore_command("report") == 2
    assert not (tmp_path / "r").exists()


def edit(path: Path, **changes) -> None:
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, **changes}) + "\n")


def test_mixed_versions_are_refused(tmp_path):
    out = fill(tmp_path / "out", suite="small", algorithms=("sac",))
    first, second = sorted((out / "rows" / "Reacher-v4").rglob("*.jsonl"))
    edit(second, versions={**VERSIONS, "mujoco": "3.5.0"})
    with pytest.raises(UsageError, match=r"mixes mujoco 3\.4\.0 .* and 3\.5\.0 .* on Reacher"):
        load(out)
    edit(second, versions=VERSIONS, env="Reacher-v5")
    with pytest.raises(UsageError, match=r"mixes Reacher-v4 .* and Reacher-v5"):
        load(out)
    assert first.exists() and second.exists()


def test_truncated_and_foreign_rows_are_named(tmp_path):
    out = fill(tmp_path / "out", suite="small", algorithms=("sac",))
    path = sorted(out.rglob("*.jsonl"))[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(UsageError, match=rf"{path.name} is cut off"):
        load(out)
    path.write_bytes(whole[:100] + b"\n")
    with pytest.raises(UsageError, match="line 1 is damaged"):
        load(out)
    path.write_text('{"algorithm": "sac"}\n')
    with pytest.raises(UsageError, match="line 1 has no 'env'"):
        load(out)


def test_nothing_else_is_overwritten(tmp_path):
    out = fill(tmp_path / "out", suite="small", algorithms=("sac",), seeds=1)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        write_report([out], tmp_path / "docs", "t")
    assert [p.name for p in (tmp_path / "docs").iterdir()] == ["mine.txt"]
    write_report([out], tmp_path / "report", "first", figures=False)
    write_report([out], tmp_path / "report", "again", figures=False)  # its own it may
    assert "# again" in (tmp_path / "report" / "report.md").read_text()
    with pytest.raises(UsageError, match="not several"):
        write_report([out, out], tmp_path / "report", "t")


def test_rows_that_do_not_belong_together_are_refused(tmp_path):
    out = fill(tmp_path / "out", suite="small", algorithms=("sac",), tasks=("Reacher-v4",))
    first, second = sorted((out / "rows").rglob("*.jsonl"))
    original = second.read_text()

    def change(**values) -> None:
        second.write_text(json.dumps({**json.loads(original), **values}) + "\n")

    for values, said in (
        ({"preset": "paper"}, "differ in preset"),
        ({"config": {"hyperparameters": {"T": 3}}}, "differ in T"),
        ({"seed": 0}, "same seed"),
        ({"steps": 7_000}, "7,000 steps, the plan 6,000"),
        ({"algorithm": "td3"}, "of no cell"),
        ({"group": None}, "has no 'group'"),
    ):
        change(**values)
        with pytest.raises(UsageError, match=said):
            load(out)
    second.write_text(original)
    assert len(load(out).rows) == 2 and first.exists()


def test_aggregates_take_seeds_that_all_have(tmp_path):
    """A second seed of one algorithm on one task would weigh that task more."""
    out = fill(tmp_path / "out", suite="small", missing="InvertedPendulum-v4/dpmd/s1")
    results = load(out)
    labels = results.present()
    tasks = results.common(labels)
    assert len(results.rows) == 7 and results.shared_seeds(labels, tasks) == [0]
    assert [len(s) for s in results.scores("sac", tasks, [0], max_of)] == [1, 1]


def max_of(curve: np.ndarray) -> float:
    return float(curve[:, 1].max())


def test_other_versions_and_budgets_of_the_paper_are_named(tmp_path):
    out = fill(tmp_path / "out", tasks=("Ant", "Pusher"), algorithms=("sac",), steps=200_000)
    write_report([out], tmp_path / "report", "t", figures=False)
    best = table((tmp_path / "report" / "report.md").read_text(), "Best evaluation over training")
    assert "paper, 1M: 2,500" in best[2][1] and "paper, v4 1M: -31.2" in best[2][2]


def test_an_interrupted_report_does_not_stop_the_next(tmp_path):
    out = fill(tmp_path / "out", suite="small", tasks=("Reacher-v4",))
    (tmp_path / "report" / "figures").mkdir(parents=True)
    assert write_report([out], tmp_path / "report", "t", figures=False)


def test_one_seed_and_unknown_tasks(tmp_path):
    """No deviation of one seed; no aggregate without a reference."""
    probe = "rescore/Probe1-v0"
    out = fill(
        tmp_path / "out", suite="small", algorithms=("sac",), tasks=(probe,), seeds=1, steps=10_000
    )
    write_report([out], tmp_path / "report", "t", figures=False)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "±" not in table(text, "Best evaluation over training")[2][1]
    assert "Missing: no task has both" in text
    names = {"suite": "small", "algorithms": ("dpmd", "sac"), "tasks": ("Reacher-v4",)}
    one = fill(tmp_path / "one", seeds=1, **names)
    write_report([one], tmp_path / "one-report", "t", figures=False)
    estimates = table((tmp_path / "one-report" / "report.md").read_text(), "Over all tasks")
    assert " to " not in estimates[2][1], "one seed has no interval"
