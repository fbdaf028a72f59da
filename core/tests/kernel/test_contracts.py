"""What plugins provide is held against its contract where it is loaded, for every kind by the same check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llmk.api import FullAttentionCache, PluginError, SchedulingPolicy
from llmk.kernel.contracts import CONTRACTS, NotFollowed, check_made
from llmk.kernel.loader import load_object
from llmk.kernel.registry import HOOKS


def takes(arguments: str) -> Callable[..., Any]:
    """A function with these arguments."""
    function: Callable[..., Any] = eval(f"lambda {arguments}: None")
    return function


def makes(init: str, **methods: str) -> type:
    """A class that is called with ``init``, with methods of these arguments, ``self`` aside."""
    bodies = {name: takes(f"self, {arguments}") for name, arguments in {"__init__": init, **methods}.items()}
    return type("Made", (), bodies)


ATTENTION = {
    "cache_layout": "num_blocks",
    "prepare": "step",
    "write": "key, value, cache, meta, scales=(1.0, 1.0)",
    "run": "query, cache, meta, sinks=None, scales=(1.0, 1.0)",
}
MODEL = {"forward": "token_ids, step", "logits": "hidden", "cache_specs": ""}
LOGITS = {"enter": "slot, request", "leave": "slot", "apply": "logits, rows"}
POLICY = {"order": "requests", "victim": "running", "displaced": "running, newcomer", "computed": "request, num_tokens"}
FACETS = {
    "device": makes("", torch_device="index", setup="index, threads=0", synchronize=""),
    "memory": makes("", total="", available="", measure="run"),
    "graphs": type("Made", (makes("", capture="run", concurrent="first, second"),), {"on_demand": 0}),
    "compiling": makes("", ahead=""),
}
COLLECTIVES = SimpleNamespace(backend="gloo", recordable=False, all_reduce=takes("group, device"))
ROUTING = "activation='silu', scoring='', selection_bias=0, scaling=1, num_groups=1, top_groups=1, group_scoring=''"


def having(init: str, methods: dict[str, str], **attributes: Any) -> type:
    """:func:`makes`, of a class whose objects have attributes."""
    return type("Made", (makes(init, **methods),), attributes)


def platform(**facets: Any) -> type:
    """A platform that has all facets, but for those that differ."""
    whole = {name: facet() for name, facet in FACETS.items()} | {"facts": None, "collectives": COLLECTIVES}
    return having("facts", {}, **whole | facets)


def without(name: str, kind: type) -> type:
    """``kind`` without a member."""
    members = {key: value for base in kind.__mro__[-2::-1] for key, value in vars(base).items()}
    return type("Made", (), {key: value for key, value in members.items() if key != name})


@dataclass(frozen=True)
class Kind:
    """An implementation that follows the contract of a kind, and what each of three others is refused for."""

    good: Any
    lacks: Any = None
    no: str = ""
    wrong: Any = None
    takes: str = ""
    given: tuple[Any, ...] = ()


PARSER = Kind(
    makes("context", push="text", finish=""),
    *(makes("context", push="text"), "no finish()"),
    *(makes("context", push="", finish=""), "push(self) instead of push(text)"),
)
MOE = takes(f"x, router_logits, weights, *, top_k, renormalize, {ROUTING}")

EXECUTOR = {"available": "", "allocate": "num_blocks, groups", "submit": "step", "close": ""}
LAUNCHER = {"place": "", "start": "place, process", "kill": "", "close": ""}
ROUTE = {
    "translate": "body, headers",
    "open": "head, options",
    "result": "result, options, model",
    "error": "status, error",
}
KINDS = {
    "platform": Kind(
        platform(),
        *(platform(device=None), "device = None"),
        *(
            platform(device=makes("", torch_device="", setup="index, threads", synchronize="")()),
            "device.torch_device()",
        ),
        given=(None,),
    ),
    "executor": Kind(having("context", EXECUTOR, asynchronous="", cache_specs=())),
    "launcher": Kind(
        having("context", LAUNCHER, address=""),
        *(having("context", {k: v for k, v in LAUNCHER.items() if k != "close"}, address=""), "no close()"),
        *(having("context", {**LAUNCHER, "start": "place"}, address=""), "instead of start(place, process)"),
        given=(None,),
    ),
    "checkpoint_format": Kind(
        takes("files, options"), wrong=takes("files"), takes="(files) instead of (files, options)"
    ),
    "checkpoint_reader": Kind(makes("", tensors="", tokenizer="")),
    "attention": Kind(
        makes("query, device", **ATTENTION),
        *(makes("query, device", **{k: v for k, v in ATTENTION.items() if k != "prepare"}), "no prepare(step)"),
        *(makes("query, device", **ATTENTION | {"run": "query, cache, meta"}), "instead of run(query, cache, meta, s"),
        given=(None, None),
    ),
    "linear": Kind(takes("x, weight, bias"), wrong=takes("x, y"), takes="(x, y) instead of (x, weight, bias)"),
    "moe": Kind(MOE, wrong=takes("x, router_logits, weights, *, top_k"), takes="unexpected keyword argument"),
    "prepare": Kind(takes("parameters"), wrong=takes(""), takes="() instead of (parameters)"),
    "op": Kind(takes("anything, at_all")),
    "composite": Kind(takes("parts"), wrong=takes("one, two"), takes="(one, two) instead of (parts)"),
    "quantization": Kind(
        having(
            "checkpoint=None",
            {
                "check": "module, stored",
                "convert": "layer, parameters, rows",
                "is_empty": "tensor",
                "present": "module, stored",
                "shape": "stored",
                "unmatched": "modules",
            },
            cache_scales=(),
            unsharded=(),
        ),
        *(makes("checkpoint=None", check="module, stored"), "no convert(layer, parameters, rows)"),
        *(makes("", check="module, stored", convert="layer, parameters, rows"), "() instead of (checkpoint=None)"),
    ),
    "model": Kind(
        having("build, checkpoint", MODEL, weights=(), ignored_weights=()),
        *(makes("build, checkpoint", forward="token_ids, step", logits="hidden"), "no cache_specs()"),
        *(makes("build", **MODEL), "(build) instead of (build, checkpoint)"),
        given=(None, None),
    ),
    "describe": Kind(takes("checkpoint"), wrong=takes(""), takes="() instead of (checkpoint)"),
    "tree": Kind(takes("config"), wrong=takes(""), takes="() instead of (config)"),
    "ahead": Kind(takes("config"), wrong=takes(""), takes="() instead of (config)"),
    "reasoning_parser": PARSER,
    "tool_parser": PARSER,
    "io_processor": Kind(
        makes("context", open="body"),
        *(makes("context"), "no open(body)"),
        *(makes("context", open="body, more"), "open(self, body, more) instead of open(body)"),
    ),
    "route": Kind(
        makes("", **ROUTE),
        *(makes("", **{name: ROUTE[name] for name in ("translate", "open", "result")}), "no error(status, error)"),
        *(makes("", **(ROUTE | {"open": "head"})), "open(self, head) instead of open(head, options)"),
        given=(),
    ),
    "policy": Kind(
        makes("context", **POLICY),
        *(makes("context"), "no order(requests); no victim(running)"),
        *(makes("context", order=""), "order(self) instead of order(requests)"),
    ),
    "router": Kind(
        makes("context", choose="request, replicas"),
        *(makes("context"), "no choose(request, replicas)"),
        *(makes("context", choose="request"), "choose(self, request) instead of choose(request, replicas)"),
    ),
    "logits_processor": Kind(
        makes("batch", **LOGITS),
        *(makes("batch", enter="slot, request", apply="logits, rows"), "no leave(slot)"),
        *(makes("batch", **LOGITS | {"apply": "logits"}), "apply(self, logits) instead of apply(logits, rows)"),
    ),
    "grammar": Kind(
        makes("context", compile="kind, text"),
        *(makes("context"), "no compile(kind, text)"),
        *(makes("context", compile="text"), "compile(self, text) instead of compile(kind, text)"),
    ),
    "speculator": Kind(
        makes("context", propose="request, tokens, most"),
        *(makes("context"), "no propose(request, tokens, most)"),
        *(makes("context", propose="tokens, most"), "propose(self, tokens, most) instead of propose(request, tokens"),
    ),
    "device_speculator": Kind(
        makes("context", propose="tokens, known, slots, width"),
        *(makes("context"), "no propose(tokens, known, slots, width)"),
        *(makes("context", propose="request, tokens, most"), "instead of propose(tokens, known, slots, width)"),
    ),
    "head_speculator": Kind(
        makes("context", follow="heads, hidden, following, rows", propose="heads, hidden, counts"),
        *(makes("context", propose="heads, hidden, counts"), "no follow(heads, hidden, following, rows)"),
        *(
            makes("context", follow="heads, hidden, following, rows", propose="tokens, known, slots, width"),
            "instead of propose(heads, hidden, counts)",
        ),
    ),
    "model_source": Kind(
        makes("context", fetch="reference, progress, *, outline", stored=""),
        *(makes("context", fetch="reference, progress, *, outline"), "no stored()"),
        *(makes("context", fetch="reference, *, outline", stored=""), "fetch(self, reference, *, outline) instead of"),
    ),
    "stat_logger": Kind(
        makes("context", record="snapshot", close=""),
        *(makes("context", record="snapshot"), "no close()"),
        *(makes("", record="snapshot", close=""), "() instead of (context)"),
    ),
    "command": Kind(
        makes("", add_arguments="parser", run="args"),
        *(makes("", run="args"), "no add_arguments(parser)"),
        *(makes("needed", add_arguments="parser", run="args"), "(needed) instead of ()"),
        given=(),
    ),
}


@pytest.fixture
def load() -> Iterator[Callable[..., Any]]:
    """Loads an object as a plugin's implementation of a kind."""
    module = ModuleType("plug_contract")

    def load(found: Any, kind: str) -> Any:
        vars(module)["it"] = found
        return load_object("plug_contract:it", plugin="friend-wheel 1.0", kind=kind, id="friend.it")

    sys.modules[module.__name__] = module
    yield load
    del sys.modules[module.__name__]


def refused(load: Callable[..., Any], found: Any, kind: str, given: tuple[Any, ...] = ()) -> str:
    """Why it can't be loaded, or made."""
    with pytest.raises(PluginError) as caught:
        load(found, kind)(*given)
    text = str(caught.value)
    assert text.startswith("plug_contract:it of friend-wheel 1.0, the implementation of friend.it, can't be loaded")
    assert f"contract: wanted {CONTRACTS[kind].replace(':', '.')}, found" in text
    assert "hint:" in text
    return text


def test_every_kind_has_a_contract() -> None:
    every = {kind for kinds in HOOKS.values() for kind in kinds}
    assert every - {"tuned", "op_contract", "page"} <= set(KINDS)
    assert set(KINDS) == set(CONTRACTS) - {"io_request", "compiled_grammar", "started_grammar", "call_writer"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_its_contract_is_loaded(load: Callable[..., Any], kind: str) -> None:
    made = load(KINDS[kind].good, kind)
    assert callable(made)


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of.no])
def test_a_missing_member_is_named(load: Callable[..., Any], kind: str) -> None:
    assert KINDS[kind].no in refused(load, KINDS[kind].lacks, kind, KINDS[kind].given)


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of.takes])
def test_wrong_arguments_are_shown_with_the_right_ones(load: Callable[..., Any], kind: str) -> None:
    assert KINDS[kind].takes in refused(load, KINDS[kind].wrong, kind, KINDS[kind].given)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_called_is_refused(load: Callable[..., Any], kind: str) -> None:
    assert "= 3, which can't be called" in refused(load, 3, kind)


@pytest.mark.parametrize(("kind", "name"), [("attention", "run"), ("tool_parser", "push"), ("policy", "order")])
def test_a_method_that_cannot_be_called_is_refused(load: Callable[..., Any], kind: str, name: str) -> None:
    found = type("Made", (KINDS[kind].good,), {name: 3})
    assert f"{name} = 3, which can't be called" in refused(load, found, kind)


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if isinstance(of.good, type) and of.lacks])
def test_what_a_function_makes_is_checked_when_it_is_made(load: Callable[..., Any], kind: str) -> None:
    good, lacks = KINDS[kind].good, KINDS[kind].lacks
    named = {
        "command": "",
        "route": "",
        "attention": "query, device",
        "model": "build, checkpoint",
        "quantization": "checkpoint",
    }
    arguments = named.get(kind, "context")
    given = (None,) * len(arguments.replace(",", "").split())
    factory = eval(f"lambda {arguments}: made({arguments})", scope := {"made": good})
    assert isinstance(load(factory, kind)(*given), good)
    scope["made"] = lacks
    assert KINDS[kind].no in refused(load, factory, kind, given)


@pytest.mark.parametrize("name", ["facts", "device", "memory", "graphs", "compiling", "collectives"])
def test_an_attribute_that_a_platform_lacks(load: Callable[..., Any], name: str) -> None:
    assert f"found no {name}\n" in refused(load, without(name, platform()), "platform", (None,))


@pytest.mark.parametrize("name", ["graphs", "compiling", "collectives"])
def test_facets_that_may_be_absent(load: Callable[..., Any], name: str) -> None:
    assert load(platform(**{name: None}), "platform")(None)


@pytest.mark.parametrize(
    ("facets", "problem"),
    [
        ({"memory": SimpleNamespace(total=int, available=int)}, "no memory.measure(run)"),
        (
            {"graphs": SimpleNamespace(capture=takes(""), on_demand=0)},
            "graphs.capture() instead of graphs.capture(run)",
        ),
        ({"graphs": SimpleNamespace(capture=takes("run"))}, "no graphs.on_demand"),
        ({"compiling": SimpleNamespace(ahead=None)}, "compiling.ahead = None, which can't be called"),
        ({"collectives": SimpleNamespace(backend="gloo")}, "no collectives.recordable"),
        ({"collectives": SimpleNamespace(backend="gloo", recordable=True)}, "no collectives.all_reduce(group, device)"),
        ({"memory": None}, "memory = None"),
    ],
)
def test_facets_follow_contracts_of_their_own(load: Callable[..., Any], facets: dict[str, Any], problem: str) -> None:
    assert problem in refused(load, platform(**facets), "platform", (None,))


def test_a_model_without_its_weights_is_refused_when_it_is_built(load: Callable[..., Any]) -> None:
    found = having("build, checkpoint", MODEL, ignored_weights=())
    assert "no weights\n" in refused(load, found, "model", (None, None))


def test_defaults_may_be_missing(load: Callable[..., Any]) -> None:
    found = makes("context", victim="running")
    assert load(found, "policy") is found
    assert load(SchedulingPolicy, "policy") is SchedulingPolicy


def test_arguments_may_have_other_names_or_be_taken_together(load: Callable[..., Any]) -> None:
    assert load(takes("a, b, c=None, d=4"), "linear")
    assert load(takes("*all"), "linear")
    assert load(takes("a, b, c, **rest"), "moe")
    assert load(len, "prepare") is len
    parser = makes("*args, **kwargs", push="*args", finish="")
    parser.finish = staticmethod(lambda: ())  # type: ignore[attr-defined]
    assert load(parser, "tool_parser") is parser


def test_specs_of_other_kinds_are_not_held_against_anything(load: Callable[..., Any]) -> None:
    assert load(FullAttentionCache, "") is FullAttentionCache


def test_what_a_processor_opens_is_a_request() -> None:
    request = SimpleNamespace(prompts=(), take=takes("output"), answer=takes(""))
    check_made(request, "io_request")
    del request.prompts
    request.answer = takes("when")
    with pytest.raises(NotFollowed, match=r"answer\(when\) instead of answer\(\): .*; no prompts"):
        check_made(request, "io_request")
