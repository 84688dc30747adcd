"""The worker's program, the engines, and the reader around them.

Only this package loads numpy, tokenizers and the engines' libraries; the loop's process does not.
"""
