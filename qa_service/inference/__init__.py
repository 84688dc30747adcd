"""A worker's side: the program it runs, the engines, and the reader around them.

Only here are numpy, tokenizers and the engines' libraries loaded; the loop's process imports no
more of it than the engines' names.
"""
