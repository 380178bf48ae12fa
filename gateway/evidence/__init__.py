"""What traces and metrics say about acceptance: received, kept, aggregated and shown."""
