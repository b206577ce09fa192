"""What is asked of a run: the form of a scenario, and the scenarios that come with the lab.

This room must not know how a scenario is run.
"""
