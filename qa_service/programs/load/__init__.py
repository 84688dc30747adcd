"""The parts of `stress_test.py`: clients that make load, and the report."""
