"""A model's process: its program, the engines, the reader; and what it and the loop share.

Shared are the channel, its messages, options, devices and costs: none of these loads numpy,
tokenizers or an engine's library, which only this process does.

Where an instance cannot start, it is a `SetupError` that says why; a `DeviceError` where another
device might do; an `EngineFaultError` where nothing that the engine returns can be believed.
"""
