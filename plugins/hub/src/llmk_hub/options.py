"""What users may set of the hub, next to the environment variables of its other tools."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Options(BaseModel, extra="forbid"):
    """``[plugin.hub]``. Tokens are not among them: files of configuration are shared."""

    endpoint: str = Field("", description="Server to download from. Empty: HF_ENDPOINT, or huggingface.co.")
    cache: str = Field("", description="Folder of downloaded models. Empty: HF_HUB_CACHE, or hub in HF_HOME.")
    offline: bool = Field(False, description="Serve from the cache alone, as with HF_HUB_OFFLINE=1.")
