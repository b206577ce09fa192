"""Clients that measure: each speaks one protocol, and stamps what it reads at the moment it reads it.

`workload` runs the clients of a scenario and `load` a plain load, each in a process of its own. This room
must not know what is made of the logs.
"""
