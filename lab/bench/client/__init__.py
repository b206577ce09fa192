"""What clients cost, and what they do when HTTP/3 is not to be had."""
