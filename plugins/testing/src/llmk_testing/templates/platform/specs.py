"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, Default, Host, ModelFacts, PlatformFacts, PlatformSpec, Probe, hookimpl


def facts_of(machine: str) -> PlatformFacts:
    """The facts of a machine, without running anything on it. ``features`` are free-form strings that kernels match
    on."""
    return PlatformFacts(
        name="acme",
        arch=machine or "unknown",
        device_type="cpu",
        arch_family=machine,
        arch_version=(1,),
        dtypes=("float32",),
        shared_device=True,
        device_name="acme one",
    )


def probe(host: Host) -> Probe:
    """Usable wherever torch is. Detect an optional device through files (``host.read``), without opening it:
    ``Probe(no("no_device", wanted="/dev/acme0", found="none"))``."""
    return Probe(OK, facts_of(host.machine))


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """The platform, with a low rank; raise it when it is ready."""
    return [
        PlatformSpec(
            id="acme.acme",
            name="acme",
            implementation="llmk_acme.platform:AcmePlatform",
            probe=probe,
            known=(facts_of("x86_64"), facts_of("aarch64")),
            rank=-1,
            examples="llmk_acme.examples:MACHINES",
            summary="any machine that torch runs on, with only the core's kernels",
        )
    ]


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Better defaults on this platform; values that the user sets take precedence."""
    if platform.name != "acme":
        return []
    return [Default("cache.memory_share", 0.5, "the machine's memory serves other programs, too")]
