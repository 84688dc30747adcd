"""From a question and its text to windows of tokens, and from logits to answers."""
