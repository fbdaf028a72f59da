"""Whether what a plugin provides follows its contract. It is checked once, where it is loaded, so that nothing is found
missing in the middle of a step.

A contract is a class that authors read: its methods, with their arguments; its attributes; and what an implementation
is called with (``__init__``, or ``__call__`` where the contract is a function). Of a protocol, methods that are not
abstract and attributes with a value are defaults, which an implementation may lack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature
from types import FunctionType, NoneType, UnionType
from typing import Any, NamedTuple, Protocol, Union, get_args, get_origin, get_type_hints

from llmk.api import Reason

CONTRACTS: Mapping[str, str] = {
    "platform": "llmk.api:Platform",
    "executor": "llmk.api:ModelExecutor",
    "launcher": "llmk.api:RankLauncher",
    "attention": "llmk.api:AttentionBackend",
    "linear": "llmk.api:LinearKernel",
    "moe": "llmk.api:MoEKernel",
    "prepare": "llmk.api:Prepare",
    "op": "llmk.api:Op",
    "composite": "llmk.api:CompositeOp",
    "model_source": "llmk.api:ModelSource",
    "checkpoint_format": "llmk.api:ReadCheckpoint",
    "checkpoint_reader": "llmk.api:CheckpointReader",
    "quantization": "llmk.nn:Quantization",
    "model": "llmk.nn:Model",
    "describe": "llmk.api:DescribeModel",
    "tree": "llmk.tree:MakeTree",
    "ahead": "llmk.tree:MakeAhead",
    "reasoning_parser": "llmk.api:ReasoningParser",
    "tool_parser": "llmk.api:ToolParser",
    "call_writer": "llmk.api:CallWriter",
    "route": "llmk.api:ApiRoute",
    "io_processor": "llmk.api:IOProcessor",
    "io_request": "llmk.api:IORequest",
    "policy": "llmk.api:SchedulingPolicy",
    "router": "llmk.api:Router",
    "logits_processor": "llmk.api:LogitsProcessor",
    "speculator": "llmk.api:Speculator",
    "device_speculator": "llmk.api:DeviceSpeculator",
    "head_speculator": "llmk.api:HeadSpeculator",
    "grammar": "llmk.api:GrammarCompiler",
    "compiled_grammar": "llmk.api:CompiledGrammar",
    "started_grammar": "llmk.api:Grammar",
    "stat_logger": "llmk.api:StatLogger",
    "command": "llmk.api:Command",
}
"""The contract of what is loaded, or made, by its kind: that of its spec, or what else the spec names."""

_MISSING = object()


class _Method(NamedTuple):
    """``arguments`` are those after ``self``."""

    name: str
    arguments: Signature
    required: bool


class _Attribute(NamedTuple):
    """``contract`` is the protocol that its value follows, if any; ``optional``, whether it may be ``None``."""

    name: str
    required: bool
    contract: type | None
    optional: bool


class _Contract(NamedTuple):
    """``call`` are the arguments that an implementation is called with; ``is_function``, whether that is all."""

    call: Signature
    is_function: bool
    methods: tuple[_Method, ...]
    attributes: tuple[_Attribute, ...]


class NotFollowed(Exception):
    """An object does not follow its contract; ``reason`` says what is missing or wrong."""

    def __init__(self, contract: str, problems: list[str]) -> None:
        self.reason = Reason("contract", contract, "; ".join(problems))
        super().__init__(str(self.reason))


def checked(found: Any, kind: str, raises: Callable[[NotFollowed], Exception]) -> Any:
    """``found``, which a spec of this kind names, or a function that returns what it makes once that is checked too.

    Raises what ``raises`` returns where either does not follow the contract.
    """
    contract = _contract(_class_of(kind))
    if problems := list(_problems_of_loaded(found, contract)):
        raise raises(NotFollowed(_name_of(kind), problems))
    if contract.is_function or (isinstance(found, type) and not contract.attributes):
        return found

    @wraps(found, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        made = found(*args, **kwargs)
        try:
            check_made(made, kind)
        except NotFollowed as error:
            raise raises(error) from error
        return made

    return make


def kind_of(spec: object, kind: str) -> str:
    """The kind in :data:`CONTRACTS` of what a spec of ``kind`` names as its implementation."""
    if getattr(spec, "parts", ()):
        return "composite"
    if getattr(spec, "heads", False) and kind == "speculator":
        return "head_speculator"
    return "device_speculator" if getattr(spec, "on_device", False) else kind


def check_made(made: object, kind: str) -> None:
    """Raises :class:`NotFollowed` where an object lacks what the contract of its kind has."""
    if problems := list(_problems_of_made(made, _contract(_class_of(kind)))):
        raise NotFollowed(_name_of(kind), problems)


def check_call(function: object, like: Callable[..., Any], name: str) -> None:
    """Raises :class:`NotFollowed` where ``function`` can't be called with the arguments of ``like``, which errors call
    ``name``. Keywords with a default are options, which only those who know them are called with."""
    wanted = _signature(like)
    if wanted is None:
        return
    needed = [p for p in wanted.parameters.values() if p.kind is not Parameter.KEYWORD_ONLY or p.default is p.empty]
    if problems := list(_call_problems("", function, wanted.replace(parameters=needed))):
        raise NotFollowed(name, problems)


def _name_of(kind: str) -> str:
    return CONTRACTS[kind].replace(":", ".")


def _class_of(kind: str) -> type:
    module, _, name = CONTRACTS[kind].partition(":")
    found: type = getattr(import_module(module), name)
    return found


@cache
def _contract(source: type) -> _Contract:
    is_protocol = getattr(source, "_is_protocol", False)
    abstract: frozenset[str] = getattr(source, "__abstractmethods__", frozenset())
    call = vars(source).get("__call__", vars(source).get("__init__"))
    if call is not None and call.__module__ == Protocol.__module__:
        call = None  # what Python puts into protocols that say nothing of how they are made
    hints = get_type_hints(source)
    names = [*hints, *(name for name, value in vars(source).items() if isinstance(value, property))]
    return _Contract(
        call=_after_self(call) if call else Signature(),
        is_function="__call__" in vars(source),
        methods=tuple(
            _Method(name, _after_self(value), name in abstract or not is_protocol)
            for name, value in vars(source).items()
            if name[0] != "_" and isinstance(value, FunctionType)
        ),
        attributes=tuple(
            _Attribute(name, name in abstract or not (is_protocol and hasattr(source, name)), *_type(hints.get(name)))
            for name in names
            if name[0] != "_"
        ),
    )


def _type(hint: Any) -> tuple[type | None, bool]:
    """The protocol in a type hint, and whether ``None`` will do as well."""
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    protocols = [kind for kind in kinds if getattr(kind, "_is_protocol", False)]
    return (protocols[0] if protocols else None), NoneType in kinds


def _problems_of_loaded(found: Any, contract: _Contract) -> Iterator[str]:
    yield from _call_problems("", found, contract.call)
    if isinstance(found, type) and not contract.is_function:
        yield from _method_problems(found, contract)


def _problems_of_made(made: object, contract: _Contract, place: str = "") -> Iterator[str]:
    yield from _method_problems(made, contract, place)
    for attribute in contract.attributes:
        name = f"{place}{attribute.name}"
        if inspect.getattr_static(made, attribute.name, _MISSING) is _MISSING and not hasattr(made, attribute.name):
            if attribute.required:
                yield f"no {name}"
        elif attribute.contract is not None:
            value = getattr(made, attribute.name)
            if value is not None:
                yield from _problems_of_made(value, _contract(attribute.contract), f"{name}.")
            elif not attribute.optional:
                yield f"{name} = None"


def _method_problems(owner: Any, contract: _Contract, place: str = "") -> Iterator[str]:
    """Of an object, or of a class, whose methods are not bound yet."""
    lacking = [method for method in contract.methods if getattr(owner, method.name, _MISSING) is _MISSING]
    none_there = len(lacking) == len(contract.methods)
    for method in contract.methods:
        name = f"{place}{method.name}"
        if method not in lacking:
            own = inspect.getattr_static(owner, method.name, None)
            unbound = isinstance(owner, type) and inspect.isroutine(own)
            unbound = unbound and not isinstance(own, classmethod | staticmethod)
            yield from _call_problems(name, getattr(owner, method.name), method.arguments, unbound=unbound)
        elif method.required or none_there:
            yield f"no {name}{_shown(method.arguments)}"


def _call_problems(name: str, call: object, wanted: Signature, *, unbound: bool = False) -> Iterator[str]:
    """What is wrong with a callable that has to take the ``wanted`` arguments: those without a default by position, the
    others by name."""
    if not callable(call):
        yield f"{name or 'what is named'} = {call!r}, which can't be called"
        return
    signature, kinds = _signature(call), {parameter.kind for parameter in wanted.parameters.values()}
    if signature is None or Parameter.VAR_POSITIONAL in kinds:
        return
    given = [parameter for parameter in wanted.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
    named = [p for p in given if p.kind is Parameter.KEYWORD_ONLY or p.default is not Parameter.empty]
    placed = [p for p in given if p not in named]
    owner = (None,) if unbound else ()
    try:
        signature.bind(*owner, *placed, **{p.name: p for p in named})
    except TypeError as error:
        yield f"{name or 'the arguments '}{_shown(signature)} instead of {name}{_shown(wanted)}: {error}"


def _signature(call: Any) -> Signature | None:
    """``None`` where it can't be known, as of functions that are written in C."""
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        return None


def _after_self(function: Callable[..., Any]) -> Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _shown(signature: Signature) -> str:
    plain = [parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=Signature.empty))
