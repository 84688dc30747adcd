"""The pool of inference sessions: how the loop starts them, feeds them, and replaces them."""
