"""`Storage` says how an object store is reached, and `connect` makes obstore's store of a bucket.

Credentials come from the environment, as each cloud's own tools find them, from a profile, or from ``options``. They
never leave this process in words: `Secrets` removes them from every message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, MissingExtraError, load_extra

_SECRET_NAMES: Final = re.compile(r"key|secret|token|password|credential|account|sas", re.IGNORECASE)
_SECRET_ENVIRONMENT: Final = re.compile(r"^(AWS|AZURE|GOOGLE|GCS)_\w*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL)")
_QUERY: Final = re.compile(r"\?[^\s\"'<>)]+")
_MOST_WORDS: Final = 300
_CLIENT_OPTIONS: Final = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "proxy_url",
        "root_certificate",
        "user_agent",
    )
)
"""Options of the HTTP client of any store."""

_ENDPOINTS: Final = ("endpoint", "endpoint_url", "base_url")


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an object store is reached. What is not set comes from the environment, as the cloud's own tools find it.

    Those are ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, web identity and
    instance roles for S3; ``GOOGLE_APPLICATION_CREDENTIALS`` and ``GOOGLE_BASE_URL`` for GCS;
    ``AZURE_STORAGE_ACCOUNT_NAME`` and ``AZURE_STORAGE_ACCOUNT_KEY`` for Azure.

    Attributes:
        endpoint: URL of a server that is not the cloud's own, such as ``http://127.0.0.1:8333``.
        region: region of the bucket.
        profile: name of a profile of AWS; needs boto3.
        anonymous: whether requests are not signed, for public buckets. GCS can then only be read.
        options: any other option, by obstore's name for it, such as ``{"account_name": ..., "account_key": ...}``.
            Values are never printed.

    Raises:
        ConfigError: a value is not allowed.

    Example:
        >>> headrace.Storage(options={"access_key_id": "me", "secret_access_key": "hidden"})
        Storage(options=['access_key_id', 'secret_access_key'])
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError for an endpoint without a scheme, and for a profile of an anonymous user."""
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint is {self.endpoint!r}; it must begin with http:// or https://")
        if self.profile is not None and self.anonymous:
            raise ConfigError(f"profile is {self.profile!r}, but anonymous=True uses no credentials; leave one out")

    def __repr__(self) -> str:
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name in ("endpoint", "region", "profile", "anonymous")
            if getattr(self, name)
        ]
        return f"Storage({', '.join([*shown, *([f'options={sorted(self.options)}'] if self.options else [])])})"


class Secrets:
    """Removes credentials from words: the values of options, those in the environment, and the queries of URLs."""

    def __init__(self, storages: Iterable[Storage]) -> None:
        self._storages = storages

    def hidden(self, words: str) -> str:
        """Return words on one line, of bounded length, without any credentials."""
        words = " ".join(words.split())
        for value in sorted(set(self._values()), key=len, reverse=True):
            words = words.replace(value, "***")
        words = _QUERY.sub("?...", words)
        return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}..."

    def _values(self) -> Iterable[str]:
        for storage in self._storages:
            yield from _secrets_in(storage.options, is_secret=False)
        for name, value in os.environ.items():
            if len(value) > 3 and _SECRET_ENVIRONMENT.match(name):
                yield value


def _secrets_in(options: Mapping[str, Any], *, is_secret: bool) -> Iterator[str]:
    """Yield the texts in options that may be secrets: those with such a name, and all parts of what has one."""
    for name, value in options.items():
        is_here = is_secret or _SECRET_NAMES.search(name) is not None
        if isinstance(value, Mapping):
            yield from _secrets_in(value, is_secret=is_here)
        elif is_here and isinstance(value, str) and len(value) > 3:
            yield value


def connect(root: str, scheme: str, storage: Storage, *, retries: Mapping[str, Any] | None = None) -> Any:
    """Return obstore's store of a bucket.

    Args:
        root: URL of the bucket.
        scheme: its scheme.
        storage: how it is reached.
        retries: how obstore itself tries requests again; by default it does not, since that is done and counted here.

    Raises:
        ConfigError: an option is unknown, or the environment is incomplete.
        MissingExtraError: obstore is not installed, or boto3, which profiles need.
    """
    advice = f"{root}: object stores need obstore: pip install 'headrace[remote]'"
    exceptions, store = (load_extra(f"obstore.{name}", advice) for name in ("exceptions", "store"))
    found, client = options_of(root, scheme, storage)
    config: Any = found  # each store has a type of its own for it
    how: dict[str, Any] = {"client_options": client, "retry_config": retries or {"max_retries": 0}}
    name = root.partition("://")[2]
    try:
        if scheme == "s3":
            return store.S3Store(name, config=config, **_profile(root, storage.profile), **how)
        if scheme == "gs":
            return store.GCSStore(name, config=config, **how)
        if scheme == "az":
            return store.AzureStore(name, config=config, **how)
        return store.HTTPStore(root, **how)
    except (exceptions.BaseError, ValueError, TypeError) as error:
        words = Secrets([storage]).hidden(str(error))
        raise ConfigError(f"{root}: cannot be reached as {storage!r} says: {words}") from None


def options_of(root: str, scheme: str, storage: Storage) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the store and those of its HTTP client, by obstore's names.

    Raises:
        ConfigError: an option has no meaning for this store.
    """
    config = dict(storage.options)
    client: dict[str, Any] = {"timeout": "600s", "connect_timeout": "10s"}
    client |= {name: config.pop(name) for name in _CLIENT_OPTIONS & config.keys()}
    if storage.profile is not None and config.get("skip_signature"):
        raise ConfigError(f"{root}: a profile is named, but skip_signature uses no credentials; leave one out")
    if storage.endpoint is not None:
        config["base_url" if scheme == "gs" else "endpoint"] = storage.endpoint
    if storage.region is not None:
        if scheme != "s3":
            raise ConfigError(f"{root}: region={storage.region!r} is for s3://; leave it out")
        config["region"] = storage.region
    if storage.anonymous:
        config["skip_signature"] = True
    if scheme == "http":
        if unsuitable := sorted(config):
            raise ConfigError(f"{root}: {', '.join(unsuitable)} is for object stores, not for http; leave it out")
        return config, {**client, "allow_http": root.startswith("http://")}
    endpoint = str(next((config[name] for name in _ENDPOINTS if name in config), None) or _endpoint_around(scheme))
    if endpoint and not endpoint.startswith(("http://", "https://")):
        host = endpoint.rpartition("@")[2]  # without credentials that may stand there
        raise ConfigError(f"{root}: its endpoint is {host!r}; it must begin with http:// or https://")
    if endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    return config, client


def _endpoint_around(scheme: str) -> str:
    names = {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "gs": ("GOOGLE_BASE_URL",),
        "az": ("AZURE_STORAGE_ENDPOINT",),
    }
    return next((os.environ[name] for name in names.get(scheme, ()) if os.environ.get(name)), "")


def _profile(root: str, profile: str | None) -> dict[str, Any]:
    if profile is None:
        return {}
    try:
        boto3 = import_module("boto3")
        provider = import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            f"{root}: profile={profile!r} needs boto3: pip install boto3, or set the credentials in the environment"
        ) from error
    return {"credential_provider": provider(session=boto3.Session(profile_name=profile))}
