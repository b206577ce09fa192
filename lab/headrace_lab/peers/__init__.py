"""The servers that are compared, and proxies that are wrong on purpose.

In: an upstream. Out: a server before it, in a process of its own. This room must not know what is measured.
"""
