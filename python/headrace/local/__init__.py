"""The local model: a model server that headrace starts itself."""
