"""Outrider: exact speculative decoding, split into gRPC services."""

__version__ = "0.1.0"
