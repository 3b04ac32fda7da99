"""Finds uploads in several parts that were begun and never ended, in S3, and aborts them.

A process that is killed leaves the parts that it has sent: they are hidden, billed, and of no use. obstore cannot list
them, so these two requests are made and signed here (AWS Signature Version 4). Azure removes such parts itself after a
week; for GCS, and where the keys come from an instance role without boto3, set a rule of the bucket's life cycle.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as xml  # noqa: N813

from headrace.errors import OutputError
from headrace.io.objects.client import FetchPolicy
from headrace.io.remote import bucket_of
from headrace.io.storage import Secrets, Storage, options_of

_EMPTY_HASH: Final = hashlib.sha256(b"").hexdigest()
_UNSUPPORTED: Final = frozenset((400, 404, 405, 501))
"""What servers answer that do not know this request."""

_PASSING: Final = frozenset((408, 425, 429))


class _Keys(NamedTuple):
    key: str
    secret: str
    token: str


def abort_uploads(url: str, storage: Storage, policy: FetchPolicy) -> int | None:
    """See `headrace.io.objects.writer.ObjectWriter.abort_uploads`."""
    bucket = bucket_of(url)
    keys = _keys(storage) if bucket.scheme == "s3" else None
    if keys is None:
        return None
    client = _Client(url, storage, policy, keys)
    count = 0
    while (found := client.uploads()) and found[0]:
        for key, upload in found[0]:
            client.abort(key, upload)
            count += 1
        if not found[1]:
            break
    return None if found is None else count


class _Client:
    """Makes signed requests, each tried again until the deadline of the policy."""

    def __init__(self, url: str, storage: Storage, policy: FetchPolicy, keys: _Keys) -> None:
        bucket = bucket_of(url)
        self._url, self._policy, self._keys = url, policy, keys
        self._secrets = Secrets([storage])
        self._folder = f"{bucket.key}/" if bucket.key else ""
        options = _plain_options(storage)
        around = os.environ
        self._region = (
            options.get("region") or around.get("AWS_REGION") or around.get("AWS_DEFAULT_REGION")
        ) or "us-east-1"
        endpoint = (
            options.get("endpoint")
            or around.get("AWS_ENDPOINT_URL_S3")
            or around.get("AWS_ENDPOINT_URL")
            or around.get("AWS_ENDPOINT")
            or f"https://s3.{self._region}.amazonaws.com"
        )
        parts = urlsplit(endpoint)
        self._server = f"{parts.scheme}://{parts.netloc}"
        self._path = f"{parts.path.rstrip('/')}/{bucket.root.partition('://')[2]}"

    def uploads(self) -> tuple[list[tuple[str, str]], bool] | None:
        """Return key and id of uploads below the folder, and whether there are more; None if this is not supported."""
        data = self._ask("GET", self._path, {"prefix": self._folder, "uploads": ""})
        if data is None:
            return None
        found, is_cut = [], False
        for one in xml.fromstring(data):
            name = one.tag.rpartition("}")[2]
            inner = {part.tag.rpartition("}")[2]: part.text or "" for part in one}
            if name == "Upload":
                found.append((inner.get("Key", ""), inner.get("UploadId", "")))
            is_cut = is_cut or (name == "IsTruncated" and one.text == "true")
        # What is not below the folder is left alone, whatever the server takes a prefix for.
        return [(key, upload) for key, upload in found if key.startswith(self._folder)], is_cut

    def abort(self, key: str, upload: str) -> None:
        """Abort an upload; one that is over by now does not matter."""
        self._ask("DELETE", f"{self._path}/{quote(key, safe='/~')}", {"uploadId": upload})

    def _ask(self, method: str, path: str, query: Mapping[str, str]) -> bytes | None:
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            try:
                with urllib.request.urlopen(self._signed(method, path, query), timeout=self._policy.attempt_s) as reply:
                    data: bytes = reply.read()
                    return data
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in _UNSUPPORTED:
                        return None
                    words = f"status {error.code}: {error.read(300).decode(errors='replace')}"
                    is_final = 400 <= error.code < 500 and error.code not in _PASSING
            except (OSError, EOFError) as error:
                words, is_final = str(error), False
            delay, waited = self._policy.delay(attempt), time.monotonic() - began
            if is_final or waited + delay >= self._policy.deadline_s:
                raise OutputError(
                    f"{self._url}: uploads that were not ended cannot be aborted: {self._secrets.hidden(words)}"
                    f" ({attempt} attempts in {waited:.0f} s; the deadline is {self._policy.deadline_s:g} s)"
                ) from None
            time.sleep(delay)

    def _signed(self, method: str, path: str, query: Mapping[str, str]) -> urllib.request.Request:
        asked = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(query.items()))
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": urlsplit(self._server).netloc, "x-amz-content-sha256": _EMPTY_HASH, "x-amz-date": now}
        if self._keys.token:
            headers["x-amz-security-token"] = self._keys.token
        names = ";".join(sorted(headers))
        lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
        asking = "\n".join([method, path, asked, *lines, "", names, _EMPTY_HASH])
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(asking.encode()).hexdigest()
        key = f"AWS4{self._keys.secret}".encode()
        for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        credential = f"AWS4-HMAC-SHA256 Credential={self._keys.key}/{scope}"
        request = urllib.request.Request(f"{self._server}{path}?{asked}", method=method)
        for name, value in headers.items():
            request.add_header(name, value)
        request.add_header("Authorization", f"{credential}, SignedHeaders={names}, Signature={key.hex()}")
        return request


def _plain_options(storage: Storage) -> dict[str, Any]:
    """Return the options by obstore's names, without the prefix that these may have, and the profile."""
    config, _, profile = options_of("s3://", "s3", storage)
    return {**{name.lower().removeprefix("aws_"): value for name, value in config.items()}, "profile": profile}


def _keys(storage: Storage) -> _Keys | None:
    """Return the keys to sign with: of the storage, of its profile, of the environment, or as boto3 finds them."""
    options = _plain_options(storage)
    profile = options["profile"]
    if options.get("skip_signature") in (True, "true"):
        return None
    if profile is None and options.get("access_key_id") and options.get("secret_access_key"):
        return _Keys(options["access_key_id"], options["secret_access_key"], options.get("session_token", ""))
    around = os.environ
    if profile is None and around.get("AWS_ACCESS_KEY_ID") and around.get("AWS_SECRET_ACCESS_KEY"):
        return _Keys(around["AWS_ACCESS_KEY_ID"], around["AWS_SECRET_ACCESS_KEY"], around.get("AWS_SESSION_TOKEN", ""))
    try:
        session: Any = import_module("boto3").Session(profile_name=profile)
    except ImportError:
        return None
    found = session.get_credentials()
    if found is None:
        return None
    frozen = found.get_frozen_credentials()
    return _Keys(frozen.access_key, frozen.secret_key, frozen.token or "")
