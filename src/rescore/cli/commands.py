"""What there is to type."""

from __future__ import annotations

# Command -> file of this folder, and what it does.
COMMANDS = {
    "train": ("train", "train an algorithm on an environment"),
    "resume": ("resume", "go on with a run that was stopped, or extend one that is done"),
    "eval": ("evaluate", "evaluate a trained run; the last line is one JSON object"),
    "render": ("render", "record a video of a trained run as mp4"),
    "export": ("export", "write a trained policy as one ONNX or JAX file"),
    "data": ("data", "save a run's transitions, to start other runs from"),
    "compare": ("compare", "curves of several runs in one figure, and their last returns"),
    "toy": ("toy", "sample a density from its energy, with baselines, metrics and a figure"),
    "sweep": ("sweep", "search for good settings with Optuna"),
    "bench": ("bench", "train a matrix of algorithms, tasks and seeds; or measure speed"),
    "report": ("report", "tables, figures and a page from the matrix's results"),
    "list": ("listing", "algorithms, presets and tasks"),
    "completion": ("completion", "print a completion script for bash or zsh"),
    "doctor": ("doctor", "check versions, devices and rendering"),
}
GROUPS = {
    "data": {
        "export": ("data", "write a run's replay, or episodes of its policy, as an npz file"),
    },
    "bench": {
        "run": ("bench", "train all cells of a matrix, or go on with it"),
        "speed": ("speed", "what an update, an action and a step cost, as ratios"),
    },
}
