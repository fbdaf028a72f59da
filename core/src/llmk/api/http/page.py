"""Pages for browsers."""

from __future__ import annotations

from dataclasses import dataclass

from llmk.api.specs import CheckedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpec(CheckedSpec):
    """A page for browsers: the files of a folder inside a package. Browsers get ``index.html`` at ``path``, and the
    others at ``/pages/ID/FILE``. Clients that don't accept HTML get the route at ``path``, if there is one.

    The files are served as they are, to anyone, also where the server has API keys: what a page shows, it requests from
    the server's routes. Browsers run no script of a page that is not a file, and let it reach this server only.
    """

    id: str
    path: str
    package: str
    folder: str
    overrides: str = ""
    summary: str = ""
