"""What the figures in the README and docs/benchmarks come from; not part of the installation."""
