"""What is wrong with descriptors of Hopper's matrix instructions in machine code."""

from __future__ import annotations

import re


def misaddressed(sass: str) -> bool:
    """Whether the upper half of a descriptor of Hopper's matrix instructions is added to anything but zero. ptxas 12.8
    added it to the address of shared memory in one kernel, which then read what was not its own. The last instruction
    in the listing that wrote to the register decides."""
    written: dict[str, str] = {}
    for name, operands in re.findall(r"\*/\s+(?:@!?U?P\d+ )?(U\S+) (.*?);", sass):
        upper = re.match(r"UR\d+, (UR\d+), (-?0x[0-9a-f]+), URZ", operands)
        if (
            name == "UIADD3.X"
            and upper
            and _is_upper_half(int(upper[2], 16))
            and written.get(upper[1], "UMOV") != "UMOV"
        ):
            return True
        for place in re.findall(r"^(?:UP\d+, )*UR(\d+)", operands):
            written[f"UR{place}"] = name
            if name.endswith(".64"):
                written[f"UR{int(place) + 1}"] = name
    return False


def _is_upper_half(value: int) -> bool:
    """Whether it is that of a descriptor: two bits that say how it is swizzled, and 14 of a stride."""
    return value >> 30 & 3 > 0 and value & 0x3FFFFFFF < 1 << 14
