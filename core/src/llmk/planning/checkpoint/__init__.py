"""A checkpoint: the files of a folder, and what its JSON may say."""
