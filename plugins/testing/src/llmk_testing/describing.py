"""A checkpoint's model, as a family describes it."""

from __future__ import annotations

from llmk.api import Checkpoint, ModelFacts, ModelSpec
from llmk.kernel.loader import load_object
from llmk.tree import Config, Program, lower, model_facts


def program_of(spec: ModelSpec, checkpoint: Checkpoint) -> Program:
    """The lowered tree of a family that gives one. What the family raises is not wrapped."""
    return lower(load_object(spec.tree, plugin=spec.id)(Config(checkpoint)))


def facts_of(spec: ModelSpec, checkpoint: Checkpoint) -> ModelFacts:
    """The facts of the family's tree, or those that its ``describe`` returns. What the family raises is not wrapped."""
    if not spec.tree:
        facts: ModelFacts = load_object(spec.describe, plugin=spec.id)(checkpoint)
        return facts
    return model_facts(program_of(spec, checkpoint), Config(checkpoint))
