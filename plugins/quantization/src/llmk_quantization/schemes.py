"""What ``quantization_config`` says of GPTQ's and AWQ's modules. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from llmk.api import OK, CheckpointError, Verdict, no
from llmk.api.errors import shown
from llmk_quantization.modules import compiled, texts, unconverted

NARROW, WIDE = (2, 3, 4), (8,)
"""Bits that become the formats ``int4_group`` and ``int8_group``."""

_PLAIN = ("gptq", "gptq_v2")
_HINT = "compare config.json with the file that the model's authors publish"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a module is quantized. ``group_size`` is -1 if a scale holds for all inputs of an output; with ``ordered``,
    the inputs of a group need not be neighbours."""

    bits: int
    group_size: int
    ordered: bool = False

    def size(self, inputs: int) -> int:
        """How many of so many inputs a group has."""
        return inputs if self.group_size < 0 else self.group_size


Finder = Callable[[str], Scheme | None]
"""The scheme of a module; ``None``: it is plain."""


def gptq_schemes(config: Mapping[str, Any]) -> Finder:
    """The schemes of a GPTQ checkpoint.

    Of the patterns in ``dynamic``, the first that matches the start of a module's name counts: ``-:pattern`` leaves the
    module plain, others change fields (``dynamic_get`` of gptqmodel). ``modules_in_block_to_quantize`` lists the ends
    of names of all modules that are quantized (transformers). The head is quantized only with ``lm_head``.

    Raises:
        CheckpointError: a field has a value of another kind.
    """
    rules = [_rule(pattern, changes) for pattern, changes in _object(config, "dynamic").items()]
    listed = _listed(config)
    has_head = _flag(config, "lm_head")

    def find(module: str) -> Scheme | None:
        if module == "lm_head" and not has_head:
            return None
        if listed and module != "lm_head" and not any(f".{module}".endswith(f".{name}") for name in listed):
            return None
        for matches, changes in rules:
            if matches(module):
                return None if changes is None else _scheme({**config, **changes})
        return _scheme(config)

    return find


def awq_schemes(config: Mapping[str, Any]) -> Finder:
    """The schemes of an AWQ checkpoint: one for all modules but those in ``modules_to_not_convert``.

    Raises:
        CheckpointError: a field has a value of another kind.
    """
    plain = [unconverted(entry) for entry in texts(config, "modules_to_not_convert")]
    named = {**config, "bits": config.get("bits", config.get("w_bit"))}
    named["group_size"] = config.get("group_size", config.get("q_group_size"))

    def find(module: str) -> Scheme | None:
        left = module == "lm_head" or any(matches(module) for matches in plain)
        return None if left else _scheme({**named, "desc_act": False})

    return find


def all_bits(config: Mapping[str, Any]) -> list[Any]:
    """The numbers of bits of a GPTQ checkpoint's modules."""
    changes = config.get("dynamic")
    rules = changes.values() if isinstance(changes, Mapping) else ()
    return [config.get("bits"), *(rule["bits"] for rule in rules if isinstance(rule, Mapping) and "bits" in rule)]


def claims_gptq(config: Mapping[str, Any], bits: Iterable[int]) -> Verdict:
    """GPTQ's layout, with modules of so many ``bits``, and nothing that changes what the numbers mean."""
    if config.get("quant_method") != "gptq":
        return no("quant_method", wanted="gptq", found=config.get("quant_method"))
    verdict = _among(config, "checkpoint_format", (None, *_PLAIN)) & _among(config, "format", (None, *_PLAIN))
    verdict &= _among(config, "pack_dtype", (None, "int32")) & _unset(config, "is_marlin_format")
    verdict &= _unset(config, "adapter") & _unset(config, "rotation")
    found = [each for each in all_bits(config) if not _is_number(each) or each not in (*NARROW, *WIDE)]
    if found:
        return verdict & no("bits", wanted=", ".join(map(str, (*NARROW, *WIDE))), found=shown(found[0]))
    wanted = tuple(bits)
    if not any(each in wanted for each in all_bits(config)):
        return verdict & no("bits", wanted=" or ".join(map(str, wanted)), found=config.get("bits"))
    return verdict


def claims_awq(config: Mapping[str, Any]) -> Verdict:
    """AWQ's layout ``gemm``, 4 bits with zero points."""
    if config.get("quant_method") != "awq":
        return no("quant_method", wanted="awq", found=config.get("quant_method"))
    version = config.get("version", config.get("format", "gemm"))
    bits = config.get("bits", config.get("w_bit"))
    verdict = OK if str(version).lower() == "gemm" else no("version", wanted="gemm", found=shown(version))
    verdict &= OK if _is_number(bits) and bits == 4 else no("bits", wanted=4, found=shown(bits))
    zero = config.get("zero_point", True)
    return verdict & (OK if zero is True else no("zero_point", wanted=True, found=shown(zero)))


def is_v1(config: Mapping[str, Any]) -> bool:
    """Whether GPTQ's zero points are stored less one."""
    return str(config.get("checkpoint_format") or config.get("format") or "gptq") != "gptq_v2"


def unmatched(config: Mapping[str, Any], modules: Iterable[str]) -> list[str]:
    """Entries of ``dynamic`` that match none of ``modules``."""
    known = tuple(modules)
    rules = [(pattern, _rule(pattern, changes)[0]) for pattern, changes in _object(config, "dynamic").items()]
    return [pattern for pattern, matches in rules if not any(map(matches, (*known, "lm_head")))]


def _scheme(fields: Mapping[str, Any]) -> Scheme:
    """Of fields whose ``bits`` were claimed."""
    group_size = fields.get("group_size")
    if not _is_number(group_size) or not (group_size == -1 or group_size > 0):
        raise _invalid("group_size", group_size, "-1 or a number of inputs")
    return Scheme(fields["bits"], group_size, _flag(fields, "desc_act"))


def _rule(pattern: str, changes: Any) -> tuple[Callable[[str], bool], Mapping[str, Any] | None]:
    """What a pattern of ``dynamic`` matches, and what it changes; ``None``: it leaves modules plain."""
    leaves = pattern.startswith("-:")
    if not leaves and not isinstance(changes, Mapping):
        raise _invalid(f"dynamic[{pattern!r}]", changes, "an object")
    start = compiled(pattern.removeprefix("-:").removeprefix("+:"), pattern)
    return lambda module: bool(start.match(module)), None if leaves else changes


def _listed(config: Mapping[str, Any]) -> list[str]:
    found = config.get("modules_in_block_to_quantize") or []
    listed = found if isinstance(found, list) else [found]
    flat = [name for each in listed for name in (each if isinstance(each, list) else [each])]
    if listed is not found or not all(isinstance(name, str) for name in flat):
        raise _invalid("modules_in_block_to_quantize", found, "lists of texts")
    return flat


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, Mapping):
        raise _invalid(key, found, "an object")
    return found


def _flag(config: Mapping[str, Any], key: str) -> bool:
    found = config.get(key, False)
    if found not in (True, False, None):
        raise _invalid(key, found, "true or false")
    return bool(found)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _among(config: Mapping[str, Any], key: str, known: tuple[str | None, ...]) -> Verdict:
    found = config.get(key)
    wanted = " or ".join(each for each in known if each)
    return OK if any(found == each for each in known) else no(key, wanted=wanted, found=shown(found))


def _unset(config: Mapping[str, Any], key: str) -> Verdict:
    found = config.get(key)
    return OK if not found else no(key, wanted="none", found=shown(found))


def _invalid(key: str, found: Any, wanted: str) -> CheckpointError:
    return CheckpointError(f"quantization_config has {key} = {shown(found)}, which is not {wanted}", hint=_HINT)
