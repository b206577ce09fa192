"""What `headrace.httpx2` and `headrace.httpx` share: transports that speak HTTP/3 for a family of clients."""
