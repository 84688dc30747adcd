"""A simulated machine: the real server on one thread, with everything around it made up.

After FoundationDB's simulation and TigerBeetle's. `QaServer` runs as it is: connections, codecs,
services, scheduler, pool, reconciliation, drain, and the real event loop, streams and listener.
Simulated are what they stand on: time and the selector (`world`), sockets (`network`), processes of
workers (`workers`) and of searches (`searching`), the folders of models, signals; and the clients
(`clients`, `wires`). One seed draws a configuration, clients and a list of events (`scenario`,
`events`): questions, pipelined, in pieces, cancelled; slow readers; workers that are slow, hang,
die, cannot start or send nonsense; damaged collections; reloads, swaps, drains; a pause of the
server, alone or with its machine (`pausing`). A minute of the server takes a few milliseconds.

Some seeds have the gRPC gateway, as it is but for grpcio (`gateway`): asyncio's own loop runs it,
in the simulated time and on simulated sockets (`asyncio_loop`). Calls and streams of drawn peers
and tokens (`grpc_calls`, `grpc_drawing`) are cancelled and have deadlines; the gateway is killed,
pauses, and loses links.

`checks` sees what clients see: each request is answered once, with the answer that can only be its
own, or with an error that has a cause; no connection is closed without a reason. `run` looks after
every step whether bounds are kept, and at the end whether all is answered, every planned version
serves, and nothing is held. Each 25th seed measures shares instead. `inside` has all that looks
into the server, `inside_gateway` all that looks into the gateway.

    .venv/bin/python -m tests.simulation --seeds 0:1000     runs seeds
    .venv/bin/python -m tests.simulation --seed 123         runs one; if it fails, leaves out what
                                                            events it can (`shrink`), and prints it
    ... --seed 123 --log debug                              with the server's log, in simulated time
"""
