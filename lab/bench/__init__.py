"""What is measured against peers. `make bench` runs all of it; results are kept in `bench/results/`."""
