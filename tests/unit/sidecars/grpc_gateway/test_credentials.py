"""The certificates of the gRPC port, read again."""

import pytest

pytest.importorskip("grpc")

from harness.process import wait_until
from qa_service.sidecars.grpc_gateway.grpc_server import Credentials
from tests.certificates import Certificates


def test_certificates_stay_in_use_until_better_ones_are_read(tmp_path, caplog):
    its = Certificates(tmp_path)
    credentials = Credentials(its.cert, its.key, None)
    first = credentials._latest
    its.cert.write_text("no certificate")
    credentials.reload()
    wait_until(lambda: "certificates are unchanged: --tls_cert" in caplog.text)
    assert credentials._latest is first
    Certificates(tmp_path)  # in the same files
    credentials.reload()
    wait_until(lambda: credentials._latest is not first)
