"""What is measured against peers, by one command: `python -m bench`; `make bench` runs all of it.

In: this machine, and this clone of the repository. Out: `lab/bench/results/` and `docs/measurements.md`.
Each benchmark is a file in `gateway/`, `client/` or `network/` and is run by its name: `python -m bench
first_token`."""
