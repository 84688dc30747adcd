"""The site of documents."""

import pytest

from harness.server import ROOT
from harness.site import gather
from tests.programs import run_python

pytest.importorskip("mkdocs", reason="no MkDocs: pip install '.[docs]'")
pytestmark = pytest.mark.slow


def test_the_site_is_built_without_a_warning_and_has_the_clients_reference(tmp_path):
    gather(tmp_path / "pages")
    config = (ROOT / "mkdocs.yml").read_text()
    config = config.replace("build/pages", "pages").replace("build/site", "site")
    (tmp_path / "mkdocs.yml").write_text(config.replace("paths: [.]", f"paths: ['{ROOT}']"))
    done = run_python("-m", "mkdocs", "build", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "docs" / "API" / "index.html").read_text()
    for name in ("QaClient.ask", "AsyncQaClient.ask", "AskOptions", "QaServerError"):
        assert f".{name}" in page, name
