"""Measures a running OpenAI-compatible server, speculation against its own baseline."""
