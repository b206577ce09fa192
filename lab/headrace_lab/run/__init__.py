"""A scenario that is run: each cell from nothing to its measures, and what is shown meanwhile.

This room must not know how results are drawn.
"""
