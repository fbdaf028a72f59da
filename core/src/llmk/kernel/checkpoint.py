"""Reading checkpoints is part of what plugin authors need, and stands in :mod:`llmk.api`; this is where the start reads one."""

from llmk.api.checkpoint import read_checkpoint

__all__ = ["read_checkpoint"]
