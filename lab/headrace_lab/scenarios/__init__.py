"""What is asked of a run: the form of a scenario, and the ones that come with the lab."""
