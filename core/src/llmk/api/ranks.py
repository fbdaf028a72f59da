"""What a platform says of ranks, the processes that run a model together, before any of them initialises a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankRules:
    """A platform's answers about its ranks. These are the defaults; a platform overrides what is different on it.

    ``resource`` is what clusters call one device of the platform, such as ``"GPU"``. ``network`` are the environment
    variables that name the network interface by which ranks on several machines exchange tensors, and ``visible``
    those that list the devices which a process may use.

    It is a frozen dataclass: give these to the constructor, also of a subclass. Class attributes of a subclass that is
    no dataclass itself don't count, as the constructor sets the defaults above.
    """

    resource: str = "CPU"
    network: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()

    def rank_at(self, place: int, tensor: int, pipeline: int) -> int:
        """The rank in place number ``place``, of ``tensor * pipeline``, which a launcher returned in the order of how
        close they are to each other. Rank ``stage * tensor + tensor_rank`` is of that stage: the first has the
        embedding, the last has the head, and samples."""
        return place

    def environment(self, devices: Sequence[str], interface: str) -> Mapping[str, str]:
        """What a rank's process needs in its environment, before it imports torch.

        Args:
            devices: names of the devices that the ranks on the machine have, by index; none: all are theirs.
            interface: the network interface that has the machine's address; empty: unknown, or there is one machine.
        """
        named = dict.fromkeys(self.network, interface) if interface else {}
        return named | (dict.fromkeys(self.visible, ",".join(devices)) if devices else {})
