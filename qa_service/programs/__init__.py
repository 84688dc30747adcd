"""The command line programs: the client; jobs and load are packages.

They know the wire and the clients, never the server, and nothing imports them. `client_main` and
its imports need only the standard library, so it runs where nothing is installed.
"""
