"""What is made of results: a page with plots, and comparisons.

In: result files. Out: HTML, SVG, Markdown. This room must not know how a result came about.
"""
