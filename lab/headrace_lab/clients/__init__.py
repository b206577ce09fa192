"""Clients that measure: each speaks one protocol, and stamps what it reads when it reads it."""
