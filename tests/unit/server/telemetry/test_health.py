"""Whether a server is ready: only while it serves, and if one instance answers."""

import pytest

from qa_service.server.telemetry.health import why_not_ready


@pytest.mark.parametrize(
    ("phase", "alive", "answering", "why"),
    [
        *(("serving", alive, answering, None) for alive, answering in ((1, 1), (2, 1), (9, 9))),
        *((phase, alive, alive, f"the server is {phase}")
          for phase in ("starting", "draining", "stopping") for alive in (0, 1)),
        ("serving", 0, 0, "no instance is alive"),
        *(("serving", alive, 0, "no instance has answered for 10 s") for alive in (1, 2)),
    ],
)  # fmt: skip
def test_a_server_is_ready_while_it_serves_with_an_instance_that_answers(
    phase, alive, answering, why
):
    assert why_not_ready(phase, alive, answering) == why
