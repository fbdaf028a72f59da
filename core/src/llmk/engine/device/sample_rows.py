"""The rows of a step at which tokens are sampled."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class SampleRows:
    """Rows that are sampled. A slot stands once per sampled position, in the order of positions.

    Attributes:
        slots: the batch slot of each row.
        index: the same, int64 ``[rows]`` on the device.
        fewest, most: bounds of ``known`` that the host knows. They are equal unless a step in flight may reject drafts.
    """

    __slots__ = ("_behind", "_computed", "_known", "fewest", "index", "most", "slots")

    def __init__(
        self,
        slots: list[int],
        index: Tensor,
        computed: Tensor,
        most: Sequence[int],
        fewest: Sequence[int] | None = None,
        behind: Tensor | None = None,
    ) -> None:
        """``computed`` (int64 ``[slots]``) says how many tokens of each slot are in the cache after the step, and
        ``behind`` (int64 ``[rows]``) how many of these stand behind each row's; ``None``: none."""
        self.slots = slots
        self.index = index
        self.most = most
        self.fewest = most if fewest is None else fewest
        self._computed = computed
        self._behind = behind
        self._known: Tensor | None = None

    @property
    def known(self) -> Tensor:
        """int64 ``[rows]`` on the device: the tokens of each row's request up to the row's own. What is sampled stands
        at that index."""
        if self._known is None:
            known = self._computed[self.index]
            self._known = known if self._behind is None else known - self._behind
        return self._known
