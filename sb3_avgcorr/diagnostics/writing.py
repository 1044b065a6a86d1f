"""The files of a diagnosis: JSON, plots, and one self-contained page. Needs matplotlib."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from sb3_avgcorr.diagnostics.plots import plot_history, plot_states, plot_steps

if TYPE_CHECKING:
    from sb3_avgcorr.diagnostics.report import DiagnosisReport

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:left}img{max-width:100%}"
    "strong{display:block;padding:.7rem 1rem;border-left:.4rem solid #999;background:#f5f5f5}"
    ".negligible{border-color:#3a8f5b}.moderate{border-color:#d9962b}.large{border-color:#c2432f}"
)


def write(report: DiagnosisReport, folder: Path, history: list[dict[str, float]]) -> Path:
    """
    Write report.json, the plots and report.html.

    :param report: the diagnosis
    :param folder: where to; made if need be
    :param history: what :class:`CorrectionDiagnosticsCallback` recorded along a training run
    :return: the page
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps({**report.as_dict(), "history": history}, indent=1) + "\n")
    figures = {"steps.png": "Weight against the step of the episode", "states.png": "Weight over the states"}
    plot_steps(report, folder / "steps.png")
    plot_states(report, folder / "states.png")
    if history:
        figures["training.png"] = "Along training"
        plot_history(history, folder / "training.png")
    path = folder / "report.html"
    path.write_text(page(report, {title: (folder / name).read_bytes() for name, title in figures.items()}))
    return path


def page(report: DiagnosisReport, figures: dict[str, bytes]) -> str:
    """
    Make the page: nothing is loaded from elsewhere, and every text is escaped.

    :param report: the diagnosis
    :param figures: title and PNG of each figure
    :return: HTML
    """
    html = ElementTree.Element("html", lang="en")

    def add(parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: str) -> ElementTree.Element:
        element = ElementTree.SubElement(parent, tag, attributes)
        element.text = text
        return element

    head, body = add(html, "head"), add(html, "body")
    add(head, "meta", charset="utf-8")
    add(head, "title", f"{report.env}: discount mismatch")
    add(head, "style", STYLE)
    add(body, "h1", f"Discount-factor mismatch: {report.env}")
    add(body, "p", report.heading())
    add(body, "strong", report.verdict, **{"class": report.severity})
    for sentence in report.conclusions():
        add(body, "p", sentence)
    table = add(body, "table")
    for tag, cells in ("th", ("measure", "value", "95 % interval")), *(("td", row) for row in report.rows()):
        line = add(table, "tr")
        for cell in cells:
            add(line, tag, cell)
    for title, png in figures.items():
        figure = add(body, "figure")
        add(figure, "img", alt=title, src=f"data:image/png;base64,{base64.b64encode(png).decode()}")
        add(figure, "figcaption", title)
    return "<!doctype html>\n" + ElementTree.tostring(html, encoding="unicode", method="html") + "\n"
