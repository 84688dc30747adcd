"""Options as structs, on a tree of its own: any room may add to the server's."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from qa_service.options import OptionError, from_toml, options_of, sections_of, to_toml, with_values


class Pool(Struct, frozen=True, kw_only=True):
    """Workers."""

    size: Annotated[int, Meta(ge=1, le=9, description="worker processes")] = 2
    share: Annotated[float, Meta(gt=0, le=1, description="share of the memory")] = 0.5
    kind: Annotated[Literal["thread", "process"], Meta(description="what they are")] = "process"
    is_pinned: Annotated[bool, Meta(description="whether each has its own core")] = True


class Page(Struct, frozen=True, kw_only=True):
    """A page."""

    title: Annotated[str, Meta(min_length=1, description="its heading")] = "QA"
    file: Annotated[Path | None, Meta(description="a file")] = None


class Model(Pool, frozen=True, kw_only=True):
    """One model: all that a pool has, and where it is."""

    path: Annotated[Path, Meta(description="a file")]
    labels: dict[str, int] = {}


class Tree(Struct, frozen=True, kw_only=True):
    pool: Pool = Pool()
    page: Page = Page()
    models: dict[str, Model] = {}


def read(text: str) -> Tree:
    return from_toml(Tree, tomllib.loads(text))


def test_a_tables_keys_replace_the_defaults():
    tree = read('[pool]\nsize = 3\nshare = 1\n[page]\nfile = "p.html"')
    assert tree == Tree(pool=Pool(size=3, share=1.0), page=Page(file=Path("p.html")))


def test_flags_are_the_options_of_the_plain_sections():
    assert list(sections_of(Tree)) == ["pool", "page"]
    names = [option.name for option in options_of(Tree)]
    assert names == ["size", "share", "kind", "is_pinned", "title", "file"]


def test_an_options_expected_value_is_described_by_its_type():
    assert {option.name: option.expected for option in options_of(Tree)} == {
        "size": "an integer from 1 to 9",
        "share": "a number above 0 and up to 1",
        "kind": "one of thread, process",
        "is_pinned": "true or false",
        "title": "a string of one character or more",
        "file": "a path",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pool]\nsize = 0", "[pool] size: 0 is not an integer from 1 to 9"),
        ("[pool]\nsize = true", "[pool] size: true is not an integer from 1 to 9"),
        ('[pool]\nsize = "2"', '[pool] size: "2" is not an integer from 1 to 9'),
        ("[pool]\nshare = 0", "[pool] share: 0 is not a number above 0 and up to 1"),
        ("[pool]\nshare = nan", "[pool] share: NaN is not a number above 0 and up to 1"),
        ('[pool]\nkind = "fiber"', '[pool] kind: "fiber" is not one of thread, process'),
        ('[pool]\nis_pinned = "yes"', '[pool] is_pinned: "yes" is not true or false'),
        ('[page]\ntitle = ""', '[page] title: "" is not a string of one character or more'),
        ('[page]\nfile = ""', '[page] file: "" is not a path'),
        ("[page]\nfile = 07:32:00", '[page] file: "07:32:00" is not a path'),
        ('[page]\nfile = "a\\u0000b"', '[page] file: "a\\u0000b" holds a NUL character'),
        ('[page]\ntitle = "\\u0000"', '[page] title: "\\u0000" holds a NUL character'),
        (
            "[pool]\nsize = 0x" + "f" * 5000,
            "[pool] size: a very long int is not an integer from 1 to 9",
        ),
        (
            "[pool]\nsize = " + "9" * 4000,
            f"[pool] size: {'9' * 120}… is not an integer from 1 to 9",
        ),
        ("[page]\ntilte = 1", "[page] has no key tilte; did you mean title?"),
        ("[page]\nsize = 3", "[page] has no key size; it belongs in [pool]"),
        ("size = 3", "there is no section size; it belongs in [pool]"),
        ("[pag]", "there is no section pag; did you mean page?"),
        ("[x]", "there is no section x; known are pool, page, models"),
        ("page = 3", "page: 3 is not a table of keys"),
        ("models = 3", "models: 3 is not a table of tables"),
        ("[models]\ntiny = 3", "models.tiny: 3 is not a table of keys"),
        ("[models.tiny]\nsize = 3", "[models.tiny] needs path"),
        (
            '[models.tiny]\npath = "p"\nsize = 10',
            "[models.tiny] size: 10 is not an integer from 1 to 9",
        ),
    ],
)
def test_a_fault_is_named_with_its_place_and_its_bound(text, message):
    with pytest.raises(OptionError) as raised:
        read(text)
    assert str(raised.value) == message


def test_several_tables_of_one_kind_are_read_by_name():
    tree = read('[models.tiny]\npath = "p"\nsize = 1\n[models."a b"]\npath = "q"')
    tiny = Model(path=Path("p"), size=1)
    assert tree.models == {"tiny": tiny, "a b": Model(path=Path("q"))}


def test_values_by_name_are_checked_too():
    assert with_values(Tree(), {"size": 4, "title": "Stats"}).pool.size == 4
    with pytest.raises(OptionError, match=r"4\.5 is not an integer from 1 to 9"):
        with_values(Tree(), {"size": 4.5})
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(OptionError, match="a very long list is not a path"):
        with_values(Tree(), {"file": nested})
    with pytest.raises(OptionError, match="it is not UTF-8"):
        with_values(Tree(), {"title": "\udcff"})
    with pytest.raises(OptionError, match="there is no option sizes"):
        with_values(Tree(), {"sizes": 4})


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
POOLS = {
    "size": st.integers(1, 9),
    "share": st.floats(0, 1, exclude_min=True),
    "kind": st.sampled_from(["thread", "process"]),
    "is_pinned": st.booleans(),
}
MODELS = st.builds(
    Model, path=TEXT.map(Path), labels=st.dictionaries(TEXT, st.integers(0, 99)), **POOLS
)
TREES = st.builds(
    Tree,
    pool=st.builds(Pool, **POOLS),
    page=st.builds(Page, title=TEXT, file=st.none() | TEXT.map(Path)),
    models=st.dictionaries(TEXT, MODELS, max_size=3),
)


@given(TREES)
def test_written_options_are_read_back_equal(tree):
    assert read(to_toml(tree)) == tree
