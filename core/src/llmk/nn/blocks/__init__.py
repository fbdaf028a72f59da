"""The blocks of models, built from the specs of :mod:`llmk.tree`."""
