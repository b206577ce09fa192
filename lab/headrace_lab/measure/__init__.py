"""What can be said about a run: measures, whether they count, their statistics, and what is wrong with a
server.

In: logs of clients, of the model and of the link. Out: numbers and sentences. This room must not know how
a run is made.
"""
