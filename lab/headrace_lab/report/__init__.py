"""What is made of results: a page with plots, and comparisons."""
