"""Asking a server from asyncio: `AsyncQaClient`, and the connections that `jobs.py` shares with it.

What is always true: questions are pipelined on a connection, each under an id that is never used
twice; each ends with its reply, an error or its task's cancellation; a late reply to a question
that was given up is dropped. Which server is asked, and when again, `qa_service/client.py` says.
"""

from qa_service.aio.client import AsyncQaClient

__all__ = ["AsyncQaClient"]
