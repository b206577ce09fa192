"""The lab: what stands in for a model, a network and a crowd when something is to be measured or broken.

Rooms, each of which may import those before it: `link` (a network), `model` (a model server), `clients` (what
asks), `measure` (what is counted), `peers` (servers that are compared), `scenarios` (what is asked of a run),
`run` and `report`. `headrace_lab.cli` is the command line, `headrace lab`.
"""
