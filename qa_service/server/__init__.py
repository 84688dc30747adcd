"""The loop's process: one thread that waits for sockets and timers, and runs no model.

`main` reads the configuration (`config`), `life_cycle` starts, drains and ends the server, and
`deployment` keeps what is served as the configuration has it. The other rooms know none of these:
calls go from `front` through `services` to `instances`, and marks bring changes to `life_cycle`.
"""
