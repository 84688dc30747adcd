"""The site of documents."""

import subprocess
import sys

import pytest

from harness.server import ROOT
from harness.site import gather

pytest.importorskip("mkdocs", reason="no MkDocs: pip install '.[docs]'")
pytestmark = pytest.mark.slow


def test_the_site_is_built_without_a_warning_and_has_the_clients_reference(tmp_path):
    gather(tmp_path / "pages")
    config = (ROOT / "mkdocs.yml").read_text()
    config = config.replace("build/pages", "pages").replace("build/site", "site")
    (tmp_path / "mkdocs.yml").write_text(config.replace("paths: [.]", f"paths: ['{ROOT}']"))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "docs" / "API" / "index.html").read_text()
    for name in ("QaClient.ask", "AsyncQaClient.ask", "AskOptions", "QaServerError"):
        assert f".{name}" in page, name
