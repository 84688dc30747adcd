"""A service of your own between a connection and the instances; see docs/ARCHITECTURE.md.

It rounds the scores of the answers. A line in `qa_service/server/services/chain.py` adds it:

    service = RoundedScores(service)
"""

from __future__ import annotations

from msgspec.structs import replace

from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.service import Service
from qa_service.wire.messages import Answered


class RoundedScores:
    """Passes calls on, and looks at their answers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def submit(self, call: Call) -> None:
        """Takes a call, which will be settled once, later."""
        call.then(self._round)
        self._service.submit(call)

    def _round(self, outcome: Outcome) -> Outcome | None:
        if not isinstance(outcome, Answered):
            return None
        answers = [replace(answer, score=round(answer.score, 2)) for answer in outcome.answers]
        return replace(outcome, answers=answers)
