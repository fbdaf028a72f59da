"""The choices that are made by name or by the checkpoint alone: platform, model, parsers, policy, grammars, drafts."""
