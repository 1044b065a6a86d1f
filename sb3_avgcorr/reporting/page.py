"""Self-contained HTML pages: no scripts, nothing loaded from elsewhere, every text escaped."""

import base64
import html
from collections.abc import Iterable, Sequence


def text(content: str, tag: str = "p", css: str = "") -> str:
    """
    Write a text element.

    :param content: plain text
    :param tag: the element
    :param css: its class
    :return: the element
    """
    attribute = f' class="{html.escape(css)}"' if css else ""
    return f"<{tag}{attribute}>{html.escape(content)}</{tag}>"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    Write a table.

    :param heading: titles of the columns
    :param rows: the cells, plain text
    :return: a table
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(text(cell, tag) for cell in cells)}</tr>"

    return "\n".join(["<table>" + line(heading, "th"), *(line(row, "td") for row in rows), "</table>"])


def figure(title: str, png: bytes) -> str:
    """
    Write a figure that needs no other file.

    :param title: what it shows
    :param png: the picture
    :return: a figure that holds the picture itself
    """
    source = base64.b64encode(png).decode()
    caption = html.escape(title)
    return f'<figure><img alt="{caption}" src="data:image/png;base64,{source}"><figcaption>{caption}</figcaption></figure>'


def page(title: str, body: Iterable[str]) -> str:
    """
    Write a whole page.

    :param title: title of the window, plain text
    :param body: elements
    :return: the page
    """
    head = f'<head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style></head>'
    return "\n".join(["<!doctype html>", f'<html lang="en">{head}<body>', *body, "</body></html>\n"])


STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;margin:1.5rem 0}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:left}
td+td{font-variant-numeric:tabular-nums}figure{margin:2rem 0}img{max-width:100%}figcaption{color:#666;font-size:.9rem}
.verdict{padding:.7rem 1rem;border-left:.4rem solid #999;background:#f5f5f5}.negligible,.better{border-color:#3a8f5b}
.moderate{border-color:#d9962b}.large,.worse{border-color:#c2432f}.note{color:#666}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
"""
