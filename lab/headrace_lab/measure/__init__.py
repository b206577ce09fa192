"""What one can say about a run: measures, their statistics, and what is wrong with a server."""
