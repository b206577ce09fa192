"""A scenario being run: each cell from nothing to its measures, and what one sees meanwhile."""
