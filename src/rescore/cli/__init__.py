"""The command line: flags are generated from the same dataclasses that the library uses.

A command is a file of this folder with a form, that is a dataclass of flags with one method,
`execute`. It is imported only when it is asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from rescore.cli.commands import COMMANDS, GROUPS
from rescore.cli.parsing import ELSEWHERE, parse
from rescore.core import EnvError, NonFiniteError, UsageError, did_you_mean
from rescore.training.signals import ctrl_c_is_kept, interruptible

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
    # Before JAX starts: a run that is asked to stop while it compiles stops, and is saved.
    early = (signal.SIGTERM, signal.SIGHUP) if args[:1] in (["train"], ["resume"]) else ()
    try:
        with interruptible(early), ctrl_c_is_kept():
            code = dispatch(args)
        sys.exit(code)
    except (UsageError, NonFiniteError, EnvError) as error:
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
        print(HELP.format(commands=listed(COMMANDS)))
        return 0
    if args[0] in ("-V", "--version"):
        from rescore import __version__

        print(f"rescore {__version__}")
        return 0
    name, rest = args[0], args[1:]
    if name in COMMANDS:
        # Chosen before MuJoCo is imported, which reads it only once.
        from rescore.show.video import choose_gl

        choose_gl()
        if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
            # Its list of fonts stays in the virtual environment, not in the home folder.
            os.environ.setdefault("MPLCONFIGDIR", f"{sys.prefix}/.cache/matplotlib")
    if name in GROUPS and (not rest or rest[0] in ("-h", "--help")):
        print(f"usage: rescore {name} COMMAND ... [--help]\n\n{listed(GROUPS[name])}")
        return 0
    form, words, called = form_of(name, rest)
    return parse(form, words, called).execute()


def listed(commands: dict[str, tuple[str, str]]) -> str:
    width = max(map(len, commands))
    return "\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in commands.items())


def form_of(name: str, rest: list[str]) -> tuple[type, list[str], str]:
    """The form of a command, the words that fill it, and how the command is called."""
    called, commands = "rescore", COMMANDS
    if name in GROUPS:
        called, commands, name, rest = f"rescore {name}", GROUPS[name], rest[0], rest[1:]
    if name not in commands:
        whose = f" of `{called}`" if commands is not COMMANDS else ""
        hint = did_you_mean(name, commands, ELSEWHERE)
        raise UsageError(f"unknown command {name!r}{whose}: {hint}")
    module = import_module(f"rescore.cli.{commands[name][0]}")
    # The flags of `train` depend on its algorithm.
    form = module.form(rest) if name == "train" else getattr(module, name.capitalize())
    return form, rest, f"{called} {name}"
