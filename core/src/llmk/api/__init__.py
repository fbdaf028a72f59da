"""The API for plugin authors: hook specs, contracts, frozen spec and query types, events and errors.

Nothing here imports torch or pydantic at run time, so that importing a plugin's spec module takes milliseconds.
"""

from __future__ import annotations

import pluggy

from llmk.api.attention import AttentionBackend, CacheLayout
from llmk.api.cache import (
    CacheSpec,
    CacheStep,
    FullAttentionCache,
    LatentCache,
    RecurrentCache,
    SlidingWindowCache,
    StateTensor,
)
from llmk.api.checkpoint import Checkpoint, CheckpointFile
from llmk.api.decoding.grammar import (
    CompiledGrammar,
    Grammar,
    GrammarCompiler,
    GrammarContext,
    GrammarKind,
    GrammarLimits,
)
from llmk.api.decoding.logits import LogitsBatch, LogitsProcessor, LogitsRequest, LogitsRows
from llmk.api.decoding.specs import GrammarSpec, LogitsProcessorSpec, SpeculatorSpec
from llmk.api.decoding.speculator import DeviceSpeculator, Speculator, SpeculatorContext
from llmk.api.errors import (
    CheckpointError,
    ConfigError,
    ContextLengthExceeded,
    EngineDead,
    LlmkError,
    ModelNotFound,
    NotEnoughMemory,
    Overloaded,
    PluginError,
    PortInUse,
    QueueTimeout,
    RequestError,
    RequestTimeout,
    SelectionError,
    UnknownArchitecture,
)
from llmk.api.facts import AttentionFacts, DescribeModel, LinearFacts, ModelFacts, MoEFacts, OpFacts, RecurrentFacts
from llmk.api.hooks import Command, Default, Problem
from llmk.api.io import IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, IOTokenizer
from llmk.api.kernels import CompositeOp, LinearKernel, MoEKernel, Op, Prepare
from llmk.api.matching import match
from llmk.api.op_contract import OpContract
from llmk.api.parsers import (
    Event,
    ParserContext,
    ReasoningDelta,
    ReasoningParser,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    ToolParser,
)
from llmk.api.plan import Alternative, Choice, Piece, Plan, QuantizationChoice, Rejection, Shadow, SiteVariant
from llmk.api.platform import (
    Collectives,
    Compiling,
    Device,
    Graphs,
    Host,
    Memory,
    Platform,
    PlatformFacts,
    Probe,
)
from llmk.api.policy import PolicyContext, SchedulingPolicy, Ticket
from llmk.api.query import (
    FIRST_FIELDS,
    AttentionQuery,
    LinearQuery,
    MoEQuery,
    OpQuery,
    ParserQuery,
    Query,
)
from llmk.api.sharding import sharded
from llmk.api.specs import (
    ArchRange,
    CommandSpec,
    IOProcessorSpec,
    KernelSpec,
    ModelSpec,
    Needs,
    ParserSpec,
    PlatformSpec,
    PolicySpec,
    QuantizationSpec,
    StatLoggerSpec,
    Tier,
    TokenBand,
    TunedConfigs,
)
from llmk.api.stats import Stat, StatLogger, StatLoggerContext, StatsSnapshot
from llmk.api.verdict import OK, Reason, Verdict, no

ENTRY_POINT_GROUP = "llmk.v1"
"""The entry-point group in which wheels register plugins. Its suffix is the major version of this API."""

hookimpl = pluggy.HookimplMarker("llmk")
"""Marks a function of a plugin's spec module as the implementation of the hook of the same name."""

__all__ = [
    "ENTRY_POINT_GROUP",
    "FIRST_FIELDS",
    "OK",
    "Alternative",
    "ArchRange",
    "AttentionBackend",
    "AttentionFacts",
    "AttentionQuery",
    "CacheLayout",
    "CacheSpec",
    "CacheStep",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFile",
    "Choice",
    "Collectives",
    "Command",
    "CommandSpec",
    "CompiledGrammar",
    "Compiling",
    "CompositeOp",
    "ConfigError",
    "ContextLengthExceeded",
    "Default",
    "DescribeModel",
    "Device",
    "DeviceSpeculator",
    "EngineDead",
    "Event",
    "FullAttentionCache",
    "Grammar",
    "GrammarCompiler",
    "GrammarContext",
    "GrammarKind",
    "GrammarLimits",
    "GrammarSpec",
    "Graphs",
    "Host",
    "IOContext",
    "IOOutput",
    "IOProcessor",
    "IOProcessorSpec",
    "IOPrompt",
    "IORequest",
    "IOTokenizer",
    "KernelSpec",
    "LatentCache",
    "LinearFacts",
    "LinearKernel",
    "LinearQuery",
    "LlmkError",
    "LogitsBatch",
    "LogitsProcessor",
    "LogitsProcessorSpec",
    "LogitsRequest",
    "LogitsRows",
    "Memory",
    "MoEFacts",
    "MoEKernel",
    "MoEQuery",
    "ModelFacts",
    "ModelNotFound",
    "ModelSpec",
    "Needs",
    "NotEnoughMemory",
    "Op",
    "OpContract",
    "OpFacts",
    "OpQuery",
    "Overloaded",
    "ParserContext",
    "ParserQuery",
    "ParserSpec",
    "Piece",
    "Plan",
    "Platform",
    "PlatformFacts",
    "PlatformSpec",
    "PluginError",
    "PolicyContext",
    "PolicySpec",
    "PortInUse",
    "Prepare",
    "Probe",
    "Problem",
    "QuantizationChoice",
    "QuantizationSpec",
    "Query",
    "QueueTimeout",
    "Reason",
    "ReasoningDelta",
    "ReasoningParser",
    "RecurrentCache",
    "RecurrentFacts",
    "Rejection",
    "RequestError",
    "RequestTimeout",
    "SchedulingPolicy",
    "SelectionError",
    "Shadow",
    "SiteVariant",
    "SlidingWindowCache",
    "Speculator",
    "SpeculatorContext",
    "SpeculatorSpec",
    "Stat",
    "StatLogger",
    "StatLoggerContext",
    "StatLoggerSpec",
    "StateTensor",
    "StatsSnapshot",
    "TextDelta",
    "Ticket",
    "Tier",
    "TokenBand",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallFailed",
    "ToolCallStart",
    "ToolParser",
    "TunedConfigs",
    "UnknownArchitecture",
    "Verdict",
    "hookimpl",
    "match",
    "no",
    "sharded",
]
