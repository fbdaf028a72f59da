"""What the hub refuses, in words that say what to do."""

from __future__ import annotations

import errno
import os
from difflib import get_close_matches
from typing import Any

from huggingface_hub import get_token
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is that of its library for HTTP
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from llmk.api import CheckpointError, LlmkError, ModelNotFound
from llmk_hub.place import Place
from llmk_hub.reference import Reference

FAILURES = (HTTPError, OSError)
"""What ``huggingface_hub`` raises: for responses, for connections, and of its own."""

_ELSEWHERE = "keep models elsewhere: HF_HUB_CACHE=FOLDER, or plugin.hub.cache"
_DISK = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"free some space (hf cache list, hf cache rm), or {_ELSEWHERE}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"let this user write there, or {_ELSEWHERE}"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), f"remove the file that is in the way, or {_ELSEWHERE}"),
}


class Unreachable(CheckpointError):
    """The hub does not answer, or not now."""


def explained(error: BaseException, wanted: Reference, place: Place) -> LlmkError:
    """The error to raise for one of :data:`FAILURES`."""
    if isinstance(error, GatedRepoError):
        return _gated(wanted, place)
    if isinstance(error, RepositoryNotFoundError):
        return _unknown(wanted, place)
    if isinstance(error, RevisionNotFoundError):
        return _no_revision(wanted, place)
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if status in (401, 403):
        return _refused(wanted, place)
    if isinstance(error, HTTPError) and (status == 0 or status == 429 or status >= 500):
        return unreachable(wanted, place, f"it answers with status {status}" if status else _first_line(error))
    if isinstance(error.__cause__, HTTPError):  # what it made of an error of the connection
        return explained(error.__cause__, wanted, place)
    if isinstance(error, OSError) and (hint := _DISK.get(error.errno or 0)):
        what = os.strerror(error.errno or 0)
        return CheckpointError(f"{wanted} can't be written to {error.filename or place.cache}: {what}", hint=hint)
    what = f"{wanted} can't be downloaded from {place.endpoint}: {_first_line(error)}"
    return CheckpointError(what, hint="try again; what is there is not downloaded again")


def unreachable(wanted: Reference, place: Place, why: str) -> Unreachable:
    """The error where neither the hub nor the cache has the model now."""
    hint = "try again later, check the network (HTTPS_PROXY), or name a mirror: HF_ENDPOINT"
    return Unreachable(f"{wanted} can't be had from {place.endpoint}: {why}", hint=hint)


def not_cached(wanted: Reference, place: Place, why: str) -> ModelNotFound:
    """The error where nothing may be downloaded."""
    hint = f"unset HF_HUB_OFFLINE, or llmk pull {wanted} where there is a network, and copy the cache"
    known = place.commits(wanted.repository)
    if known and not place.commit(wanted.repository, wanted.branch):  # refs/, which says what a branch is, is missing
        hint = f"name a commit that it has: {wanted.repository}@{known[-1]}"
    return ModelNotFound(f"HF_HUB_OFFLINE is set, and the cache {place.cache} {why}", hint=_near(wanted, place) or hint)


def _gated(wanted: Reference, place: Place) -> CheckpointError:
    page = f"{place.endpoint}/{wanted.repository}"
    if _token(place):
        message = f"{wanted} is gated, and the account of your token has no access to it"
        return CheckpointError(message, hint=f"request access at {page}, with the account that the token is of")
    hint = f"accept its terms at {page}, then give a token of that account: HF_TOKEN=…, or hf auth login"
    return CheckpointError(f"{wanted} is gated: it is downloaded only by accounts that have access", hint=hint)


def _unknown(wanted: Reference, place: Place) -> ModelNotFound:
    message = f"there is no folder {wanted.repository} here, and no model of that name on {place.endpoint}"
    if _token(place):
        hint = "check the name, and that the account of your token has access if it is private"
    else:
        hint = "check the name; a private model needs a token: HF_TOKEN=…, or hf auth login"
    return ModelNotFound(message, hint=_near(wanted, place) or hint)


def _refused(wanted: Reference, place: Place) -> CheckpointError:
    if _token(place):
        message, hint = "your token is not accepted", "make a new one at {}/settings/tokens, with read access"
        return CheckpointError(f"{place.endpoint} refuses {wanted}: {message}", hint=hint.format(place.endpoint))
    hint = "give a token of an account that has access: HF_TOKEN=…, or hf auth login"
    return CheckpointError(f"{place.endpoint} refuses {wanted} without a token", hint=hint)


def _no_revision(wanted: Reference, place: Place) -> ModelNotFound:
    known = _revisions(wanted, place)
    near = get_close_matches(wanted.branch, known, n=1)
    hint = f"did you mean {wanted.repository}@{near[0]}?" if near else f"it has {', '.join(known[:12]) or 'none'}"
    return ModelNotFound(f"{wanted.repository} has no revision {wanted.branch!r}", hint=hint)


def _revisions(wanted: Reference, place: Place) -> list[str]:
    from huggingface_hub import HfApi

    try:
        refs: Any = HfApi(place.endpoint, token=place.token).list_repo_refs(wanted.repository)
    except FAILURES:
        return []
    return [ref.name for ref in (*refs.branches, *refs.tags)]


def _near(wanted: Reference, place: Place) -> str:
    """A hint at a model of the cache whose name is much like the one that is wanted."""
    by_name = {name.lower(): name for name in place.repositories() if name != wanted.repository}
    near = get_close_matches(wanted.repository.lower(), by_name, n=1, cutoff=0.75)
    return f"did you mean {by_name[near[0]]}, which is in the cache?" if near else ""


def _token(place: Place) -> str | None:
    return place.token or get_token()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
