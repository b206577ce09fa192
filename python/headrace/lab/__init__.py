"""The lab: what stands in for a model, a network and a crowd when something is to be measured or broken."""
