"""Replays recorded traffic through proposers, and says what speculation would be worth on it."""
