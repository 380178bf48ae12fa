"""The page at `/dashboard` and the feed it lives on."""
