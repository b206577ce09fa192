"""What the gateway costs, and what it does with what it is told."""
