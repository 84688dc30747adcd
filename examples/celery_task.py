"""Asks the QA server from a Celery task: `celery -A celery_task worker`, in this folder.

`python -c "from celery_task import ask; print(ask.delay('Who did?', 'Ada did.').get())"` uses it.
"""

import os

from celery import Celery, Task

from qa_service.client import QaClient, QaClientError

app = Celery("qa", broker=os.environ.get("QA_BROKER_URL", "amqp://localhost//"), backend="rpc://")
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)
client = QaClient(os.environ.get("QA_HOST", "localhost"), int(os.environ.get("QA_PORT", "9999")))


@app.task(bind=True, max_retries=5)
def ask(self: Task, question: str, text: str) -> dict:
    """Asks with the lowest priority; what may succeed later is tried again later."""
    try:
        return client.ask(question, text, priority=0).response
    except QaClientError as error:
        if not error.retryable:
            raise
        raise self.retry(exc=error, countdown=1) from error
