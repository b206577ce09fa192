"""The gateway before model servers. Read `app.py` first: one request, top to bottom."""

from headrace.gateway.app import Gateway

__all__ = ["Gateway"]
