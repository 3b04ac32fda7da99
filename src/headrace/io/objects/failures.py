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
_NO_CREDENTIALS: Final = re.compile(r"169\.254\.169\.254|metadata\.google|metadata/identity")
_CREDENTIALS: Final = {
    "s3": "set them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass"
    " Storage(profile=...) or Storage(anonymous=True)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS in the environment, or pass Storage(anonymous=True), which only reads",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment, or pass"
    " Storage(anonymous=True)",
}
_PERMISSION: Final = (
    "check the credentials, and what they are allowed to do. A store whose objects may be read but not listed"
    " says the same of an object that is not there: allow listing, too"
)
NO_BUCKET: Final = "there is no such bucket: check URL and endpoint"
_REGION: Final = "the bucket is in another region: set AWS_REGION in the environment, or pass Storage(region=...)"
_ADVICE: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"ExpiredToken|TokenRefreshRequired", "the session token has expired: get new credentials"),
        (r"InvalidToken", "the session token is not valid: get new credentials"),
        (r"InvalidAccessKeyId", "the store does not know this access key: check the credentials, and the endpoint"),
        (r"SignatureDoesNotMatch", "the secret key does not belong to the access key: check the credentials"),
        (r"RequestTimeTooSkewed", "the clock of this machine is wrong: set it"),
        (r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint", _REGION),
        (r"redirect without LOCATION", _REGION),
        (r"NoSuchBucket|ContainerNotFound|bucket does not exist", NO_BUCKET),
    )
)
_ENDPOINT: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (
            r"InvalidContentType|corrupt message|wrong version number|record overflow",
            "the server does not speak TLS: the endpoint may have to begin with http://",
        ),
        (
            r"UnknownIssuer|invalid peer certificate|certificate verify failed",
            "the certificate of the server is not trusted: install that of its authority on this machine",
        ),
        (r"non-partial response", "the server does not answer ranges, without which nothing can be read"),
        (r"Name or service not known|nodename nor servname", "there is no such host: check the endpoint"),
    )
)


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


def advice_for(error: Exception, scheme: str) -> str | None:
    """Return advice, which may be empty, for a failure that does not pass; None for one that may."""
    kind, words = type(error).__name__, str(error)
    if scheme in _CREDENTIALS and _NO_CREDENTIALS.search(words):
        return f"; no credentials were found: {_CREDENTIALS[scheme]}"
    status = _STATUS.search(words)
    code = 0 if status is None else int(status[1])
    if code < 500 and code not in _PASSING_STATUS:
        for pattern, advice in _ADVICE if code or "LOCATION" in words else _ENDPOINT:
            if pattern.search(words):
                return f"; {advice}"
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return f"; {_PERMISSION}"
    if kind in ("NotSupportedError", "InvalidPathError", "AlreadyExistsError", "PreconditionError"):
        return ""
    if code in _LASTING_STATUS:
        return "; the server does not support this request"
    if 300 <= code < 500 and code not in _PASSING_STATUS:
        return ""
    return None
