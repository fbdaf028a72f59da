"""Which devices are here, from the environment and the files of the wheel alone. Needs no torch, and starts nothing."""

from __future__ import annotations

from llmk.api import OK, Host, PlatformFacts, Probe, no

VISIBLE = "NOVA_VISIBLE_DEVICES"
"""Lists devices by index; unset: one."""
MEMORY = "NOVA_MEMORY_BYTES"
"""The memory of each device."""
_DEFAULT_MEMORY = 4 << 30


def facts_of(num_devices: int = 1, memory_bytes: int = _DEFAULT_MEMORY) -> PlatformFacts:
    """The facts of nova's first generation. It runs what it is issued at once, hence is not ``"asynchronous"``."""
    return PlatformFacts(
        name="nova",
        arch="n1",
        device_type="nova",
        arch_family="nova",
        arch_version=(1,),
        dtypes=("float32", "bfloat16"),
        memory_bytes=memory_bytes,
        num_devices=num_devices,
        device_name="Nova N1 (simulated)",
    )


KNOWN = (facts_of(),)


def probe(host: Host) -> Probe:
    """Usable where the wheel's library was built, and a device is visible."""
    verdict = OK
    if not host.has_module("llmk_nova._C"):
        hint = "the wheel was built without it; build it with `pip wheel --no-build-isolation .`"
        verdict &= no("library_missing", wanted="llmk_nova/_C", found="nothing", hint=hint)
    visible = host.environ.get(VISIBLE, "0")
    memory = host.environ.get(MEMORY, str(_DEFAULT_MEMORY))
    if not visible:
        hint = f"unset {VISIBLE}, or list indices, as in 0,1"
        return Probe(verdict & no("no_visible_device", wanted="a visible nova", found=f"{VISIBLE}=''", hint=hint))
    return Probe(verdict, facts_of(visible.count(",") + 1, int(memory)))
