"""What the events of an answer say, in the words of each API."""
