"""Clients in Python: what a token costs each, and how each takes many streams."""
