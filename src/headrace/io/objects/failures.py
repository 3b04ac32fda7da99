"""Which failures of requests to object stores may pass, and what to do about those that do not.

`words_of` says what a failed request answered, on one line and without credentials; `advice_for` whether to try again.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.io.storage import Secrets

_STATUS: Final = re.compile(r"status code: (\d{3})")
_PASSING_STATUS: Final = frozenset((408, 425, 429))
_LASTING_STATUS: Final = frozenset((501, 505))
"""Errors of a server that does not know the request, and will not know it the next time."""

_SILENT: Final = re.compile(r"status code: (?:400|401|403)[^:]*:\s*$")
_XML_ERROR: Final = re.compile(r"(?:<\?xml|<Error)\s*.*?<Code>\s*([^<]*?)\s*</Code>(.*)", re.DOTALL)
_XML_MESSAGE: Final = re.compile(r"<Message>\s*([^<]*?)\s*</Message>")
_REASON: Final = re.compile(r'(?:message|error): "([^"]+)"')
_LASTING: Final = re.compile(
    r"http://169\.254\.169\.254|http://metadata\.google|redirect without LOCATION|non-partial response"
    r"|InvalidContentType|corrupt message|wrong version number|record overflow"
    r"|UnknownIssuer|invalid peer certificate|certificate verify failed"
    r"|Name or service not known|nodename nor servname"
)
"""Words of obstore on what the next attempt meets too: no credentials but those that a machine of the cloud would have,
a bucket in another region, a server without ranges or without TLS, an unknown certificate, an unknown host."""

_PERMISSION: Final = (
    "; check the credentials, and what they are allowed to do. A store whose objects may be read but not listed"
    " says the same of an object that is not there: allow listing, too"
)
NO_BUCKET: Final = "there is no such bucket: check URL and endpoint"


def words_of(error: Exception, secrets: Secrets) -> str:
    """Return what a failed request says, on one line and without credentials; of an XML document its code and message.

    >>> words_of(OSError("status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>"), Secrets([]))
    'status code: 404 Not Found: NoSuchKey'
    """
    return secrets.hidden(_XML_ERROR.sub(_in_words, _without_source(error)))


def _in_words(found: re.Match[str]) -> str:
    message = _XML_MESSAGE.search(found[2])
    return found[1] if message is None else f"{found[1]}: {message[1]}"


def _without_source(error: Exception) -> str:
    """Return the words of an error; of a connection that failed they do not say why, but what obstore adds does."""
    words, _, source = str(error).partition("\n\nDebug source")
    reason = _REASON.findall(source) if words.endswith("error sending request") else []
    return f"{words}: {reason[-1]}" if reason else words


def is_silent(error: Exception) -> bool:
    """Return whether a request was refused without any reason, as a HEAD is, whose answer has no content."""
    return _SILENT.search(_without_source(error)) is not None


def advice_for(error: Exception) -> str | None:
    """Return advice, which may be empty, for a failure that does not pass; None for one that may."""
    kind, words = type(error).__name__, str(error)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return _PERMISSION
    if kind in ("NotSupportedError", "InvalidPathError", "AlreadyExistsError", "PreconditionError"):
        return ""
    status = _STATUS.search(words)
    code = 0 if status is None else int(status[1])
    if code == 404:  # of an object it is a FileNotFoundError
        return f"; {NO_BUCKET}"
    if code in _LASTING_STATUS or (300 <= code < 500 and code not in _PASSING_STATUS):
        return ""
    return "; check the endpoint, the region and the credentials" if not code and _LASTING.search(words) else None
