import pytest

from qa_service.preparation.sources import Source


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]")
    (folder / "model.safetensors").write_bytes(b"weights")
    return Source("tiny", "tiny", folder)
