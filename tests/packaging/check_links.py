"""
Check every local link of the built site and of the Markdown files beside it. No network is needed.

    python tests/packaging/check_links.py docs/_build/html README.md ...
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """
    The links of an HTML page, and the anchors that others may point to.

    :param content: the page
    """

    def __init__(self, content: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_in_site(root: Path) -> list[str]:
    """
    Follow the links of all pages.

    :param root: folder of the built site
    :return: one line for each link that leads nowhere
    """
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.html"))}
    if not pages:
        return [f"{root}: no page was built"]
    broken = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            # pages of listed source code have anchors that only viewcode knows
            known = pages[target].anchors if target in pages else {url.fragment}
            if not target.exists() or url.fragment not in known:
                broken.append(f"{path.relative_to(root)}: {link}")
    return broken


def broken_in_markdown(path: Path) -> list[str]:
    """
    Look at the links of a file as GitHub shows it.

    :param path: a Markdown file
    :return: one line for each link to a file that does not exist
    """
    links = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not urlsplit(link).scheme and not link.startswith("#")]
    return [f"{path}: {link}" for link in local if not (path.parent / unquote(urlsplit(link).path)).exists()]


def main(site: str, *files: str) -> int:
    """
    Print what is broken.

    :param site: folder of the built site
    :param files: Markdown files
    :return: exit code
    """
    broken = broken_in_site(Path(site).resolve())
    for file in files:
        broken += broken_in_markdown(Path(file))
    print("\n".join(broken) or "Every local link leads somewhere.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
