"""What clients store, in a database: responses, conversations, files and batches."""
