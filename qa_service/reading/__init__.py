"""Tokens and windows in, answer spans out: what every engine shares."""
