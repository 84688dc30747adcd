"""Markup as a person reads it: one text for every format."""

# ruff: noqa: E501, a markup and its text stand side by side
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.retrieval.formats import MARKUPS
from training.trees import render_document, render_fragment

MARKDOWN = [
    ("The fee is ~~20~~ 25 euros <del>a week</del> a month.", "The fee is 25 euros a month."),
    (
        "**Bold** and _thin_ `code` [a link](http://a.b/c) &amp; more",
        "Bold and thin code a link & more",
    ),
    ("one\nline\n\nother", "one line\n\nother"),
    ("These:\n\n- one\n- two\n  - deep\n\nAfter.", "These:\n- one\n- two\n  - deep\n\nAfter."),
    ("3. three\n4. four", "3. three\n4. four"),
    ("- [x] done\n- [ ] open", "- done\n- open"),
    (
        "| Name | Type |\n|---|---|\n| `a` | int |\n| b | |\n",
        "Name: a; Type: int\nName: b",
    ),
    ("# Top\ntext\n## Low ##\nmore", "Top\n\ntext\n\nLow\n\nmore"),
    ("Do:\n\n```sh\nrm  *.txt\n```\n", "Do:\n\nrm  *.txt"),
    ("term\n: what it is", "term: what it is"),
    ("> [!NOTE]\n> Mind it.", "Note: Mind it."),
    ("!!! warning\n    Hot.\n\nAfter.", "Warning: Hot.\n\nAfter."),
    ('!!! note "The "best" one"\n    Text.', 'The "best" one\n\nText.'),
    (":::tip Title\n\nText.\n\n:::\n", "Title\n\nText."),
    ("```{note}\nMind it.\n```\n", "Note: Mind it."),
    ("```{figure} a.png\n---\nalt: x\n---\nThe caption.\n```\n", "The caption."),
    ("See {ref}`the part <label>` and {func}`~a.b.c`.", "See the part and c."),
    ("```{eval-rst}\n.. option:: --x\n\n   Sets ``x``.\n```\n", "--x\n\nSets x."),
    ("{{< note >}}\nText {% raw %}here{% endraw %}.\n{{< /note >}}", "Text here."),
    ("`{{ kept }}` but {{ dropped }}.", "{{ kept }} but ."),
    ("## Name {#id .class}\n\ntext{: .c }", "Name\n\ntext"),
    (
        "import A from 'a';\n\n<Tabs>\n<TabItem label=\"Linux\">\n\nText.\n\n</TabItem>\n</Tabs>",
        "Linux\n\nText.",
    ),
    ("A[^1] note.\n\n[^1]: Below.", "A note.\n\nBelow."),
    ("10<sup>6</sup> and H<sub>2</sub>O, the 1<sup>st</sup>", "10^6 and H2O, the 1st"),
    ("<!-- hidden\n\nstill -->\nshown", "shown"),
    (
        "<table><tr><th>A</th><th>B</th></tr>\n\n<tr><td>1</td>\n\n<td>**2**</td></tr></table>",
        "A: 1; B: 2",
    ),
    ("a\u00adb\u200bc\0", "abc"),
    ("![alt](a.png) text", "text"),
]
RST = [
    (
        "**Bold** *thin* ``code`` `a link <http://a.b>`_ and name_.",
        "Bold thin code a link and name.",
    ),
    (":ref:`the part <label>`, :func:`~a.b.c`, :pep:`8`", "the part, c, PEP 8"),
    ("These:\n\n* one\n* two\n\n  * deep\n\nAfter.", "These:\n- one\n- two\n  - deep\n\nAfter."),
    ("#. one\n#. two", "1. one\n2. two"),
    ("Top\n===\n\ntext\n\nLow\n---\n\nmore", "Top\n\ntext\n\nLow\n\nmore"),
    ("Do::\n\n    rm *.txt\n    ls\n\nAfter.", "Do:\n\nrm *.txt\nls\n\nAfter."),
    (".. code-block:: sh\n   :caption: x\n\n   rm *.txt\n", "rm *.txt"),
    (".. note:: Mind\n   it.\n\n   More.", "Note: Mind it.\n\nMore."),
    (".. versionadded:: 2.1\n   The flag.", "New in version 2.1: The flag."),
    ("term\n    What it is.\n\nother : kind\n    More.", "term: What it is.\nother: More."),
    (":name: value\n:other: more\n  lines", "name: value\nother: more lines"),
    (
        "-f FILE    Reads it.\n-q, --quiet\n           Says nothing.",
        "-f FILE: Reads it.\n-q, --quiet: Says nothing.",
    ),
    ("| a\n| b", "a\nb"),
    (
        "====  ====\nName  Type\n====  ====\na     int\nb     a list\n====  ====\n",
        "Name: a; Type: int\nName: b; Type: a list",
    ),
    (
        "+------+------+\n| Name | Type |\n+======+======+\n| a    | an   |\n|      | int  |\n+------+------+\n",
        "Name: a; Type: an int",
    ),
    (
        ".. list-table:: Flags\n   :header-rows: 1\n\n   * - Name\n     - Type\n   * - ``a``\n     - int\n",
        "Flags\nName: a; Type: int",
    ),
    ('.. csv-table::\n   :header: "Name", "Type"\n\n   a, "x, y"\n', "Name: a; Type: x, y"),
    (
        ".. toctree::\n   :maxdepth: 2\n\n   a\n   b\n\n.. image:: a.png\n.. _label:\n.. a comment\n   goes on\n\nshown",
        "shown",
    ),
    (".. |name| replace:: The Product\n\n|name| is here\\ s.", "The Product is heres."),
    (".. option:: --port\n\n   Where it listens.", "--port\n\nWhere it listens."),
    (">>> 1 + 1\n2\n\nAfter [1]_.\n\n.. [1] Below.", ">>> 1 + 1\n2\n\nAfter.\n\nBelow."),
]
HTML = [
    ("<p>One <b>bold</b>\n word &amp; more</p><p>two", "One bold word & more\n\ntwo"),
    (
        "<p>These:</p><ul><li>one<li><p>two</p><ol start=3><li>deep</ol></ul>",
        "These:\n- one\n- two\n  3. deep",
    ),
    (
        "<table><thead><tr><th>A<th>B</thead><tr><td rowspan=2>1<td>2<tr><td>3</table>",
        "A: 1; B: 2\nA: 1; B: 3",
    ),
    ("<table><tr><th>Type:</th><td>int</td></tr></table>", "Type: int"),
    ("<tr><td>1</td><td>2</td></tr>", "1; 2"),
    ("<nav>menu</nav><p>text<footer>mine</footer><p hidden>x<p style='display: none'>y", "text"),
    (
        "<div class='menu main'><ul><li><a>Home</a><li><a>Buy</a></ul></div><div id=toc_2>see "
        "<a>1. Use</a></div><div class='toc'>The list of all modules is in <a>here</a>.</div>",
        "The list of all modules is in here.",
    ),
    ("<div class=navheader><p>A long title <a>Next</a></div><p class=menubar>text", "text"),
    ("<h2>Use<a class=headerlink href=#use>¶</a></h2><p>see <a href=#c>C#</a>", "Use\n\nsee C#"),
    ("<pre>a\n  b</pre>", "a\n  b"),
    ("<dl><dt>term<dd>what it is</dl>", "term: what it is"),
    ("10<sup>6</sup> H<sub>2</sub>O a<sup><a href=#n>1</a></sup>", "10^6 H2O a"),
    (
        '<script type="text/x-handlebars-template"><p>shown</p></script><script>no()</script>',
        "shown",
    ),
    ("{% extends 'a' %}<p>{{ name }}text</p>{{ box({ text: 'Inside' }) }}", "text"),
    (
        "<p>Write <code>{{ name }}</code>, as in</p><pre>{% if a %}\nb</pre><p>{{ c }}d</p>",
        "Write {{ name }}, as in\n\n{% if a %}\nb\n\nd",
    ),
    (
        '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body><p>Seen.</p>',
        "Seen.",
    ),
    ("<p>At <del>nine</del> <s>eight</s> ten <strike>pm</strike> am</p>", "At ten am"),
    (
        "<table><tr><th rowspan=2>City<th colspan=2>Sales<tr><th>Q1<th>Q2"
        "<tr><td>Bonn<td>3<td>4</table>",
        "City: Bonn; Sales Q1: 3; Sales Q2: 4",
    ),
    (
        "<table><tr><td><th>Mon<th>Tue<tr><th>Open<td>9<td>10<tr><th>Shut<td>5<td>6</table>",
        "Open; Mon: 9; Tue: 10\nShut; Mon: 5; Tue: 6",
    ),
    (
        "<table><tr><th>Item<th>EUR<tr><td>Staff<td>9<tr><td>\n &nbsp;&nbsp; Wages<td>7</table>",
        "Item: Staff; EUR: 9\nItem: Staff, Wages; EUR: 7",
    ),
    (
        "<table><tr><th>Plan<th>Backups<tr><td>Free<td><img src=x alt=No>"
        "<tr><td>Pro<td><img src=y alt=Yes></table>",
        "Plan: Free; Backups: No\nPlan: Pro; Backups: Yes",
    ),
]


@pytest.mark.parametrize(("markup", "text"), MARKDOWN)
def test_markdown_is_as_a_person_reads_it(markup, text):
    assert render_document(markup, "markdown").text == text


@pytest.mark.parametrize(("markup", "text"), RST)
def test_restructured_text_is_as_a_person_reads_it(markup, text):
    assert render_document(markup, "rst").text == text


@pytest.mark.parametrize(("markup", "text"), HTML)
def test_html_is_as_a_person_reads_it(markup, text):
    assert render_document(markup, "html").text == text


@pytest.mark.parametrize(
    ("format", "markup", "title"),
    [
        ("markdown", "---\ntitle: 'It''s'\ntags: [a]\n---\n# Other\n", "It's"),
        ("markdown", '+++\ntitle = "Hugo"\n+++\ntext', "Hugo"),
        ("markdown", "# Only\n\n## Low\n", "Only"),
        ("markdown", "# One\n\n# Two\n", "some file"),
        (
            "rst",
            "PEP: 8\nTitle: Style\n Guide\nAuthor: A\n\nAbstract\n========\n\nx\n\nEnd\n===\n",
            "Style Guide",
        ),
        ("rst", ":Title: Field\n\ntext\n", "Field"),
        ("html", "<title>The\npage</title><h1>Other</h1>", "The page"),
        ("text", "---\ntitle: MIT\n---\ntext", "MIT"),
    ],
)
def test_the_title_is_the_one_in_the_file(format, markup, title):
    assert render_document(markup, format, "a/some_file.x").title == title


@pytest.mark.parametrize(
    ("format", "markup"),
    [
        (
            "markdown",
            "---\ntitle: x\n---\n\n# Top\n\nOne\nline.\n\n!!! note\n    Mind.\n\n- a\n- b\n\n| A |\n|---|\n| 1 |\n",
        ),
        ("rst", "Top\n===\n\nOne\nline.\n\n.. note:: Mind.\n\n- a\n- b\n\n::\n\n  code\n"),
        (
            "html",
            "<h1>Top</h1>\n<p>One\nline.\n<ul>\n<li>a\n<li>b</ul>\n<table>\n<tr><td>1<td>2</table>",
        ),
        ("text", "One\nline.\n\n\nOther.\r\n\r\nLast."),
    ],
)
def test_blocks_have_the_lines_that_they_begin_in(format, markup):
    document = render_document(markup, format)
    lines = markup.replace("\r\n", "\n").split("\n")
    for block in document.blocks:
        words = document.text[block.start : block.end].lstrip("- ").split(": ")[-1]
        assert words.split()[0].rstrip(";") in lines[block.line - 1], block


def test_a_part_of_a_file_is_rendered_as_in_the_whole():
    whole = (
        "# Top\n\nSee [the part][p], [it] and a `x[0][1]`.\n\n[p]: http://a.b\n[it]: http://c.d\n"
    )
    part = "See [the part][p], [it] and a `x[0][1]`."
    text = render_fragment(part, "markdown", whole)
    assert text == "See the part, it and a x[0][1]."
    assert text in render_document(whole, "markdown").text
    assert render_fragment("Only [the part][p].", "markdown") == "Only the part."


@given(
    st.sampled_from(sorted(MARKUPS)),
    st.text(alphabet="ab \n\t#*_-=+|`:.<>/[](){}&;!\\\"'1\0\u00e9", max_size=300),
)
def test_any_text_is_rendered(format, markup):
    document = render_document(markup, format)
    ends = 0
    for block in document.blocks:
        assert ends <= block.start < block.end <= len(document.text)
        assert document.text[block.start : block.end].strip()
        ends = block.end
    assert [document.text[h.start : h.start + 1] for h in document.headings].count("") == 0
