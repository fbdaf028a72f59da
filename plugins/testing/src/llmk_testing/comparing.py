"""Compares logits and reports where they differ."""

from __future__ import annotations

from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of ``expected``."""
    return float((found - expected).norm() / expected.norm())


def typical_error(found: Tensor, expected: Tensor) -> float:
    """The lower quartile over tokens of the relative error of logits ``[tokens, vocab]``. After rounding, a router may
    choose other experts for some tokens: errors of these, and of later tokens that attend to them, say nothing about
    the arithmetic."""
    return float(_errors(found, expected).quantile(0.25))


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """The relative error of each token."""
    errors: Tensor = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    return errors


def check_logits(found: Tensor, expected: Tensor, tolerance: float, what: str) -> str:
    """Raises ``AssertionError`` if the relative error of logits ``[tokens, vocab]`` exceeds ``tolerance``, and names
    the first token at which it does; otherwise returns the error. ``what`` describes the comparison and its seed."""
    assert found.shape == expected.shape, f"{what}: logits {list(found.shape)}, expected {list(expected.shape)}"
    found, expected = found.cpu(), expected.cpu()
    each = _errors(found, expected)
    error = relative_error(found, expected)
    if error <= tolerance:
        return f"relative error {error:.1e}"
    wrong = (~(each <= tolerance)).nonzero()
    first = int(wrong[0]) if len(wrong) else int(each.argmax())
    raise AssertionError(
        f"{what}: relative error {error:.1e}, at most {tolerance:.0e} is allowed; {len(wrong)} of {len(each)} tokens"
        f" differ, the first at position {first} ({float(each[first]):.1e})"
    )
