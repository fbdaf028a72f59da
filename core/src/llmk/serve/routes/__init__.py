"""The routes, a file per subject."""
