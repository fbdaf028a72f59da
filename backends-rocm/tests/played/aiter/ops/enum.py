"""Of AITER."""

from enum import IntEnum

ActivationType = IntEnum("ActivationType", {"No": -1, "Silu": 0, "Gelu": 1, "Swiglu": 2})
QuantType = IntEnum("QuantType", ["No", "per_Tensor", "per_Token", "per_1x32", "per_1x128", "per_128x128"], start=0)
