"""Converts a checkpoint's tensors to the parameters of a weight format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from llmk.api import Checkpoint, StoredTensor


class Quantization:
    """The implementation of a :class:`~llmk.api.QuantizationSpec`: one instance per model and process, which the layers
    at sites of its weight format call while they load. A model may have several, of different formats. This base class
    loads the stored tensors unchanged; methods override what they need.

    Attributes:
        cache_scales: names of the K scale and of the V scale of an fp8 cache, below an attention module's name in the
            checkpoint. Each is one number, by which stored keys or values are multiplied.
        unsharded: names of stored tensors that every tensor-parallel rank loads whole, although they have several
            elements, such as codebooks.

    Ranks take shares of the tensors ``weight``, ``weight_packed``, ``weight_scale``, ``weight_scale_inv`` and
    ``weight_zero_point``: each row of these belongs to some output features, each column to some input features or to
    all. Other tensors of several elements are ``unsharded``, or get one of these names by :meth:`present`; a model with
    others is refused under tensor parallelism.
    """

    cache_scales: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    unsharded: tuple[str, ...] = ()

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.checkpoint = checkpoint

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """Entries of the config's lists of modules that match none of ``modules``, which are all that the checkpoint
        stores."""
        return []

    def present(self, module: str, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
        """The tensors that the files store for a module, as layers share, pack and load them: each row of a weight, its
        scales and zero points belongs to output features. What is stored otherwise is decoded
        (:class:`~llmk.api.DecodeRows`), or left out. Called for every module of the checkpoint, before :meth:`check`:
        norms and modules that the config excludes come too, and are returned as they are.

        Raises:
            CheckpointError: the method reads the module, and the tensors are not in its format.
        """
        return stored

    def is_empty(self, tensor: StoredTensor) -> bool:
        """Whether a tensor that the model has no place for means nothing, such as a bias of zeros."""
        return False

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Checks which tensors the files store for the projection ``module``, before any is read. ``stored`` is keyed
        by the last part of the tensors' names.

        Raises:
            CheckpointError: the method can't read them.
        """

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """The shape ``[out, in]`` of the weight that ``stored``, which were checked, represent."""
        return stored["weight"].shape if "weight" in stored else ()

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Returns the parameters of the weight format (``llmk.reference.quantized_weight``), contiguous. The plain or
        stored tensors are not changed, and not kept.

        Args:
            layer: its name in the checkpoint, for errors.
            parameters: this rank's share of the stored tensors, in the dtypes of the files, packed along the rows; with
                dummy weights, only ``weight`` in the engine's dtype, which becomes valid parameters near it: groups of
                zeros stay zeros.
            rows: output features of each projection that is packed into the layer.

        The format says which dtypes its parameters may have; scales stay in that of the files where it takes it.

        A method that quantizes plain weights sees only this rank's share: in a row-parallel layer, each rank computes
        scales of its own.

        Raises:
            CheckpointError: the parameters can't be packed, or their numbers can't be read; it names the layer.
        """
        return parameters
