"""Build a release and try it as a user would: `make dist`, and `make release` before it is tagged.

The version must be that of the changelog. Source archive and wheel are built and checked, and the
wheel is installed into a bare environment, where it trains from an empty folder and may write
nothing into its packages. Nothing is uploaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("build==1.6.1", "twine==7.0.0")
TINY = "--steps 60 --warmup 30 --batch-size 8 --hidden 8 8 --eval-every 0 --eval-episodes 1"
SMOKE = f"""
--version
list
train dpmd InvertedPendulum-v4 {TINY} --out run --quiet
resume run --steps 80 --quiet
eval run --episodes 1
render run --seconds 1
"""


def version_of(root: Path, final: bool) -> str:
    """The version that pyproject.toml, the package and the changelog's newest heading agree on."""
    package, changelog = root / "src" / "rescore" / "__init__.py", root / "CHANGELOG.md"
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    own = re.search(r'^__version__ = "(.+)"$', package.read_text(), re.MULTILINE)
    heading = re.search(r"^## \[(.+?)\] - (.+)$", changelog.read_text(), re.MULTILINE)
    for path, found in ((package, own), (changelog, heading)):
        if found is None or found[1] != version:
            other = found[1] if found else "none"
            sys.exit(f"pyproject.toml has version {version}, {path.name} {other}: make them agree")
    assert heading is not None
    if final and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        sys.exit(f"CHANGELOG.md says {version} is {heading[2]!r}: write the date of the release")
    return version


def demand_clean(version: str) -> None:
    """A release is of a commit that is not released yet."""
    if said("git", "status", "--porcelain"):
        sys.exit("there are uncommitted changes: commit them before a release")
    if said("git", "tag", "--list", f"v{version}"):
        sys.exit(f"there is a tag v{version} already: raise the version")


def said(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def run(*words: str | Path, cwd: Path = ROOT, **settings: str) -> None:
    print("+", *words, flush=True)
    env = {**os.environ, **settings}
    if code := subprocess.run(list(map(str, words)), cwd=cwd, env=env).returncode:
        sys.exit(f"{words[0]} ended with exit code {code}")


def bare(folder: Path, *packages: str | Path) -> Path:
    """The programs of a new environment with these packages and what they need."""
    venv.create(folder, with_pip=True)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check")
    run(*pip, "--quiet", *packages)
    return folder / "bin"


def files(folder: Path) -> set[Path]:
    """All that lies there, but for what Python compiles."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def main(final: bool) -> None:
    version = version_of(ROOT, final)
    if final:
        demand_clean(version)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        tools = bare(place / "tools", *TOOLS)
        made = [
            ROOT / "dist" / f"rescore-{version}{end}" for end in (".tar.gz", "-py3-none-any.whl")
        ]
        pins = str(ROOT / "constraints.txt")  # what builds is pinned; what a user gets is not
        run(tools / "python", "-m", "build", "--outdir", "dist", PIP_CONSTRAINT=pins)
        run(tools / "twine", "check", "--strict", *made)
        programs, empty = bare(place / "user", made[1]), place / "empty"
        empty.mkdir()
        before = files(place / "user" / "lib")
        for words in SMOKE.split("\n")[1:-1]:
            run(programs / "rescore", *words.split(), cwd=empty)
        if new := files(place / "user" / "lib") - before:
            sys.exit(f"the packages were written to: {sorted(new)[0]}")
    for path in made:
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:,.0f} kB")
    if final:
        print(f"now: git tag v{version}, and twine upload dist/rescore-{version}*")


if __name__ == "__main__":
    main("--final" in sys.argv[1:])
