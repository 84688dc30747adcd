"""The pieces of `stress_test.py`: clients that make load, and a report of how it went."""
