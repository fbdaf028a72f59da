"""The schema of llmk's configuration: one pydantic model per section. A field's description becomes its ``--help``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

DType = Literal["auto", "float32", "bfloat16", "float16"]
Size = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Timeout = Annotated[float, Field(gt=0)]


def _check_key(key: str) -> str:
    """An empty key would let everybody in, and one with white space or control characters nobody."""
    if not key or not key.isprintable() or any(character.isspace() for character in key):
        raise ValueError("a key must not be empty, nor hold white space or control characters")
    return key


Key = Annotated[str, AfterValidator(_check_key)]


class Section(BaseModel):
    """Base of all sections: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ModelSection(Section):
    """What is served."""

    path: str = Field(default="", description="Checkpoint folder. Empty: the embedded demo model.")
    served_name: str = Field(default="", description="Name under which the model is served. Empty: the folder's name.")
    dtype: DType = Field(default="auto", description="Engine dtype. auto: the checkpoint's, where the platform has it.")
    max_model_len: Size = Field(
        default=0, description="Longest prompt plus output, in tokens. 0: what the checkpoint allows."
    )
    tokenizer: str = Field(default="", description="Tokenizer folder. Empty: the checkpoint's.")
    chat_template: str = Field(
        default="", description="File with a Jinja chat template that replaces the checkpoint's."
    )
    control_tokens_in_chats: bool = Field(
        default=False,
        description="Whether control tokens that the text of a chat spells out (<|im_end|>) count as such. "
        "false: they are text.",
    )
    control_tokens_in_prompts: bool = Field(
        default=True, description="The same for prompts: of completions, of plugins, of LLM.generate."
    )
    load_format: Literal["safetensors", "dummy"] = Field(
        default="safetensors", description="dummy: random weights, for measuring without a checkpoint's tensors."
    )
    quantization: str = Field(
        default="", description="Method that quantizes plain weights while they load (fp8, …). Empty: as they are."
    )


class PlatformSection(Section):
    """Where it runs."""

    use: str = Field(default="", description="Platform to use, by name. Empty: the best one that is usable here.")
    threads: Size = Field(
        default=0, description="Compute threads, which the engine's workers share. 0: what the platform advises."
    )
    measurements: str = Field(
        default="",
        description="Folder of what llmk tune measured. Empty: the user's cache. 'none': choose without measurements.",
    )
    traffic: str | dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] = Field(
        default="",
        description="What measured weight layouts are weighed by: a table of steps by token count, or a file with "
        "a server's /metrics. Empty: 40% of steps compute 1 token, 20% 8, 25% 64, 10% 512, 5% 2,048.",
    )


class ParallelSection(Section):
    """How many processes hold the model between them: tensor times pipeline."""

    tensor: Annotated[int, Field(ge=1)] = Field(default=1, description="Processes that cut every layer between them.")
    pipeline: Annotated[int, Field(ge=1)] = Field(
        default=1, description="Groups of such processes, each of which holds some of the layers."
    )


class SelectSection(Section):
    """How the candidates of one kind are chosen between."""

    use: str | dict[str, str] = Field(
        default="",
        description="Id that must be chosen (a pin); as a table, one per site. A pin that can't be honoured is fatal.",
    )
    prefer: tuple[str, ...] = Field(default=(), description="Ids to take before others, where they can serve.")
    avoid: tuple[str, ...] = Field(default=(), description="Ids never to choose.")


class KernelSelectSection(SelectSection):
    """How the kernels of one kind are chosen between."""

    shadow: str | dict[str, str] = Field(
        default="",
        description="Id of a kernel that runs beside the chosen one on live traffic, and is compared with it; "
        "'reference': the best of the core's. As a table, one per site.",
    )
    shadow_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.01, description="Share of the steps in which it is compared."
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


class PluginsSection(Section):
    """Which plugins take part."""

    only: tuple[str, ...] = Field(
        default=(), description="Load only these plugins (entry-point or distribution names)."
    )
    disable: tuple[str, ...] = Field(default=(), description="Leave these plugins out.")
    require: tuple[str, ...] = Field(default=(), description="Fail unless these plugins are active.")
    allow_overrides: tuple[str, ...] = Field(
        default=(), description="Ids whose replacement by another wheel you consent to."
    )
    trust: tuple[str, ...] = Field(
        default=(), description="Distributions whose kernels may win by tier, as if the platform vouched."
    )
    import_seconds: Annotated[float, Field(gt=0)] = Field(
        default=60.0,
        description="Seconds that one plugin's specs may take to be imported, or one hook, before the plugin is left "
        "out as broken. What specs name, which may import torch, gets ten times as long.",
    )


class SchedulerSection(Section):
    """How requests are batched."""

    max_num_seqs: Annotated[int, Field(ge=1)] = Field(default=128, description="Requests that may run at once.")
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = Field(
        default=2048, description="Tokens that one step may compute."
    )
    chunked_prefill: bool = Field(default=True, description="Split long prompts over steps, beside decoding requests.")
    max_waiting: Annotated[int, Field(ge=1)] = Field(
        default=1024, description="Requests that may wait; more are refused with 429."
    )
    max_per_tenant: Size = Field(
        default=0,
        description="Requests of one tenant (API key, else address) that run or wait; more get 429. 0: no limit.",
    )
    queue_timeout: Seconds = Field(default=0.0, description="Seconds until a request must begin, or 504. 0: no limit.")
    request_timeout: Seconds = Field(default=0.0, description="Seconds until a request must end, or 504. 0: no limit.")
    max_slowdown: Annotated[float, Field(ge=0)] = Field(
        default=4.0,
        description="Limit of a step's time while several tenants are served, in times of what a step of one token "
        "takes. 0: no limit.",
    )
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Shares by tenant: 16 hex digits of the API key's SHA-256, or an address. Others have 1.",
    )


class PinnedPrompt(Section):
    """A prefix that stays in the cache."""

    id: Annotated[str, Field(min_length=1)] = Field(description="Name of the pin.")
    text: str = Field(default="", description="The prefix.")
    file: str = Field(default="", description="File that holds the prefix, in place of text.")
    cache_salt: str = Field(default="", description="Salt of the requests that are to find it.")
    tenant: str = Field(default="", description="Tenant whose requests are to find it, where tenants are isolated.")
    seconds: Seconds = Field(default=0.0, description="How long it stays. 0: without end.")


class CacheSection(Section):
    """The K/V cache."""

    block_size: Annotated[int, Field(ge=1, le=4096)] = Field(default=16, description="Tokens per block.")
    num_blocks: Size = Field(default=0, description="Blocks in the pool. 0: as many as the memory budget holds.")
    memory_gib: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="Memory for the cache. 0: a share of what is free."
    )
    memory_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="Share of the free device memory that the cache may take where memory_gib is 0."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float8_e4m3fn"] = Field(
        default="auto", description="Cache dtype. auto: the engine's."
    )
    state_block_size: Annotated[int, Field(ge=1)] = Field(
        default=512, description="Tokens between kept recurrent states, at which a prefix can be reused."
    )
    prefix_caching: bool = Field(default=True, description="Reuse the blocks of equal prefixes.")
    isolate_tenants: bool = Field(default=False, description="Reuse no block that another tenant's request computed.")
    pin_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="Share of the blocks that pinned prefixes may hold."
    )
    pins: tuple[PinnedPrompt, ...] = Field(default=(), description="Prefixes to pin at the start.")


class ServerSection(Section):
    """The HTTP server."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8000, description="Port to listen on. 0: any free one.")
    api_keys: tuple[Key, ...] = Field(default=(), description="Keys, any of which a client must send. []: open to all.")
    admin_keys: tuple[Key, ...] = Field(
        default=(), description="Keys, any of which opens operators' routes. []: those are closed."
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Names in the Host header that are served, besides loopback's and the bound address; '*': any. "
        "Empty: any where there are api_keys, else IP addresses, and off loopback private names too.",
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
        default=512 << 20, description="Bytes of request bodies held until their answers start; more get 429."
    )
    max_buffered_bytes_per_client: Count = Field(
        default=256 << 20, description="The same of one client: an API key, else an address."
    )
    max_unread: Count = Field(
        default=4_000_000,
        description="Tokens and log-probabilities of answers that wait to be read; more end the one that holds most.",
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
        default=60.0, description="Seconds in which a client must read on; then its request is aborted."
    )
    keep_alive: Timeout = Field(default=75.0, description="Seconds that an idle connection is kept open.")
    min_bytes_per_second: Annotated[float, Field(ge=0)] = Field(
        default=500.0, description="Slowest body and slowest reader, after these times have passed once. 0: any."
    )
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="Time that running requests get on SIGTERM."
    )
    prepare_seconds: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Seconds that preparing a request may take: reading, checking, tokenizing it."
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
        default=5.0, description="Seconds that one call of a parser or IO processor may take, or its request fails."
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="Origins that browsers may call from.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Verbosity of the log.")
    log_format: Literal["text", "json"] = Field(default="text", description="json: an object on each line of the log.")
    otlp_endpoint: str = Field(
        default="", description="OTLP/HTTP collector that takes a span of each request. Needs llmk-core[otel]."
    )
    stat_loggers: tuple[str, ...] = Field(
        default=(), description="Stat loggers of plugins, by id or name, that are told the numbers of /metrics."
    )
    stat_interval: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="Seconds between two times that stat loggers are told."
    )


class LimitsSection(Section):
    """The most that one request may hold: what costs something each, whatever the model's context is."""

    messages: Count = Field(default=10_000, description="Messages of a conversation.")
    parts: Count = Field(default=50_000, description="Parts and tool calls of all messages of a conversation.")
    tools: Count = Field(default=1024, description="Tools that a request offers.")
    prompts: Count = Field(default=1024, description="Prompts of a text completion, or of an IO processor.")
    stop: Count = Field(default=64, description="Strings in stop.")
    stop_characters: Count = Field(default=4096, description="Characters of all strings in stop.")
    stop_token_ids: Count = Field(default=1024, description="Tokens in stop_token_ids.")
    bad_words: Count = Field(default=1000, description="Words in bad_words.")
    bad_words_characters: Count = Field(default=50_000, description="Characters of all words in bad_words.")
    bad_words_tokens: Count = Field(
        default=1 << 16, description="Tokens of all spellings of bad_words, times n: what each step compares."
    )
    allowed_token_ids: Count = Field(default=1 << 18, description="Tokens in allowed_token_ids.")
    logit_bias: Count = Field(default=4096, description="Tokens in logit_bias.")
    logits_processors: Count = Field(default=64, description="Logits processors that a request names.")
    logits_processors_bytes: Count = Field(default=1 << 16, description="JSON bytes of logits_processors.")
    metadata: Count = Field(default=1024, description="Entries in metadata.")
    name_characters: Count = Field(default=4096, description="Characters of a name: cache_salt, user, and the like.")
    tokens: Count = Field(default=1 << 20, description="Tokens that /tokenize makes and /detokenize takes.")
    io_values: Count = Field(default=1 << 20, description="Values in the body of an IO processor, at any depth.")


class EngineSection(Section):
    """The engine as a whole."""

    strict: bool = Field(default=False, description="Make a broken better candidate, or a broken plugin, fatal.")
    deterministic: bool = Field(
        default=False, description="Choose only kernels whose results don't depend on the batch."
    )
    seed: int = Field(default=0, description="Seeds dummy weights, and requests that name no seed of their own.")
    graphs: bool = Field(
        default=True, description="Record steps that decode, and replay them, where platform and kernels allow it."
    )
    warm_up: bool = Field(
        default=True, description="Run steps of every kind before the first request, where kernels are compiled by use."
    )
    steps_in_flight: Annotated[int, Field(ge=0, le=2)] = Field(
        default=0, description="2: prepare a step while the device runs another. 0: 2 where steps run behind the host."
    )
    hang_seconds: Seconds = Field(
        default=300.0, description="Seconds until an engine process that does not answer is killed. 0: no limit."
    )
    plugin_seconds: Seconds = Field(
        default=10.0,
        description="Seconds in which calls of logits processors and policies must return. 0: no limit.",
    )
    standby: bool = Field(
        default=True, description="Keep a process that has done its imports, to take over where the engine dies."
    )
    restart_seconds: Seconds = Field(
        default=60.0, description="Seconds that requests wait for a dead engine to be started again, or 503."
    )


class Config(Section):
    """All of llmk's configuration."""

    model: ModelSection = Field(default_factory=ModelSection)
    platform: PlatformSection = Field(default_factory=PlatformSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    select: SelectSections = Field(default_factory=SelectSections)
    plugins: PluginsSection = Field(default_factory=PluginsSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    cache: CacheSection = Field(default_factory=CacheSection)
    server: ServerSection = Field(default_factory=ServerSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    plugin: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Sections of plugins, validated by the plugin's own schema."
    )
