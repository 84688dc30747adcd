"""A small collection of documents, and questions that its documents answer."""

from __future__ import annotations

from pathlib import Path

from qa_service.retrieval.build import IndexArgs, Reporter, build

DOCUMENTS = {
    "machines/analytical.md": (
        "# The Analytical Engine\n\nCharles Babbage designed the Analytical Engine in London. "
        "Ada Lovelace wrote the notes on it in 1843.\n\n## Parts\n\nThe engine had a mill and a "
        "store. The mill did the arithmetic, and the store held a thousand numbers.\n"
    ),
    "machines/loom.txt": (
        "The Jacquard loom was patented by Joseph Marie Jacquard in 1804. "
        "Punched cards told the loom which threads to lift.\n"
    ),
    "people/hopper.txt": (
        "Grace Hopper wrote the first compiler in 1952, and served in the United States Navy. "
        "😀 She found a moth in a relay.\n"
    ),
}
ANSWERS = {
    "Who wrote the notes on the Analytical Engine?": ("Ada Lovelace", "machines/analytical.md"),
    "Who patented the Jacquard loom?": ("Joseph Marie Jacquard", "machines/loom.txt"),
    "Who wrote the first compiler?": ("Grace Hopper", "people/hopper.txt"),
}


def write_documents(folder: Path, documents: dict[str, str] = DOCUMENTS) -> Path:
    for name, text in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def index(folder: Path, output: Path, *, update: bool = False, encoder: Path | None = None) -> Path:
    """Makes a collection of a folder, or brings one up to date; with an encoder's embeddings."""
    args = IndexArgs(
        sources=(folder,),
        output=output,
        update=update,
        embeddings=encoder is not None,
        encoder=encoder,
    )
    build(args, Reporter())
    return output
