"""What a search has found: its best trial, the importance of each setting, and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rescore.bench.sweep import find_optuna
from rescore.files.atomic import replacing


def importances(study: Any) -> dict[str, float]:
    """How much each setting decides, by PED-ANOVA; nothing while there are too few trials."""
    optuna = find_optuna()
    done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    if len(done) < 4 or len({t.value for t in done}) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    except (ValueError, RuntimeError):  # all trials alike in every setting
        return {}


def draw(study: Any, path: Path) -> Path:
    """Values of the trials in their order, and the importance of each setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    ended = [t for t in study.trials if t.value is not None]
    states = {"COMPLETE": "C0", "PRUNED": "0.7"}
    for state, colour in states.items():
        own = [t for t in ended if t.state.name == state]
        if own:
            label = state.lower()
            left.plot([t.number for t in own], [t.value for t in own], "o", c=colour, label=label)
    left.set(xlabel="trial", ylabel="return")
    if ended:
        left.legend(frameon=False)
    found = importances(study)
    right.barh(list(found)[::-1], list(found.values())[::-1], color="C0")
    right.set(xlabel="importance (PED-ANOVA)", title="" if found else "too few trials yet")
    with replacing(path) as part:
        figure.savefig(part, format="png", facecolor="white")
    return path


def summary(study: Any) -> dict[str, Any]:
    """What a search has found so far."""
    counts: dict[str, int] = {}
    for trial in study.trials:
        counts[trial.state.name.lower()] = counts.get(trial.state.name.lower(), 0) + 1
    told: dict[str, Any] = {"trials": counts}
    if counts.get("complete"):
        best = study.best_trial
        told |= {"best": best.value, "trial": best.number, "params": best.params}
    return told
