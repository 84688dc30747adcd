"""What people type: the client, and beside it jobs and load, each a room.

They know the wire and the clients, never the server, and nothing imports them. `client_main` and
its imports need only the standard library, so it runs where nothing is installed.
"""
