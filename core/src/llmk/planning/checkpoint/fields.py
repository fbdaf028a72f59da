"""Checks types and ranges of the fields that llmk itself reads from a checkpoint's small files. Model families check
the other fields that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from llmk.api import CheckpointError
from llmk.api.errors import shown

_MOST_TOKENS = 1 << 31
_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
Fields = TypeVar("Fields", bound=Mapping[str, Any])
_HINT = "compare it with the file that the model's authors publish"


def check_config(file: object, config: Fields) -> Fields:
    """Checks ``config.json``, which is in ``file``, and returns it. Raises CheckpointError with the invalid field."""
    _check(file, config, {"architectures": _is_texts, "model_type": _is_text, "vocab_size": _is_size})
    _check(file, config, {"quantization_config": _is_object, "dtype": _is_text, "torch_dtype": _is_text})
    _check_eos(file, config, config)
    return config


def check_generation_config(file: object, generation_config: Fields, config: Mapping[str, Any]) -> Fields:
    """Checks ``generation_config.json`` and returns it. Raises CheckpointError with the invalid field."""
    numbers = dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _is_number)
    _check(file, generation_config, {**numbers, "top_k": _is_integer, "do_sample": _is_switch})
    _check_eos(file, generation_config, config)
    return generation_config


def check_tokenizer_config(file: object, config: Fields) -> Fields:
    """Checks ``tokenizer_config.json`` and returns it. Raises CheckpointError with the invalid field."""
    _check(file, config, {"chat_template": _is_templates, "added_tokens_decoder": _is_added_tokens})
    _check(file, config, dict.fromkeys(_TOKENS, _is_token))
    return config


Kind = Callable[[Any], str]
"""Checks a value: returns the expected kind of value in words if it is invalid, else ``""``."""


def _check(file: object, fields: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    for key, kind in kinds.items():
        if fields.get(key) is not None and (wanted := kind(fields[key])):
            raise CheckpointError(f"{file} has {key} = {shown(fields[key])}, which is not {wanted}", hint=_HINT)


def _check_eos(file: object, fields: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    found = fields.get("eos_token_id")
    most = config.get("vocab_size") or _MOST_TOKENS
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(_is_int(each) and 0 <= each < most for each in ids):
        raise CheckpointError(
            f"{file} has eos_token_id = {shown(found)}, which is not a token from 0 to {most - 1}, or a list of these",
            hint=_HINT,
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer(value: Any) -> str:
    return "" if _is_int(value) and abs(value) < _MOST_TOKENS else "a whole number"


def _is_number(value: Any) -> str:
    return "" if isinstance(value, float) or not _is_integer(value) else "a number"


def _is_size(value: Any) -> str:
    return "" if _is_int(value) and 0 < value < _MOST_TOKENS else f"a whole number from 1 to {_MOST_TOKENS - 1}"


def _is_switch(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _is_text(value: Any) -> str:
    return "" if isinstance(value, str) else "a text"


def _is_texts(value: Any) -> str:
    return "" if isinstance(value, list) and all(isinstance(each, str) for each in value) else "a list of texts"


def _is_object(value: Any) -> str:
    return "" if isinstance(value, Mapping) else "an object"


def _is_token(value: Any) -> str:
    content = value.get("content", "") if isinstance(value, Mapping) else value
    return "" if isinstance(content, str) else "a text, or an object whose content is one"


def _is_templates(value: Any) -> str:
    entries = value if isinstance(value, list) else []
    named = all(
        isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in ("name", "template"))
        for entry in entries
    )
    return "" if isinstance(value, (str, list)) and named else "a template, or a list of objects with name and template"


def _is_added_tokens(value: Any) -> str:
    """Ids have at most as many digits as ``_MOST_TOKENS``, so that parsing them is cheap."""
    valid = isinstance(value, Mapping) and all(
        key.isascii()
        and key.isdigit()
        and len(key) <= 10
        and isinstance(token, Mapping)
        and isinstance(token.get("content"), str)
        for key, token in value.items()
    )
    return "" if valid else "an object that maps ids to objects, whose content is a text"
