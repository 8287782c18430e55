"""The command line: flags are generated from the same dataclasses that the library uses."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import os
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

from rescore.core import NonFiniteError, UsageError

COMMANDS = {
    "train": "train an algorithm on an environment",
    "resume": "go on with a run that was stopped, or extend one that is done",
    "eval": "evaluate a trained run; the last line is one JSON object",
    "render": "film a trained run as mp4",
    "toy": "sample a density from its energy, with rivals, metrics and a figure",
    "bench": "run the benchmark matrix: algorithms x tasks x seeds",
    "report": "tables, figures and a page from the matrix's results",
    "list": "algorithms, presets and tasks",
    "doctor": "check versions, devices and rendering",
}

GROUPS = {
    "bench": {
        "run": ("rescore.bench_commands", "train all cells of a matrix, or go on with it"),
        "speed": ("rescore.bench_commands", "what an update, an action and a step cost, as ratios"),
    },
}
ELSEWHERE = {"report": "rescore.bench_commands"}  # commands that are not in `rescore.commands`

HELP = """rescore: online reinforcement learning with diffusion policies

usage: rescore COMMAND ... [--help]

{commands}

Start here:
  rescore train dpmd InvertedPendulum-v4 --steps 20000 --until 950
  rescore train dpmd --help        every hyperparameter as a flag
  rescore list                     what there is to train, and on what
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command; bad input ends with one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    # JAX warns of any fork; ours (git, ffmpeg) run another program at once and are harmless.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    try:
        sys.exit(dispatch(args))
    except (UsageError, NonFiniteError) as error:
        print(f"rescore: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"rescore: {error}: try a smaller --replay-capacity", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("rescore: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:  # a full disk, a folder without permission
        print(f"rescore: {error}; what was saved before is kept", file=sys.stderr)
        sys.exit(2)


def dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
        print(HELP.format(commands=rows))
        return 0
    if args[0] in ("-V", "--version"):
        from rescore import __version__

        print(f"rescore {__version__}")
        return 0
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}: {nearest(name, COMMANDS)}")
    # Chosen before MuJoCo is imported, which reads it only once.
    from rescore.video import choose_gl

    choose_gl()
    if name in GROUPS and (not rest or rest[0] in ("-h", "--help")):
        print(f"usage: rescore {name} COMMAND ... [--help]\n")
        print("\n".join(f"  {word:6} {what}" for word, (_, what) in GROUPS[name].items()))
        return 0
    form, words, called = form_of(name, rest)
    return parse(form, words, called).execute()


def form_of(name: str, rest: list[str]) -> tuple[type, list[str], str]:
    """The form of a command, the words that fill it, and how the command is called."""
    called, home = f"rescore {name}", ELSEWHERE.get(name, "rescore.commands")
    if name == "train":
        return train_form(rest), rest, called
    if name in GROUPS:
        name, rest = rest[0], rest[1:]
        if name not in (group := GROUPS[called.split()[1]]):
            raise UsageError(f"unknown command {name!r} of `{called}`: {nearest(name, group)}")
        called, home = f"{called} {name}", group[name][0]
    return getattr(import_module(home), name.capitalize()), rest, called


def train_form(args: list[str]) -> type:
    """The flags of `train` depend on its algorithm; their defaults on its preset."""
    from rescore import commands
    from rescore.algorithms import REGISTRY, find
    from rescore.training.config import Training, configure

    import tyro  # isort: skip

    words = [a for a in args if not a.startswith("-")]
    name = next((word for word in words if word in REGISTRY), None)  # flags may stand before it
    if words and name is None and not {"-h", "--help"} & set(args):
        raise UsageError(f"unknown algorithm {words[0]!r}: {nearest(words[0], REGISTRY)}")
    name = name or next(iter(REGISTRY))
    algo, training = configure(name, flag_value(args, "--preset") or "default", {}, {})
    flat = tyro.conf.arg(name="")  # --gamma, not --hyperparameters.gamma
    kind = find(name)
    # Settings that may be None (DPMD's lam) are flags where the preset has them, else a word at the
    # end of the command brings them: lam:anneal --lam.init 1 --lam.target 1.
    if all(getattr(algo, field) is not None for field in optional_settings(kind)):
        kind = tyro.conf.AvoidSubcommands[kind]
    return dataclasses.make_dataclass(
        "TrainForm",
        [
            ("run", Annotated[commands.Train, flat]),
            ("hyperparameters", Annotated[kind, flat], dataclasses.field(default=algo)),
            ("training", Annotated[Training, flat], dataclasses.field(default=training)),
        ],
        namespace={
            "__doc__": commands.Train.__doc__,
            "execute": lambda form: form.run.execute(form.hyperparameters, form.training),
        },
        frozen=True,
    )


def optional_settings(kind: type) -> list[str]:
    """Fields of a dataclass that hold settings of their own, or None."""
    of_dataclass = lambda hint: any(map(dataclasses.is_dataclass, get_args(hint)))  # noqa: E731
    return [name for name, hint in get_type_hints(kind).items() if of_dataclass(hint)]


def flag_value(args: list[str], flag: str) -> str | None:
    """The value of a flag, before the real parser can run."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
    return None


def parse(form: type, args: list[str], prog: str) -> Any:
    """tyro's parser, with its complaints as one line."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            value, unknown = tyro.cli(form, args=args, prog=prog, return_unknown_args=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{one_line(said.getvalue())} (see `{prog} --help`)") from None
    if unknown:
        flags = ["--" + f.name.replace("_", "-") for f in every_field(form)]
        raise UsageError(
            f"unknown argument {unknown[0]!r} of `{prog}`: {nearest(unknown[0], flags)}"
        )
    return value


def one_line(box: str) -> str:
    """The complaint inside the box that tyro draws."""
    text = re.sub(r"\x1b\[[0-9;]*m|[\u2500-\u257f]+|-{4,}", " ", box)
    text = re.sub(r"(Argument helptext|For full helptext).*", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*(Value error|Invalid choice|Parsing error|Required options)", "", text)
    return " ".join(text.split()).rstrip(".")


def every_field(form: type) -> list[dataclasses.Field]:
    """Fields of a form and of the dataclasses inside it."""
    found = []
    for field in dataclasses.fields(form):
        found.append(field)
        inner = field.default if dataclasses.is_dataclass(field.default) else field.type
        inner = getattr(inner, "__origin__", inner)
        if dataclasses.is_dataclass(inner):
            found += dataclasses.fields(inner)
    return found


def nearest(word: str, words: Any) -> str:
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "see --help for what there is"


def default_folder(env_id: str, algorithm: str, seeds: Sequence[int]) -> Path:
    """runs/<env>/<algorithm>/s<seeds>-<time>, free at this moment."""
    import time

    stamp = time.strftime("%Y%m%d-%H%M%S")
    seeds_text = "_".join(map(str, seeds))
    return Path("runs") / env_id.replace("/", "_") / algorithm / f"s{seeds_text}-{stamp}"


def new_folder(folder: Path) -> Path:
    """Make the folder of a run, never over another one."""
    from rescore.training.checkpoint import stored

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if (folder / "run.json").exists():
            again = f" (`rescore resume {folder}` goes on with it)" if stored(folder) else ""
            raise UsageError(f"{folder} holds another run: choose another --out{again}")
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UsageError(f"{folder} {what}: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; choose another --out") from None
    return folder


def program() -> str:
    """How this program is called here, so that a printed command can be typed as it is."""
    called = Path(sys.argv[0])
    found = shutil.which("rescore")
    if found and called.exists() and os.path.samefile(found, called):
        return "rescore"
    return os.path.relpath(called) if called.name == "rescore" else "python -m rescore"
