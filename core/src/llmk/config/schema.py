"""The schema of llmk's configuration: a pydantic model per section. ``--help`` shows the descriptions of fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from llmk.config.limits_section import LimitsSection
from llmk.config.mcp_server import McpServer
from llmk.config.parallel_section import ParallelSection
from llmk.config.plugins_section import PluginsSection
from llmk.config.replicas_section import EventsSection, ReplicasSection
from llmk.config.section import Count, Seconds, Section, Size, Timeout
from llmk.config.storage_section import StorageSection
from llmk.config.tenants_section import TenantsSection

DType = Literal["auto", "float32", "bfloat16", "float16"]


def _check_key(key: str) -> str:
    """An empty key would grant access to every client, and one with white space or control characters to none."""
    if not key or not key.isprintable() or any(character.isspace() for character in key):
        raise ValueError("a key must not be empty, nor contain white space or control characters")
    return key


Key = Annotated[str, AfterValidator(_check_key)]


class ModelSection(Section):
    """The model."""

    path: str = Field(
        default="",
        description="Checkpoint folder or file, or a name (org/name[@revision]). Empty: the embedded demo model.",
    )
    served_name: str = Field(default="", description="Name under which the model is served. Empty: its own.")
    dtype: DType = Field(default="auto", description="Engine dtype. auto: the checkpoint's, if native.")
    max_model_len: Size = Field(default=0, description="Longest prompt plus output, in tokens. 0: the checkpoint's.")
    tokenizer: str = Field(default="", description="Tokenizer folder. Empty: the checkpoint's.")
    chat_template: str = Field(
        default="", description="File with a Jinja chat template that replaces the checkpoint's."
    )
    control_tokens_in_chats: bool = Field(
        default=False,
        description="Whether control tokens in the text of chat messages (<|im_end|>) are control tokens. "
        "false: they are plain text.",
    )
    control_tokens_in_prompts: bool = Field(
        default=True, description="The same for prompts of completions, of plugins and of LLM.generate."
    )
    load_format: Literal["safetensors", "dummy"] = Field(
        default="safetensors", description="dummy: random weights, for benchmarks without a checkpoint's tensors."
    )
    pooling: Literal["auto", "last", "mean", "none"] = Field(
        default="auto", description="What embeddings are made of. auto: as the checkpoint's files say, else last."
    )
    quantization: str = Field(
        default="", description="Method that quantizes plain weights while they load (fp8, …). Empty: none."
    )


class PlatformSection(Section):
    """The platform."""

    use: str = Field(default="", description="Platform to use, by name. Empty: the best usable one.")
    threads: Size = Field(
        default=0, description="Compute threads, divided between the engine's workers. 0: the platform's default."
    )
    measurements: str = Field(
        default="",
        description="Folder of llmk tune's measurements. Empty: the user's cache. 'none': choose without measurements.",
    )
    traffic: str | dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] = Field(
        default="",
        description="Traffic over which measured costs of weight layouts are averaged: a table of steps by token "
        "count, or a file with a server's /metrics. Empty: 40% of steps have 1 token, 20% 8, 25% 64, 10% 512, "
        "5% 2,048.",
    )


class SelectSection(Section):
    """Rules for choosing between the candidates of one kind."""

    use: str | dict[str, str] = Field(
        default="",
        description="Id that must be chosen (a pin); as a table, one per site. A pin that can't be honoured is fatal.",
    )
    prefer: tuple[str, ...] = Field(default=(), description="Ids to choose before others, where supported.")
    avoid: tuple[str, ...] = Field(default=(), description="Ids never to choose.")


class KernelSelectSection(SelectSection):
    """Rules for choosing between the kernels of one kind."""

    shadow: str | dict[str, str] = Field(
        default="",
        description="Id of a kernel that also runs on live traffic and is compared with the chosen one; "
        "'reference': the best reference. As a table, one per site.",
    )
    shadow_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.01, description="Fraction of the steps in which it is compared."
    )


class SelectSections(Section):
    """Choosing backends and kernels."""

    attention: KernelSelectSection = Field(default_factory=KernelSelectSection, description="Attention backends.")
    linear: KernelSelectSection = Field(default_factory=KernelSelectSection, description="Linear kernels.")
    moe: KernelSelectSection = Field(default_factory=KernelSelectSection, description="Mixture-of-experts kernels.")
    op: KernelSelectSection = Field(default_factory=KernelSelectSection, description="Ops.")
    model: SelectSection = Field(default_factory=SelectSection, description="Model implementations.")
    quantization: SelectSection = Field(default_factory=SelectSection, description="Quantization methods.")
    reasoning_parser: SelectSection = Field(
        default_factory=SelectSection, description="Reasoning parsers ('none': off)."
    )
    tool_parser: SelectSection = Field(default_factory=SelectSection, description="Tool parsers ('none': off).")
    policy: SelectSection = Field(
        default_factory=SelectSection,
        description="Scheduling policy (none: fair between tenants, by priority within one).",
    )
    router: SelectSection = Field(
        default_factory=SelectSection, description="Which replica gets a request (none: the one with the least work)."
    )
    executor: SelectSection = Field(
        default_factory=SelectSection, description="What runs the steps (none: the engine itself, with kernels)."
    )
    launcher: SelectSection = Field(
        default_factory=SelectSection,
        description="What starts the processes of a model (none: the engine itself, on this machine).",
    )
    grammar: SelectSection = Field(
        default_factory=SelectSection, description="Compilers of grammars, for structured_outputs ('none': off)."
    )


class SchedulerSection(Section):
    """How requests are batched."""

    max_num_seqs: Annotated[int, Field(ge=1)] = Field(default=128, description="Requests that may run at once.")
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = Field(default=2048, description="Tokens of one step.")
    chunked_prefill: bool = Field(default=True, description="Split long prompts over steps, batched with decodes.")
    max_waiting: Annotated[int, Field(ge=1)] = Field(
        default=1024, description="Requests that may wait; more are refused with 429."
    )
    max_per_tenant: Size = Field(
        default=0, description="Requests of one tenant (API key, else address) that run or wait; more get 429. 0: any."
    )
    queue_timeout: Seconds = Field(default=0.0, description="Seconds until a request must start, or 504. 0: no limit.")
    request_timeout: Seconds = Field(default=0.0, description="Seconds until a request must end, or 504. 0: no limit.")
    target_inter_token_ms: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="Milliseconds between tokens that prompts may cause. 0: 30 by long prompts, any by others.",
    )
    max_slowdown: Annotated[float, Field(ge=0)] = Field(
        default=4.0,
        description="Limit of a step's time while several tenants are served, as a multiple of the time of a step with "
        "one token. 0: no limit.",
    )
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Shares by tenant: 16 hex digits of the API key's SHA-256, or an address. The default is 1.",
    )


class SpeculationSection(Section):
    """Drafting tokens, and verifying several in one step. Output does not depend on it."""

    use: str = Field(default="", description="Speculator to use, by id or name. Empty: none.")
    num_drafts: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8,
        description="Most tokens to draft per request and step. As many are drafted as pay, by how many are accepted "
        "and how long steps take.",
    )


class PinnedPrompt(Section):
    """A prompt prefix that stays in the cache."""

    id: Annotated[str, Field(min_length=1)] = Field(description="Name of the pin.")
    text: str = Field(default="", description="The prefix.")
    file: str = Field(default="", description="File with the prefix, instead of text.")
    cache_salt: str = Field(default="", description="Cache salt of the requests that use it.")
    tenant: str = Field(default="", description="Tenant whose requests use it, if tenants are isolated.")
    seconds: Seconds = Field(default=0.0, description="How long it stays. 0: for ever.")


class CacheSection(Section):
    """The K/V cache."""

    block_size: Annotated[int, Field(ge=1, le=4096)] = Field(default=16, description="Tokens per block.")
    num_blocks: Size = Field(default=0, description="Blocks in the pool. 0: as many as fit in the budget.")
    memory_gib: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="Memory for the cache. 0: memory_share of the free memory."
    )
    memory_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="Fraction of the free device memory for the cache, if memory_gib is 0."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int4"] = Field(
        default="auto",
        description="Cache dtype. auto: the engine's. int8, int4: with a scale per token and head.",
    )
    state_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Dtype of recurrent states that accumulate small changes. auto: bfloat16 in engines in "
        "bfloat16, unless the checkpoint states another dtype or engine.deterministic is set; otherwise float32.",
    )
    state_block_size: Annotated[int, Field(ge=1)] = Field(
        default=512, description="Tokens between stored recurrent states, at which a prefix can be reused."
    )
    prefix_caching: bool = Field(default=True, description="Reuse the blocks of equal prefixes.")
    isolate_tenants: bool = Field(default=False, description="Never reuse blocks of another tenant's requests.")
    pin_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="Fraction of the blocks that pinned prefixes may hold."
    )
    tenant_pin_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="Fraction of the blocks that prefixes pinned by one tenant's requests may hold."
    )
    pins: tuple[PinnedPrompt, ...] = Field(default=(), description="Prefixes to pin at the start.")


class ServerSection(Section):
    """The HTTP server."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8000, description="Port to listen on. 0: any free one.")
    api_keys: tuple[Key, ...] = Field(default=(), description="API keys, one of which is required. []: no key is.")
    admin_keys: tuple[Key, ...] = Field(
        default=(), description="API keys for operators' routes. []: those routes are closed."
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Accepted Host headers, in addition to loopback and the bound address; '*': any. "
        "Empty: any if there are api_keys; else IP addresses, and private names unless bound to loopback.",
    )
    tls_certificate: str = Field(
        default="", description="PEM file with the certificate chain, for HTTPS. Read again when it changes."
    )
    tls_key: str = Field(default="", description="PEM file with the private key. Empty: in the certificate's file.")
    tls_client_ca: str = Field(
        default="", description="PEM file with authorities, one of which must have signed the client's certificate."
    )
    max_request_bytes: Count = Field(default=16 << 20, description="Largest request body, in bytes.")
    max_concurrent: Count = Field(
        default=1024, description="Requests in flight whose body has arrived; more are refused with 429."
    )
    max_buffered_bytes: Count = Field(
        default=512 << 20,
        description="Bytes of request bodies held until their responses start, and of large responses until they are "
        "read; more get 429.",
    )
    max_buffered_bytes_per_client: Count = Field(
        default=256 << 20, description="The same of one client: an API key, else an address."
    )
    max_unread: Count = Field(
        default=4_000_000,
        description="Tokens and log-probabilities that clients have not read yet; above it, the largest response is "
        "ended.",
    )
    max_unread_per_client: Count = Field(
        default=1_000_000, description="The same of one client: an API key, else an address."
    )
    max_connections: Count = Field(default=4096, description="Open connections; more are refused with 503.")
    max_connections_per_client: Count = Field(
        default=2048, description="Open connections of one address (IPv6: of a /64); more are refused with 429."
    )
    read_timeout: Timeout = Field(
        default=30.0, description="Seconds for a request's header, and between two parts of its body."
    )
    write_timeout: Timeout = Field(
        default=60.0, description="Seconds in which a client must continue reading; else its request is aborted."
    )
    keep_alive: Timeout = Field(default=75.0, description="Seconds that an idle connection is kept open.")
    min_bytes_per_second: Annotated[float, Field(ge=0)] = Field(
        default=500.0, description="Slowest rate of sending a body or reading, once these timeouts passed. 0: any."
    )
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="Time to finish running requests on SIGTERM."
    )
    prepare_seconds: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Time limit of preparing a request: parsing, validating and tokenizing it."
    )
    prepare_workers: Size = Field(
        default=0,
        description="Processes that prepare small requests, and as many for large ones. 0: 2, or 1 on 2 cores.",
    )
    prepare_waiting: Count = Field(
        default=1024, description="Requests of one client that may wait to be prepared; more get 429."
    )
    prepare_waiting_bytes: Count = Field(
        default=128 << 20, description="Bytes of one client's requests that may wait to be prepared; more get 429."
    )
    worker_memory: Count = Field(
        default=640 << 20, description="Bytes by which a request may make the process that prepares it grow, or 413."
    )
    plugin_seconds: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="Time limit of a call of a parser or IO processor, after which its request fails."
    )
    unknown_fields: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="Of requests. warn: they have no effect, and the header x-llmk-ignored-fields has their names.",
    )
    unenforceable: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="Schemas of requests that are not strict. warn: keywords that can't be enforced are left out, and "
        "the header x-llmk-unenforced names them.",
    )
    mcp: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], McpServer] = Field(
        default_factory=dict, description="Servers of MCP by name, whose tools responses may use: url, headers, …"
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="Origins that browsers may call from.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Verbosity of the log.")
    log_format: Literal["text", "json"] = Field(default="text", description="json: one JSON object per line.")
    otlp_endpoint: str = Field(
        default="", description="OTLP/HTTP collector for a span of each request. Needs llmk-core[otel]."
    )
    stat_loggers: tuple[str, ...] = Field(
        default=(), description="Stat loggers of plugins, by id or name, that export the metrics of /metrics."
    )
    stat_interval: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="Seconds between snapshots for stat loggers."
    )


class EngineSection(Section):
    """The engine."""

    strict: bool = Field(default=False, description="Make broken plugins, and chosen kernels that fail to load, fatal.")
    deterministic: bool = Field(
        default=False, description="Batch invariance: choose only kernels whose results don't depend on the batch."
    )
    seed: int = Field(default=0, description="Seed of dummy weights, and of requests without a seed.")
    graphs: bool = Field(
        default=True, description="Capture steps as graphs and replay them, if platform and kernels support it."
    )
    warm_up: bool = Field(
        default=True,
        description="Run steps of every kind before the first request, if kernels are compiled at first use.",
    )
    steps_in_flight: Annotated[int, Field(ge=0, le=16)] = Field(
        default=0,
        description="2: asynchronous scheduling. 0: 2 if the device is asynchronous, one more than the pipeline stages "
        "if there are several, else 1.",
    )
    hang_seconds: Seconds = Field(
        default=300.0, description="Seconds until an engine process that does not answer is killed. 0: no limit."
    )
    plugin_seconds: Seconds = Field(
        default=10.0,
        description="Seconds that calls of processors, policies, speculators and grammars may take. 0: no limit.",
    )
    standby: bool = Field(
        default=True, description="Keep a process with imports done, which replaces the engine if it dies."
    )
    restart_seconds: Seconds = Field(
        default=60.0, description="Seconds that requests wait for a dead engine to be restarted, or 503."
    )


class Config(Section):
    """All of llmk's configuration."""

    model: ModelSection = Field(default_factory=ModelSection)
    platform: PlatformSection = Field(default_factory=PlatformSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    replicas: ReplicasSection = Field(default_factory=ReplicasSection)
    select: SelectSections = Field(default_factory=SelectSections)
    plugins: PluginsSection = Field(default_factory=PluginsSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    speculation: SpeculationSection = Field(default_factory=SpeculationSection)
    cache: CacheSection = Field(default_factory=CacheSection)
    events: EventsSection = Field(default_factory=EventsSection)
    server: ServerSection = Field(default_factory=ServerSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    storage: StorageSection = Field(default_factory=StorageSection)
    tenants: TenantsSection = Field(default_factory=TenantsSection)
    adapters: dict[str, str] = Field(default_factory=dict, description="Folders of LoRA adapters of PEFT, by name.")
    plugin: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Sections of plugins, validated by the plugin's own schema."
    )
