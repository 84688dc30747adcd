"""How questions are asked, whoever types them: how many answers are wanted, and of which model."""

from __future__ import annotations

from dataclasses import dataclass

from qa_service.client import Answer, QaClient


@dataclass(frozen=True, slots=True)
class Asking:
    """What all questions of a program have in common.

    Attributes:
        top_k: How many answers to show, the best first.
        model: A model or a route; None leaves it to the server.
        version: The number or label of a model's version; None leaves it to the server.
    """

    top_k: int = 1
    model: str | None = None
    version: str | None = None

    def ask(self, client: QaClient, question: str, text: str) -> Answer:
        """Asks a question.

        Raises:
            QaClientError: There was no answer.
        """
        return client.ask(question, text, top_k=self.top_k, model=self.model, version=self.version)
