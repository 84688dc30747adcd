"""`--check`: what a start would find, without a start; what a person pastes into a report.

A part a module: each yields findings, and none ends the others. Nothing is changed, no secret is
printed, and nothing is asked.
"""
