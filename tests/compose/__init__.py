"""The containers, for real: `make compose-test`. Not pytest's: it needs a Docker engine."""
