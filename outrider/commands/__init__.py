"""The subcommands of `outrider`, one file each; what is slow to import is imported when it runs."""
