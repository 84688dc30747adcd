"""A model's process: its program, the engines, the reader; and what it and the loop share.

Shared are the channel, its messages, options, devices and costs: none of these loads numpy,
tokenizers or an engine's library, which only this process does.
"""
