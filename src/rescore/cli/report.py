"""`rescore report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from rescore.bench.report import write_report


@dataclass(frozen=True)
class Report:
    """Tables, figures and one page of HTML from the rows of `rescore bench run`.

    The paper's numbers stand beside ours; cells without a row are shown as missing; every number
    leads to the rows it was made of. Give folders of studies too, and their
    figures are part of the page. Nothing is bold or ranked below three seeds.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER")]  # of `bench run`
    out: Path = Path("report")  # folder to write: report.md, report.html and figures/
    title: str = "rescore: measured results"  # of the page

    def execute(self) -> int:
        for path in write_report(self.folders, self.out, self.title):
            print(path)
        return 0
