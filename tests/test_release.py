"""What a release demands before it is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import release

ROOT = Path(__file__).parents[1]


def project(root: Path, declared: str, own: str, heading: str) -> Path:
    (root / "src" / "rescore").mkdir(parents=True)
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{declared}"\n')
    (root / "src" / "rescore" / "__init__.py").write_text(f'__version__ = "{own}"\n')
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n## [0.0.1] - 2020-01-01\n")
    return root


def test_this_version_agrees():
    assert release.version_of(ROOT, final=False)


def test_a_release_has_a_date(tmp_path):
    made = project(tmp_path, "1.2.0", "1.2.0", "## [1.2.0] - unreleased")
    assert release.version_of(made, final=False) == "1.2.0"
    with pytest.raises(SystemExit, match="write the date"):
        release.version_of(made, final=True)
    (made / "CHANGELOG.md").write_text("## [1.2.0] - 2031-02-03\n")
    assert release.version_of(made, final=True) == "1.2.0"


@pytest.mark.parametrize(
    "own, heading, said",
    [
        ("1.1.0", "## [1.2.0] - unreleased", "__init__.py 1.1.0"),
        ("1.2.0", "## [1.1.0] - unreleased", r"CHANGELOG.md 1.1.0"),
        ("1.2.0", "", r"CHANGELOG.md 0.0.1"),
    ],
)
def test_versions_that_differ_are_refused(tmp_path, own, heading, said):
    with pytest.raises(SystemExit, match=f"version 1.2.0, {said}"):
        release.version_of(project(tmp_path, "1.2.0", own, heading), final=False)
