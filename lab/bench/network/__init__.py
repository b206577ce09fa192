"""What happens on paths with a delay, with losses, and when they change."""
