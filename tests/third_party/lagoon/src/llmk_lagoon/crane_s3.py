"""Models in buckets that speak S3's protocol (AWS, MinIO, R2, Ceph): ``s3://BUCKET/PREFIX``.

A model is what lies below ``PREFIX/``. Its revision is a digest of the names, sizes and entity tags that the bucket
lists now, and a copy of each revision is in a folder of its own, which gets its name when all of it is there.
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN`` in the environment sign requests; without
them, buckets must be public.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree

from llmk.api import (
    CheckpointError,
    FetchedModel,
    FetchProgress,
    ModelNotFound,
    ModelSourceContext,
    StoredModel,
)

from .crane_options import parsed
from .crane_s3_sign import signed

CHUNK = 1 << 20
SECONDS = 30
LONGEST_HEADER = 100 << 20
"""Of a safetensors file, in bytes, as the format has it."""
MD5 = re.compile("[0-9a-f]{32}")
AGAIN = "try again; if it stays so, upload the model again"


@dataclass(frozen=True, slots=True, order=True)
class Listed:
    """An object of the model: its name below the prefix, its size in bytes, and its entity tag with the quotes."""

    name: str
    size: int
    etag: str


class Bucket:
    """Follows ``llmk.api.ModelSource``."""

    def __init__(self, context: ModelSourceContext) -> None:
        options = parsed(context.options)
        self._endpoint = options.s3_endpoint.rstrip("/")
        self._region = options.s3_region
        self._cache = context.cache / "s3"

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        """Lists the model, and gets it if this revision of it is not here. Outlines are kept apart."""
        bucket, _, prefix = reference.removeprefix("s3://").partition("/")
        name = prefix.rpartition("/")[2]
        objects = sorted(self._listed(reference, bucket, f"{prefix}/"))
        revision = hashlib.sha256(repr(objects).encode()).hexdigest()[:16]
        whole, outlined = (self._cache / kind / bucket / quote(prefix, safe="") for kind in ("models", "outlines"))
        if (whole / revision).is_dir():
            return FetchedModel(whole / revision, name)
        target = (outlined if outline else whole) / revision
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=self._cache) as folder:
                part = Path(folder, "model")
                self._get(reference, f"{bucket}/{prefix}/", objects, part, progress, outline)
                try:
                    part.rename(target)
                except OSError:
                    if not target.is_dir():  # otherwise another process was quicker
                        raise
        return FetchedModel(target, name)

    def stored(self) -> Iterator[StoredModel]:
        """The copies of all revisions."""
        for folder in sorted(self._cache.glob("models/*/*/*")):
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            bucket, prefix = folder.parts[-3], unquote_plus(folder.parts[-2].replace("+", "%2B"))
            yield StoredModel(f"s3://{bucket}/{prefix}", folder.name, folder, size)

    def _listed(self, reference: str, bucket: str, prefix: str) -> Iterator[Listed]:
        """All objects below the prefix, which come in pages. Markers of folders hold nothing."""
        found, token = False, ""
        while True:
            query = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
            with self._opened(reference, bucket, query | ({"continuation-token": token} if token else {})) as response:
                try:
                    page = ElementTree.fromstring(response.read())
                except (ElementTree.ParseError, OSError, HTTPException) as error:
                    raise CheckpointError(f"{reference} can't be listed: {error}", hint=AGAIN) from error
            for entry in page.iterfind("{*}Contents"):
                key = unquote_plus(entry.findtext("{*}Key", ""))
                size, etag = entry.findtext("{*}Size", ""), entry.findtext("{*}ETag", "")
                if not key.startswith(prefix) or not size.isdecimal():
                    raise CheckpointError(
                        f"{reference} is listed with the object {key!a} of {size!a} bytes", hint=AGAIN
                    )
                if not key.endswith("/"):
                    found = True
                    yield Listed(checked(reference, key.removeprefix(prefix)), int(size), etag)
            token = page.findtext("{*}NextContinuationToken", "")
            if page.findtext("{*}IsTruncated") != "true" or not token:
                break
        if not found:
            hint = f"check the name, and that {self._endpoint} is the right [plugin.crane] s3_endpoint"
            raise ModelNotFound(f"there is no model {reference}: nothing lies below {prefix} in {bucket}", hint=hint)

    def _get(
        self,
        reference: str,
        base: str,
        objects: Sequence[Listed],
        folder: Path,
        progress: FetchProgress,
        outline: bool,
    ) -> None:
        """Downloads the objects to a folder."""
        done, total = 0, sum(each.size for each in objects)
        folder.mkdir()
        for each in objects:
            place = folder / each.name
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    is_header = outline and each.name.endswith(".safetensors")
                    parts = self._header(reference, base, each) if is_header else self._whole(reference, base, each)
                    for data in parts:
                        file.write(data)
                        progress(done + file.tell(), total)
                    file.truncate(each.size)
            except (OSError, HTTPException) as error:
                raise CheckpointError(f"{each.name} of {reference} can't be fetched: {error}", hint=AGAIN) from error
            done += each.size
            progress(done, total)

    def _whole(self, reference: str, base: str, each: Listed) -> Iterator[bytes]:
        """The object's bytes, checked by their number and, where the tag is one, their MD5: it is none of objects that
        were uploaded in parts, nor of those that are encrypted with keys of the owner's."""
        with self._opened(reference, base + each.name, {}, {"If-Match": each.etag}) as response:
            owned = response.headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
            owned |= "x-amz-server-side-encryption-customer-algorithm" in response.headers
            found, digest = 0, hashlib.md5(usedforsecurity=False)
            while data := response.read(CHUNK):
                found += len(data)
                digest.update(data)
                yield data
        tag = each.etag.strip('"')
        if found != each.size or (MD5.fullmatch(tag) and not owned and digest.hexdigest() != tag):
            raise CheckpointError(f"{each.name} of {reference} is damaged: it is not what the bucket lists", hint=AGAIN)

    def _header(self, reference: str, base: str, each: Listed) -> Iterator[bytes]:
        """The header of a safetensors file, which says its own length first."""
        first = self._range(reference, base, each, 0, 8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > min(each.size - 8, LONGEST_HEADER):
            raise CheckpointError(f"{each.name} of {reference} is no safetensors file", hint=AGAIN)
        yield first
        yield self._range(reference, base, each, 8, length)

    def _range(self, reference: str, base: str, each: Listed, start: int, length: int) -> bytes:
        """Some bytes of an object; of services that send the whole object, what is before them is skipped."""
        wanted = {"If-Match": each.etag, "Range": f"bytes={start}-{start + length - 1}"}
        with self._opened(reference, base + each.name, {}, wanted) as response:
            if response.status != 206:
                response.read(start)
            return response.read(length)

    def _opened(
        self, reference: str, path: str, query: dict[str, str], headers: dict[str, str] | None = None
    ) -> HTTPResponse:
        """The response to a GET, which is the caller's to close."""
        text = urlencode(sorted(query.items()), quote_via=quote, safe="")
        url = f"{self._endpoint}/{quote(path, safe='/~')}" + (f"?{text}" if text else "")
        request = urllib.request.Request(url, headers=headers or {})
        for name, value in signed(urlsplit(url), self._region, os.environ).items():
            request.add_header(name, value)
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                code = error.code
            if code == 404 and query:
                raise ModelNotFound(
                    f"there is no bucket for {reference} at {self._endpoint}", hint="check it"
                ) from error
            what = {403: "access is denied", 412: "it was replaced meanwhile", 404: "an object is gone"}
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if code in (401, 403) else AGAIN
            why = what.get(code, f"{self._endpoint} answers {code}")
            raise CheckpointError(f"{reference} can't be fetched: {why}", hint=hint) from error
        except (OSError, HTTPException) as error:
            hint = "check the network and [plugin.crane] s3_endpoint"
            raise CheckpointError(
                f"{reference} can't be fetched: {self._endpoint} can't be reached ({error})", hint=hint
            ) from error
        return response


def checked(reference: str, name: str) -> str:
    """The name of a file of the model. It must not lead out of its folder: others may write to a bucket, too."""
    path = PurePosixPath(name)
    if str(path) != name or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        raise CheckpointError(
            f"{reference} has an object {name!a}, which is no name of a file in the model",
            hint="remove it from the bucket, or ask who owns the bucket",
        )
    return name
