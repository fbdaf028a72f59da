"""How a checkpoint's tensors become the parameters that a weight format's kernels prepare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from llmk.api import Checkpoint
from llmk.nn.tensor_file import StoredTensor


class Quantization:
    """What a :class:`~llmk.api.QuantizationSpec` names: made once per model and process, it is asked while layers at
    sites of its weight format load. This base takes what is stored as it is; methods override what they do otherwise.

    Attributes:
        cache_scales: the checkpoint's names, below an attention module's, for what stored keys, and stored values, are
            to be multiplied with where the cache is fp8: one number each.
    """

    cache_scales: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.checkpoint = checkpoint

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Looks at what the files hold for ``module``, a projection, before any of it is read. ``stored`` is by the
        last part of the tensors' names.

        Raises:
            CheckpointError: where that is not what the method reads.
        """

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of the weight format (``llmk.reference.quantized_weight``).

        Args:
            layer: its name in the checkpoint, for errors.
            parameters: this process's share of what is stored, in the dtypes of the files, packed along the rows; with
                dummy weights, ``weight`` alone in the engine's dtype.
            rows: output features of each projection that is packed into the layer.

        Of a method that quantizes plain weights, the share is all that it sees: where the layer's inputs are cut, each
        process scales its own.

        Raises:
            CheckpointError: where they can't be packed.
        """
        return parameters
