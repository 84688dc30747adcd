"""Asks a server from asyncio: `AsyncQaClient`, and the connections that `jobs.py` shares with it.

Questions are pipelined on a connection, each under an id that is used once. Each ends with its
reply, an error or its task's cancellation; a late reply to an abandoned question is dropped. Which
server is asked, and when again, `qa_service/client.py` decides.
"""

from qa_service.aio.client import AsyncQaClient

__all__ = ["AsyncQaClient"]
