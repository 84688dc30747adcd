"""Trees of documents in archives, `GROUP/docs_TREE.tar.gz`, unpacked, read and indexed once.

markup ─▶ a format's reader ─▶ blocks ─▶ `layout`: text, headings, places
"""

from __future__ import annotations

import functools
import logging
import tarfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from qa_service.retrieval.build import IndexArgs, Reporter, build
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.documents import Document, ReadLimits, UnreadableError
from qa_service.retrieval.encoder_folder import DEFAULT_ENCODER, SharedEncoder
from qa_service.retrieval.files import find_files, format_of
from qa_service.retrieval.formats import FORMATS, parse
from qa_service.retrieval.layout import lay_out
from qa_service.retrieval.manifest import MANIFEST_FILE
from qa_service.retrieval.passages import cut
from qa_service.retrieval.search_messages import read_text
from qa_service.retrieval.writing import EmptyError

_LOG = logging.getLogger(__name__)
FOUND = 10
"""How many passages are looked at for some without an answer."""


def render_document(markup: str, format: str, name: str = "") -> Document:
    """A file's markup as a document.

    Args:
        format: A key of `MARKUPS` ("markdown", "rst", "html", "text"), or a file's name or ending.
        name: What the document is called; its title, where the markup has none.
    """
    return lay_out(parse(markup, format), name)


def render_fragment(markup: str, format: str, whole: str = "") -> str:
    """A part of a file, as it stands in the whole document's text.

    Args:
        format: As for `render_document`.
        whole: The file that it is from, for the definitions of links and substitutions.
    """
    return lay_out(parse(textwrap.dedent(markup), format, whole), "").text


class Tree:
    """The documents of a tree, and their collection.

    Args:
        index: For the collection, made once.
        encoder: Embeds passages and questions; if it is not prepared, they are found by words.
    """

    def __init__(self, folder: Path, index: Path, encoder: Path = DEFAULT_ENCODER) -> None:
        self._folder = folder
        self._index = index
        self._encoder = encoder
        self._documents: dict[str, Sequence[Document]] = {}
        if not (index / MANIFEST_FILE).exists():
            has_encoder = (encoder / MANIFEST_FILE).exists()
            args = IndexArgs(
                sources=(folder,), output=index, encoder=encoder, embeddings=has_encoder
            )
            build(args, Reporter())

    @functools.cached_property
    def _collection(self) -> Collection:
        return Collection(self._index, SharedEncoder(self._encoder))

    def documents(self, name: str) -> Sequence[Document]:
        """The documents of a file, cut as the server has them; of most files one.

        Raises:
            UnreadableError: It cannot be read.
        """
        if name not in self._documents:
            found = _documents(self._folder / name, name)
            self._documents[name] = [
                msgspec.structs.replace(its, passages=tuple(cut(its))) for its in found
            ]
        return self._documents[name]

    def has(self, name: str) -> bool:
        """Whether it has a document of this name that can be read; also if there is none."""
        if name and (self._folder / name).is_file():
            try:
                self.documents(name)
            except UnreadableError as error:
                _LOG.warning("%s", error)
                return False
        return not name or name in self._documents

    def files(self) -> list[str]:
        return [file.name for file in find_files([self._folder], self._index).files]

    def found(self, question: str) -> list[str]:
        """What the reader is given of the passages that match a question best."""
        passages = (its.passage for its in self._collection.search(question, FOUND))
        return [read_text(its.title, its.heading, its.text).text for its in passages]


def _documents(path: Path, name: str) -> list[Document]:
    """What a file holds; one of no known kind is plain text."""
    if not (kind := format_of(name)):
        return [render_document(path.read_text("utf-8", errors="replace"), "text", name)]
    with path.open("rb") as file:
        found = FORMATS[kind](file, name, ReadLimits().max_file_bytes)
        return [its for its in found if isinstance(its, Document)]


def _archive_name(tree: str) -> str:
    return f"docs_{tree}.tar.gz"


def archives_of(tree: str, data: Path, group: str) -> list[Path]:
    """The archives of a tree that are there: its group's, and those of other groups."""
    name = _archive_name(tree)
    found = [data / group / name, *sorted(data.glob(f"*/{name}"))]
    return list(dict.fromkeys(path for path in found if path.exists()))


def missing_trees(trees: Iterable[str], data: Path, group: str) -> Counter[str]:
    """The archives that are not there, and how many questions are of each."""
    return Counter(
        {
            _archive_name(tree): count
            for tree, count in Counter(trees).items()
            if not archives_of(tree, data, group)
        }
    )


def open_tree(archive: Path, work: Path) -> Tree | None:
    """Unpacks `docs_TREE.tar.gz` in a folder for this, once, and indexes it.

    Returns:
        None if the tree has no file that can be read.
    """
    name = archive.name.removeprefix("docs_").removesuffix(".tar.gz")
    folder, index = (work / kind / archive.parent.name / name for kind in ("trees", "indexes"))
    if not folder.exists():
        folder.mkdir(parents=True)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    inner = folder / name
    try:
        return Tree(inner if inner.is_dir() else folder, index)
    except EmptyError as error:
        _LOG.warning("%s: %s", archive, error)
        return None


class Trees:
    """The trees of a folder of groups, each opened when it is first asked for.

    Args:
        data: A folder of groups with `docs_TREE.tar.gz` in each.
    """

    def __init__(self, data: Path, work: Path) -> None:
        self._data, self._work = data, work
        self._open: dict[Path, Tree | None] = {}

    def of(self, name: str, document: str, group: str) -> Tree | None:
        """The tree of a name that has a document, best in a group; None if none has it."""
        for archive in archives_of(name, self._data, group):
            if archive not in self._open:
                self._open[archive] = open_tree(archive, self._work)
            tree = self._open[archive]
            if tree and tree.has(document):
                return tree
        return None
