"""The servers that are compared, and proxies that are wrong on purpose."""
