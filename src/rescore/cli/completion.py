"""`rescore completion`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from tyro.conf import Positional

from rescore.algorithms import REGISTRY, find, presets_of
from rescore.cli.commands import COMMANDS, GROUPS
from rescore.training.config import Training

SCRIPT = """{zsh}_rescore() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words="{commands}"
  if [ "$COMP_CWORD" -gt 1 ]; then case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="" ;;
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _rescore rescore"""


@dataclass(frozen=True)
class Completion:
    """Print what completes commands, algorithms, presets and flags in a shell.

    For bash: `source <(rescore completion bash)` in ~/.bashrc; for zsh likewise in ~/.zshrc.
    """

    shell: Positional[Literal["bash", "zsh"]]

    def execute(self) -> int:
        cases = []
        for name, (module, _) in COMMANDS.items():
            words = []
            for command, (where, _) in GROUPS.get(name, {name: (module, "")}).items():
                form = getattr(import_module(f"rescore.cli.{where}"), command.capitalize(), None)
                words += [] if command == name else [command]
                words += flags(form) if form else []
            if name == "train":
                words += [*flags(Training), *REGISTRY]
                for algorithm in REGISTRY:
                    words += [*flags(find(algorithm)), *presets_of(algorithm)]
            cases.append(f'    {name}) words="{" ".join(dict.fromkeys(words))}" ;;')
        zsh = "autoload -U +X bashcompinit && bashcompinit\n" if self.shell == "zsh" else ""
        print(SCRIPT.format(zsh=zsh, commands=" ".join(COMMANDS), cases="\n".join(cases)))
        return 0


def flags(form: Any, prefix: str = "") -> list[str]:
    """The flags of a form, those of dataclasses inside it after a dot."""
    found = []
    for field in dataclasses.fields(form):
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(field.default):
            found += flags(type(field.default), f"{name}.")
        elif field.default is not dataclasses.MISSING:  # else it has no name on the command line
            found.append(f"--{name}")
    return found
