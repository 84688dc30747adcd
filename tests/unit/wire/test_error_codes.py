"""The errors in other protocols than frames."""

from __future__ import annotations

from qa_service.errors import ERROR_KINDS, DuplicateIdError, HttpError, UnauthorizedError
from qa_service.wire.error_codes import ERRORS, grpc_code_of, header_fields_of, status_of


def test_each_kind_has_a_row():
    assert ERRORS.keys() == ERROR_KINDS.keys()


def test_an_id_twice_is_the_clients_fault():
    assert status_of(DuplicateIdError()) == 400
    assert grpc_code_of(DuplicateIdError()) == "INVALID_ARGUMENT"


def test_an_http_errors_status_and_fields_are_its_own():
    error = HttpError(status=405, fields={"Allow": "GET"})
    assert (status_of(error), header_fields_of(error)) == (405, {"Allow": "GET"})
    assert header_fields_of(UnauthorizedError()) == {"WWW-Authenticate": "Bearer"}
