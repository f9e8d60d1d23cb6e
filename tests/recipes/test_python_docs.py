"""The bundled documents are clean text, and the recipe converts any Sphinx page to clean text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.pipelines.data.demo import demo_documents
from recipes.python_docs import page_text

PAGE = """
<html><body><div class="related"><a>Previous topic</a></div><div role="main">
<section><h1><span class="section-number">4. </span>Bees<a class="headerlink" href="#b">¶</a></h1>
<nav class="contents"><p>Contents</p></nav><div class="toctree-wrapper"><ul><li>Hives</li></ul></div>
<p>Don’t ask   “why” a bee
dances<a class="footnote-reference" href="#f">[1]</a>.</p>
<div class="highlight"><pre><span>&gt;&gt;&gt; </span>bee = 1
    two = 2
</pre></div>
<ul><li><p>One
bee</p></li><li><p>Two bees</p></li></ul>
<ol><li><p>First:</p><pre>buzz()
</pre></li></ol>
<dl class="py method"><dt>bee.fly(to)<a class="headerlink">¶</a></dt><dd><p>Fly there.</p><p>And back.</p></dd></dl>
<dl class="glossary"><dt>queen</dt><dd><p>The one who lays eggs.</p></dd></dl>
<div class="admonition note"><p class="admonition-title">Note</p><p>They sting.</p></div>
<table><tr><th>Bee</th><th>Eggs</th></tr><tr><td>Queen</td><td>2,000</td></tr></table>
<aside class="footnote"><span class="label"><span>[</span><a>1</a><span>]</span></span><p>Ask von Frisch.</p></aside>
<blockquote><div><p>Quoted.</p></div></blockquote>
</section></div></body></html>
"""

TEXT = """Bees

Don't ask "why" a bee dances.

>>> bee = 1
    two = 2

- One bee
- Two bees

1. First:

   buzz()

bee.fly(to): Fly there.

And back.

Queen

The one who lays eggs.

Note: They sting.

Bee | Eggs
Queen | 2,000

Footnote 1: Ask von Frisch.

Quoted.
"""


def test_a_page_becomes_clean_text() -> None:
    assert page_text(PAGE) == TEXT


def test_the_shipped_documents_are_about_a_megabyte_with_their_licence() -> None:
    paths = demo_documents()
    assert len(paths) == 40
    assert 700_000 < sum(path.stat().st_size for path in paths) < 1_000_000
    licence = (paths[0].parent / "LICENSE.txt").read_text(encoding="utf-8")
    assert "PSF LICENSE AGREEMENT FOR PYTHON" in licence
    assert "Copyright © 2001-2023 Python Software Foundation" in licence
    assert "ZERO-CLAUSE BSD LICENSE" in licence
    assert (paths[0].parent / "README.md").is_file()


@pytest.mark.parametrize("path", demo_documents(), ids=lambda path: path.name)
def test_a_shipped_document_is_clean_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"¶|Previous topic|Table of Contents|Permalink|</\w+>\s*<div|\r|[ \t]+\n\n\n", text)
    assert found == []
    heading, blank, _ = text.split("\n", 2)
    assert 3 < len(heading) < 80
    assert blank == ""
