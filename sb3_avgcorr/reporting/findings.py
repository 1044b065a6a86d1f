"""What an experiment found, and the page, tables and pictures that tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from sb3_avgcorr.reporting.claims import Claim
from sb3_avgcorr.runs.files import write_bytes


@dataclass(frozen=True)
class Table:
    """
    A table of text.

    :param heading: titles of the columns
    :param rows: the cells
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """The table as lines of Markdown."""
        heading, *rows = (f"| {' | '.join(cells)} |" for cells in (self.heading, *self.rows))
        return ["", heading, "|---" * len(self.heading) + "|", *rows, ""]


@dataclass(frozen=True)
class Picture:
    """
    A picture of a page.

    :param name: name of its file
    :param caption: what it shows
    :param figure: the picture
    """

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """
    A part of a page.

    :param title: its heading; empty: none
    :param pictures: its pictures
    :param claims: what was to be shown, with verdicts
    :param tables: the figures
    :param text: a paragraph before them
    """

    title: str = ""
    pictures: Sequence[Picture] = ()
    claims: Sequence[Claim] = ()
    tables: Sequence[Table] = ()
    text: str = ""

    def markdown(self) -> list[str]:
        """The section as lines of Markdown: first what is claimed, then what it rests on."""
        lines = [f"## {self.title}", ""] if self.title else []
        lines += [self.text, ""] if self.text else []
        for picture in self.pictures:
            lines += [f"![{picture.caption}]({picture.name})", ""]
        if self.claims:
            lines += _claims(self.claims).markdown()
        for table in self.tables:
            lines += table.markdown()
        return lines


@dataclass
class Findings:
    """
    What an experiment found.

    :param name: name of the experiment, and of its files
    :param title: heading of its page
    :param notes: paragraphs: what was done, and what a reader should know
    :param sections: the parts of its page
    :param data: every figure, by the name of its CSV file without the ending
    :param failed: runs that failed, a line each
    :param command: the command that repeats it
    :param made: how many of its runs there are, where more are to come
    :param files: what was written, by name
    """

    name: str
    title: str
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()
    data: dict[str, pd.DataFrame] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    command: str = ""
    made: str = ""
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def claims(self) -> list[Claim]:
        """All claims with their verdicts."""
        return [claim for section in self.sections for claim in section.claims]

    @property
    def report(self) -> str:
        """The page, in Markdown."""
        lines = [f"# {self.title}", ""]
        for note in self.notes:
            lines += [note, ""]
        if self.command and self.data:
            kept = " and ".join(f"`{name}.csv`" for name in self.data)
            made = f" ({self.made})" if self.made else ""
            lines += [f"Made by `{self.command}`{made}; every figure is in {kept}.", ""]
        for section in self.sections:
            lines += section.markdown()
        lines += [f"Failed: {line}" for line in self.failed]
        text = "\n".join(lines).rstrip() + "\n"
        while "\n\n\n" in text:
            text = text.replace("\n\n\n", "\n\n")
        return text


def write(findings: Findings, out: Path) -> None:
    """
    Leave the page (``name.md``), the tables (``.csv``) and the pictures (``.png``) of an experiment, each all or nothing.

    :param findings: what was found; the files are noted in it
    :param out: the folder
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in findings.data.items():
        findings.files[f"{name}.csv"] = out / f"{name}.csv"
        write_bytes(out / f"{name}.csv", frame.to_csv(index=False, float_format="%.6g").encode())
    for section in findings.sections:
        for picture in section.pictures:
            findings.files[picture.name] = out / picture.name
            drawn = BytesIO()
            picture.figure.savefig(drawn, dpi=110)
            write_bytes(out / picture.name, drawn.getvalue())
    page = f"{findings.name}.md"
    findings.files[page] = out / page
    write_bytes(out / page, findings.report.encode())


def _claims(claims: Sequence[Claim]) -> Table:
    places = any(claim.place for claim in claims)
    heading = ["claim", *(["where"] if places else []), "figure (95 % interval)", "verdict"]
    rows = []
    for claim in claims:
        verdict = f"**{claim.verdict}**" if claim.verdict == "contradicted" else claim.verdict
        rows.append([claim.text, *([claim.place] if places else []), claim.figure.text(3), verdict])
    return Table(heading, rows)
