"""The plugin module: what this distribution brings. It needs no torch."""

from __future__ import annotations

from llmk.api import OK, Default, Host, ModelFacts, PlatformFacts, PlatformSpec, Probe, hookimpl


def facts_of(machine: str) -> PlatformFacts:
    """What is known of a machine before anything runs on it. ``features`` are open strings that kernels match on."""
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
    """Usable wherever torch is. A device that may be missing shows in files (``host.read``), and is not opened here:
    ``Probe(no("no_device", wanted="/dev/acme0", found="none"))``."""
    return Probe(OK, facts_of(host.machine))


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """The platform, which ranks below others until it is worth more."""
    return [
        PlatformSpec(
            id="acme.acme",
            name="acme",
            implementation="llmk_acme.platform:AcmePlatform",
            probe=probe,
            known=(facts_of("x86_64"), facts_of("aarch64")),
            rank=-1,
            summary="any machine that torch runs on, by the core's kernels alone",
        )
    ]


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Better defaults on this platform; what the user sets wins over them."""
    if platform.name != "acme":
        return []
    return [Default("cache.memory_share", 0.5, "the machine's memory serves other programs, too")]
