"""Cases of logits processors over the values of their parameters, and over devices other than the bench's."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import torch

from llmk.api import (
    LogitsBatch,
    LogitsProcessor,
    LogitsProcessorSpec,
    LogitsRequest,
    LogitsRows,
    RequestError,
)
from llmk.api.errors import describe
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.devices import one_device
from llmk_testing.falsy import check_falsy
from llmk_testing.io_bodies import varied
from llmk_testing.logits_examples import LogitsExamples, Parameters
from llmk_testing.settings import leaving_settings
from llmk_testing.whole_numbers import check_whole

_SLOTS, _LENGTH, _VOCAB = 8, 24, 131
_TOKENS = [5, 7, 5, 7, 9, 5]
_READS = ("no data", "cannot be called on meta tensors")
"""What torch says where a tensor without data is read."""
_MOST = 48
"""Parameters that are made of the examples."""


def check_falsy_values(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """Where others of their type are refused, 0 and what is empty are, too."""
    kind = load_object(spec.implementation)
    return check_falsy(list(own.parameters), lambda parameters: _takes(kind, bench.device, parameters))


def check_whole_numbers(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """With a fraction of 0 or without."""
    kind = load_object(spec.implementation)
    return check_whole(list(own.parameters), lambda parameters: _takes(kind, bench.device, parameters))


def check_device(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """What it keeps is where the batch's tokens are: tried on a device that has shapes and no data."""
    device = torch.device("meta")
    tokens = torch.zeros(_SLOTS, _LENGTH, dtype=torch.int32, device=device)
    for start in range(0, len(own.parameters), _SLOTS):
        chosen = own.parameters[start : start + _SLOTS]
        index = torch.zeros(len(chosen), dtype=torch.int64, device=device)
        logits = torch.zeros(len(chosen), _VOCAB, device=device)
        rows = LogitsRows(tuple(range(len(chosen))), index, torch.zeros_like(index))
        try:
            with one_device():
                processor = load_object(spec.implementation)(LogitsBatch(tokens, _VOCAB))
                for slot, parameters in enumerate(chosen):
                    processor.enter(slot, _request(parameters))
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise Skip(f"enter can't be tried on a device without data: {describe(error)}") from error
        try:
            with one_device():
                out = processor.apply(logits, rows)
        except (NotImplementedError, RuntimeError) as error:
            if any(said in str(error) for said in _READS):
                raise AssertionError(f"apply reads a tensor of the device: {error}") from error
            raise Skip(f"apply can't be tried on a device without data: {describe(error)}") from error
        assert out.device == device, f"logits on {device}, as the batch's tokens are, become ones on {out.device}"
    return f"{len(own.parameters)} parameters"


def check_settings(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """What all code of the process shares stays: among it the generators, from which other requests sample."""
    kind = load_object(spec.implementation)
    tokens = torch.ones(_SLOTS, _LENGTH, dtype=torch.int32, device=bench.device)
    index, length = (torch.tensor([number], device=bench.device) for number in (0, len(_TOKENS)))
    for parameters in (*own.parameters, *own.refused):
        with leaving_settings():
            processor = kind(LogitsBatch(tokens, _VOCAB))
            try:
                processor.enter(0, _request(parameters))
            except RequestError:
                continue
            processor.apply(torch.zeros(1, _VOCAB, device=bench.device), LogitsRows((0,), index, length))
            processor.leave(0)
    return f"{len(own.parameters)} parameters"


def with_variants(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> LogitsExamples:
    """The examples, and parameters that are made of them, as far as the processor takes them and the oracle knows
    them."""
    kind = load_object(spec.implementation)
    more = [
        parameters
        for parameters in varied(own.parameters)
        if parameters not in own.parameters and _known(own, parameters) and _takes(kind, bench.device, parameters)
    ]
    step = max(1, -(-len(more) // _MOST))
    return replace(own, parameters=[*own.parameters, *more[::step]])


def _known(own: LogitsExamples, parameters: Parameters) -> bool:
    """Whether the oracle has an answer: its author need not have thought of such parameters."""
    try:
        return own.expected is not None and bool(
            own.expected(torch.zeros(_VOCAB), _TOKENS, 3, deepcopy(parameters)).ndim
        )
    except Exception:
        return False


def _takes(kind: type[LogitsProcessor], device: torch.device, parameters: Parameters) -> bool:
    processor = kind(LogitsBatch(torch.zeros(_SLOTS, _LENGTH, dtype=torch.int32, device=device), _VOCAB))
    try:
        processor.enter(0, _request(parameters))
    except RequestError:
        return False
    except Exception as error:
        raise AssertionError(f"enter raised {describe(error)}, not RequestError, for {dict(parameters)}") from error
    return True


def _request(parameters: Parameters, tokens: Sequence[int] = _TOKENS) -> LogitsRequest:
    return LogitsRequest("request", list(tokens), 3, deepcopy(dict(parameters)))
