"""Sphinx: `make docs` builds the site into docs/_build/html, and every warning is an error."""

import os
import re
import shutil
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

# Nothing here needs a screen, and dm_control looks for one when it is imported.
os.environ.setdefault("MUJOCO_GL", "disabled")

import sb3_avgcorr
from sb3_avgcorr.common.options import OPTIONS, CorrectionOptions

HERE = Path(__file__).parent

project = "sb3-avgcorr"
author = "The sb3-avgcorr developers"
copyright = author
version = release = sb3_avgcorr.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "Thumbs.db", ".DS_Store"]
root_doc = "index"

# Markdown
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "smartquotes"]
myst_heading_anchors = 3

# Notebooks are committed with their outputs; the tests run them, the site shows them.
nb_execution_mode = "off"

# Sphinx reads its own folder only, so what the site shows from elsewhere is copied into it (git ignores the copies).
for copied, origin, pattern in (("notebooks", "examples", "*.ipynb"), ("benchmarks", "benchmarks/results", "*")):
    shutil.rmtree(HERE / copied, ignore_errors=True)
    (HERE / copied).mkdir()
    for file in (HERE.parent / origin).glob(pattern):
        shutil.copy(file, HERE / copied)


def adapt_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links that are right on GitHub be right on the site, too, and fill in the lists of options."""
    source[0] = re.sub(r"\]\((\.\./)+benchmarks/results/", "](/benchmarks/", source[0])
    source[0] = re.sub(r"\]\((\.\./)+examples/(?=[^)]*\.ipynb)", "](/notebooks/", source[0])
    source[0] = re.sub(r"(\]\(_static/envs/\w+\.png\))", r"\1{.env}", source[0])
    for authors, readers in enumerate(("users", "authors")):
        source[0] = source[0].replace(f"<!-- options for {readers} -->", options_list(bool(authors)))


def options_list(authors: bool) -> str:
    """Describe the correction's options, from the one place that knows them."""
    entries = []
    for name, option in OPTIONS.items():
        if option.authors == authors:
            doc = " ".join(option.doc.split()).replace("docs/speed.md", "[speed](/speed.md)")
            doc = doc[0].upper() + doc[1:] if doc[0].isascii() else doc  # λ stays λ
            entries.append(f"`{name}` = `{getattr(CorrectionOptions, name)!r}`\n: {doc}.\n")
    return "\n".join(entries)


def adapt_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """
    Let reStructuredText show what the docstring says: a bar after a prime, as in p(s'|s), would begin a substitution, an
    underscore at the end of a parameter's name a link.
    """
    adapted = [re.sub(r"^(:param \w+)_:", r"\1\\_:", line.replace("'|", "'\\|")) for line in lines]
    lines[:] = [line.replace("docs/speed.md", ":doc:`speed </speed>`") for line in adapted]


def write_math(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers show by themselves: pages need no script from elsewhere."""
    block = isinstance(node, nodes.math_block)
    tag = "div" if block else "span"
    formula = tex2mathml(node.astext(), as_block=block)
    translator.body.append(translator.starttag(node, tag, "", CLASS="math notranslate nohighlight") + formula + f"</{tag}>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect what is above, when Sphinx calls this."""
    app.connect("source-read", adapt_source)
    app.connect("autodoc-process-docstring", adapt_docstring)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))


# API
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures of SB3's family are long enough without them; the docstrings say what is allowed

# Look
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"sb3-avgcorr {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
