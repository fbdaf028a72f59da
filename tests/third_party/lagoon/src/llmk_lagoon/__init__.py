"""One plugin of each kind, written from the documentation alone."""
