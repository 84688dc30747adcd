"""A simulated machine."""
