"""Word's documents, written as the parts that they consist of."""

import io
import zipfile

_NAMES = (
    " ".join(
        f'xmlns:{prefix}="http://schemas.{address}"'
        for prefix, address in {
            "w": "openxmlformats.org/wordprocessingml/2006/main",
            "m": "openxmlformats.org/officeDocument/2006/math",
            "r": "openxmlformats.org/officeDocument/2006/relationships",
            "mc": "openxmlformats.org/markup-compatibility/2006",
            "wps": "microsoft.com/office/word/2010/wordprocessingShape",
            "a": "openxmlformats.org/drawingml/2006/main",
            "wp": "openxmlformats.org/drawingml/2006/wordprocessingDrawing",
        }.items()
    )
    + ' xmlns:v="urn:schemas-microsoft-com:vml"'
)
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPES = "application/vnd.openxmlformats-officedocument.wordprocessingml"


def word_file(body: str, **parts: str) -> bytes:
    """A document of a body's elements, and of other parts' (`styles`, `numbering`, `footnotes`)."""
    parts = {"document": f"<w:body>{body}</w:body>", **parts}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        overrides = "".join(
            f'<Override PartName="/word/{name}.xml" ContentType="{_TYPES}.'
            f'{"document.main" if name == "document" else name}+xml"/>'
            for name in parts
        )
        archive.writestr(
            "[Content_Types].xml",
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            '<Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Default Extension="xml" ContentType="application/xml"/>{overrides}</Types>',
        )
        archive.writestr("_rels/.rels", _relations({"officeDocument": "word/document.xml"}))
        others = {name: f"{name}.xml" for name in parts if name != "document"}
        archive.writestr("word/_rels/document.xml.rels", _relations(others))
        for name, text in parts.items():
            archive.writestr(f"word/{name}.xml", f"<w:{name} {_NAMES}>{text}</w:{name}>")
    return data.getvalue()


def _relations(targets: dict[str, str]) -> str:
    entries = "".join(
        f'<Relationship Id="r{n}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for n, (kind, target) in enumerate(targets.items())
    )
    return f'<Relationships xmlns="{_RELATIONS}">{entries}</Relationships>'


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(content: str, *properties: str) -> str:
    """A paragraph of runs, or of a text."""
    inner = content if content.startswith("<") else run(content)
    return f"<w:p><w:pPr>{''.join(properties)}</w:pPr>{inner}</w:p>"


def cell(content: str, *properties: str) -> str:
    """A table's cell of blocks, or of a text."""
    inner = content if content.startswith("<") else paragraph(content)
    return f"<w:tc><w:tcPr>{''.join(properties)}</w:tcPr>{inner}</w:tc>"


def row(*cells: str, properties: str = "") -> str:
    inner = "".join(one if one.startswith("<") else cell(one) for one in cells)
    return f"<w:tr><w:trPr>{properties}</w:trPr>{inner}</w:tr>"


def table(*rows: str) -> str:
    return f"<w:tbl><w:tblPr/><w:tblGrid/>{''.join(rows)}</w:tbl>"
