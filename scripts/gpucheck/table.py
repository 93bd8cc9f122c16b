"""The one table that scripts/gpu_check ends with, and the file that holds the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """A figure beside what limits it; `ratio` is of the two, by default figure / limit."""

    what: str
    figure: float
    unit: str = ""
    limit: float | None = None
    against: str = ""  # what the limit is
    ratio: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.limit is None:
            self.against = ""
        elif self.ratio is None and self.limit:
            self.ratio = self.figure / self.limit


@dataclass
class PartResult:
    """What came of a part: ok, failed, cut (by its budget), or missing (something it needs)."""

    name: str
    status: str
    seconds: float
    budget: float
    detail: str = ""


@dataclass
class Results:
    """Everything found so far."""

    rows: list[Row] = field(default_factory=list)
    parts: list[PartResult] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # of the machine, and its peaks

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def write(self, path: Path) -> None:
        """Whole or not at all, so that a run that is killed leaves what it had."""
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)


def digits(value: float | None) -> str:
    """Three significant digits; whole numbers from 100 on."""
    if value is None:
        return ""
    if value == int(value) or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def render(results: Results) -> str:
    head = ("what", "figure", "", "limit", "", "ratio")
    cells = [
        (
            row.what,
            digits(row.figure),
            row.unit,
            digits(row.limit),
            row.against,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.note,
        )
        for row in results.rows
    ]
    widths = [max([len(head[i]), *(len(cell[i]) for cell in cells)]) for i in range(len(head))]

    def line(texts: tuple[str, ...]) -> str:
        parts = [
            text.rjust(width) if i in (1, 3, 5) else text.ljust(width)
            for i, (text, width) in enumerate(zip(texts, widths, strict=False))
        ]
        return "  ".join([*parts, *texts[len(widths) :]]).rstrip()

    lines = [line(head), *(line(cell) for cell in cells), ""]
    for part in results.parts:
        detail = f": {part.detail}" if part.detail else ""
        lines.append(
            f"{part.status:<8}{part.name} ({part.seconds:.0f} of {part.budget:.0f} s){detail}"
        )
    return "\n".join(lines)
