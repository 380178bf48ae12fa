"""Tool calls: what a request may offer, what holds the answer to a call, and what reads it."""
