"""Structs that pass between processes and steps. Needs no torch, and imports no other part of the engine."""
