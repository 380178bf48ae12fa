"""Recorded rounds, and the controller's decisions replayed over them without a model."""
