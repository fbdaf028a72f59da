"""The contracts of plugins that take part in choosing tokens: logits processors, grammars and speculators."""
