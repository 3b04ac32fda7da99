"""What fake-gcs-server lacks: the writes of GCS's XML API, which obstore sends, made of uploads to its JSON API.

As Google documents them. Objects, their generations and the condition on these are the server's own; here is what the
two APIs say differently, and uploads in parts:

    PUT KEY                             an object; with ``x-goog-if-generation-match: 0`` only where none is
    POST KEY?uploads                    begins an upload
    PUT KEY?partNumber=N&uploadId=ID    a part
    POST KEY?uploadId=ID                the object, of the parts that the body names; the upload is over
    DELETE KEY?uploadId=ID              ends an upload without an object
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import urllib.error
import urllib.request
from email.message import Message
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree as xml  # noqa: N813
from xml.sax.saxutils import escape

from counts import PATIENCE_S
from fault_proxy import Answer

LEAST_PART_BYTES = 5 << 20
"""Of all parts but the last."""

_CODES = {404: "NoSuchBucket", 412: "PreconditionFailed"}


class Refused(Exception):  # noqa: N818 -- it never leaves this module
    """A request that GCS answers with an error."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.answer = _xml(status, f"<Error><Code>{code}</Code><Message>{code} as a test made it.</Message></Error>")


class GcsWrites:
    """Serves the writes of a fake-gcs-server, see `fault_proxy.Serve`.

    Args:
        endpoint: URL of the server.
        token: what must be in the header ``Authorization`` of each write.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._lock = threading.RLock()
        self._uploads: dict[tuple[str, str], dict[int, bytes]] = {}
        """The parts of each upload that is not over, by key and id."""

    def __call__(self, method: str, path: str, headers: Message, body: bytes) -> Answer | None:
        """Answer a write; leave reads, and the removal of objects, to the server."""
        place, _, query = path.partition("?")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        if method not in ("PUT", "POST", "DELETE"):
            return None
        try:
            if headers.get("Authorization") != f"Bearer {self._token}":
                raise Refused(401, "AuthenticationRequired")
            if int(headers.get("Content-Length", 0)) != len(body):  # the client was killed
                raise Refused(400, "IncompleteBody")
            if method == "DELETE" and not asked:
                return None
            bucket, _, key = unquote(place).removeprefix("/").partition("/")
            if not asked:
                return self._put(bucket, key, body, headers.get("x-goog-if-generation-match"))
            if "uploads" in asked:
                return self._begin(key)
            upload = (key, asked["uploadId"])
            if method == "PUT":
                return self._part(upload, int(asked["partNumber"]), body)
            if method == "POST":
                return self._complete(bucket, upload, body)
            self._end(upload)
            return Answer(204, {}, b"", 0)
        except Refused as refused:
            return refused.answer

    def _put(self, bucket: str, key: str, data: bytes, generation: str | None = None) -> Answer:
        # Version 1.54 of the server heeds conditions of this kind of upload only: one of a description and the content.
        condition = "" if generation is None else f"&ifGenerationMatch={generation}"
        end = secrets.token_hex(16)
        described = f"--{end}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': key})}\r\n--{end}\r\n\r\n"
        request = urllib.request.Request(
            f"{self._endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}",
            data=b"".join((described.encode(), data, f"\r\n--{end}--\r\n".encode())),
            headers={"Content-Type": f"multipart/related; boundary={end}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                written = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, _CODES.get(error.code, "InternalError")) from None
        return Answer(200, {"ETag": f'"{written["etag"]}"', "x-goog-generation": str(written["generation"])}, b"", 0)

    def _begin(self, key: str) -> Answer:
        upload = secrets.token_hex(8)
        with self._lock:
            self._uploads[key, upload] = {}
        made = f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
        return _xml(200, f"<InitiateMultipartUploadResult>{made}</InitiateMultipartUploadResult>")

    def _part(self, upload: tuple[str, str], number: int, data: bytes) -> Answer:
        with self._lock:
            self._open(upload)[number] = data
        return Answer(200, {"ETag": _etag(data)}, b"", 0)

    def _complete(self, bucket: str, upload: tuple[str, str], body: bytes) -> Answer:
        with self._lock:
            sent = self._open(upload)
            parts = []
            for named in xml.fromstring(body):
                found = {one.tag.rpartition("}")[2]: one.text or "" for one in named}
                part = sent.get(int(found["PartNumber"]))
                if part is None or _etag(part) != found["ETag"]:
                    raise Refused(400, "InvalidPart")
                parts.append(part)
            if any(len(part) < LEAST_PART_BYTES for part in parts[:-1]):
                raise Refused(400, "EntityTooSmall")
            written = self._put(bucket, upload[0], b"".join(parts))
            self._end(upload)
        made = f"<CompleteMultipartUploadResult><ETag>{written.headers['ETag']}</ETag></CompleteMultipartUploadResult>"
        return _xml(200, made)._replace(headers=written.headers)

    def _open(self, upload: tuple[str, str]) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise Refused(404, "NoSuchUpload")
        return self._uploads[upload]

    def _end(self, upload: tuple[str, str]) -> None:
        with self._lock:
            self._open(upload)
            del self._uploads[upload]


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _xml(status: int, text: str) -> Answer:
    data = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    return Answer(status, {"Content-Type": "application/xml"}, data, len(data))
