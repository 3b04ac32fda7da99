"""What the options of a `Storage` mean: names and values of fsspec become those of obstore.

    S3       s3fs     key, secret, token, anon, endpoint_url, profile, use_ssl, requester_pays, client_kwargs,
                      config_kwargs
    GCS      gcsfs    token, endpoint_url, requester_pays
    Azure    adlfs    account_name, account_key, sas_token, connection_string, tenant_id, client_id, client_secret, anon

All other names are those of obstore. What has no exact meaning here is refused by its name, with what to do instead. No
message has a value, since any may be a secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import msgspec

from headrace.errors import ConfigError
from headrace.io.paths import read_small

CLIENT_OPTIONS: Final = frozenset(
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

_S3FS: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "region_name": "region",
    "anon": "skip_signature",
    "requester_pays": "request_payer",
}
_BOTOCORE: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "endpoint_url": "endpoint",
    "region_name": "region",
}
_STYLES: Final = {"virtual": {"virtual_hosted_style_request": True}, "path": {"virtual_hosted_style_request": False}}
_TOKENS: Final = {
    "cloud": "leave it out: then the service account of the machine is used, unless the environment names another",
    "cache": "write the credentials to a file, and pass its path",
    "browser": "run gcloud auth application-default login, and leave it out",
}
_CONNECTION: Final = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_AZURE_KEYS: Final = ("account_key", "sas_key", "client_id", "client_secret", "token")
_AZURE_SUFFIX: Final = "core.windows.net"


class PlainOptions(NamedTuple):
    """Options by obstore's names.

    Attributes:
        config: of the store.
        client: of its HTTP client.
        profile: of AWS; None if none is named.
    """

    config: dict[str, Any]
    client: dict[str, Any]
    profile: str | None = None


def plain_options(scheme: str, options: Mapping[str, Any]) -> PlainOptions:
    """Return options by obstore's names; those that are None are left out.

    Raises:
        ConfigError: an option, or its value, has no meaning here.
    """
    given = {name: value for name, value in options.items() if value is not None}
    client = {name: given.pop(name) for name in CLIENT_OPTIONS & given.keys()}
    read = _READERS.get(scheme)
    return PlainOptions(given, client) if read is None else read(given, client)


def _of_s3fs(given: dict[str, Any], client: dict[str, Any]) -> PlainOptions:
    config: dict[str, Any] = {}
    for name, value in _inner(given, "config_kwargs").items():
        where = f"config_kwargs[{name!r}]"
        if name == "region_name":
            config["region"] = value
        elif name == "s3":
            if not isinstance(value, Mapping) or set(value) != {"addressing_style"}:
                _refuse(where, "only addressing_style is known here")
            if value["addressing_style"] not in _STYLES:
                _refuse(f"{where}: addressing_style", "write 'virtual' or 'path'")
            config |= _STYLES[value["addressing_style"]]
        elif (name, value) != ("signature_version", "s3v4"):
            _refuse(where, "leave it out; FetchPolicy says how long requests are tried")
    for name, value in _inner(given, "client_kwargs").items():
        where = f"client_kwargs[{name!r}]"
        if name in _BOTOCORE:
            config[_BOTOCORE[name]] = value
        elif name == "use_ssl":  # which precedes the one outside
            given[name] = value
        elif name == "verify":
            if not isinstance(value, bool):
                _refuse(where, "pass the certificate itself, as PEM, by the name root_certificate")
            if not value:
                client["allow_invalid_certificates"] = True
        else:
            _refuse(where, f"leave it out; known are {', '.join((*_BOTOCORE, 'use_ssl', 'verify'))}")
    uses_ssl, profile = given.pop("use_ssl", True), given.pop("profile", None)
    config |= {_S3FS.get(name, name): value for name, value in given.items()}
    if not uses_ssl and "endpoint" not in config:
        _refuse("use_ssl=False", "pass endpoint_url='http://...', whose scheme says it")
    return PlainOptions(config, client, profile)


def _of_gcsfs(given: dict[str, Any], client: dict[str, Any]) -> PlainOptions:
    if given.pop("requester_pays", False):
        _refuse("requester_pays", "use a bucket whose owner pays: obstore cannot name the project that is billed")
    if "project" in given:
        _refuse("project", "leave it out: to read and to write objects needs none")
    token = given.pop("token", "google_default")
    names = {"endpoint_url": "base_url", "anon": "skip_signature"}
    config = {names.get(name, name): value for name, value in given.items()}
    if isinstance(token, Mapping):
        if "private_key" not in token:
            _refuse(
                "token", "as a dict it must be a service account; write other credentials to a file, and pass its path"
            )
        config["service_account_key"] = json.dumps(dict(token))
    elif not isinstance(token, str | os.PathLike):
        _refuse("token", "pass 'anon', 'google_default', a service account as a dict, or the path of a file")
    elif token in _TOKENS:
        _refuse(f"token={token!r}", _TOKENS[str(token)])
    elif token == "anon":
        config["skip_signature"] = True
    elif token != "google_default":
        config[_kind_of_file(Path(token))] = os.fspath(token)
    return PlainOptions(config, client)


def _kind_of_file(path: Path) -> str:
    """Return obstore's name for a file of credentials: of a service account, or of a user."""
    try:
        found = msgspec.json.decode(read_small(path), type=dict[str, Any])
    except (OSError, ValueError):
        # The path is not named: it may be an access token, as gcsfs takes them too.
        _refuse("token", "no file of credentials can be read there; an access token is passed as bearer_token")
    return "service_account" if "private_key" in found else "application_credentials"


def _of_adlfs(given: dict[str, Any], client: dict[str, Any]) -> PlainOptions:
    if "credential" in given:
        _refuse("credential", "pass account_key, sas_token, or tenant_id, client_id and client_secret")
    connection = given.pop("connection_string", "")
    names = {"anon": "skip_signature", "sas_token": "sas_key"}
    config = {names.get(name, name): value for name, value in given.items()}
    if connection:
        config |= _of_connection(connection)
    if config.get("skip_signature") and any(name in config for name in _AZURE_KEYS):
        _refuse("anon", "credentials are given, too: leave out one of them")
    return PlainOptions(config, client)


def _of_connection(connection: str) -> dict[str, Any]:
    """Return what a connection string of Azure says of its storage of blobs."""
    pairs = [part.strip().partition("=") for part in connection.split(";") if part.strip()]
    found = {name.strip().lower(): value for name, _, value in pairs}
    if found.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": True}
    config = {plain: found[name] for name, plain in _CONNECTION.items() if name in found}
    if not config.keys() & {"account_name", "endpoint"}:
        _refuse("connection_string", "it has neither AccountName nor BlobEndpoint; copy it as the portal shows it")
    if "endpoint" not in config:
        scheme = found.get("defaultendpointsprotocol", "https")
        suffix = found.get("endpointsuffix", _AZURE_SUFFIX)
        if (scheme, suffix) != ("https", _AZURE_SUFFIX):
            config["endpoint"] = f"{scheme}://{config['account_name']}.blob.{suffix}"
    elif "account_name" not in config:
        config["account_name"] = urlsplit(config["endpoint"]).netloc.partition(".")[0]
    return config


def _inner(given: dict[str, Any], name: str) -> dict[str, Any]:
    found = given.pop(name, {})
    if not isinstance(found, Mapping):
        _refuse(name, "pass a dict")
    return {inner: value for inner, value in found.items() if value is not None}


def _refuse(what: str, advice: str) -> NoReturn:
    raise ConfigError(f"the option {what} has no meaning here: {advice}")


_READERS: Final[Mapping[str, Callable[[dict[str, Any], dict[str, Any]], PlainOptions]]] = {
    "s3": _of_s3fs,
    "gs": _of_gcsfs,
    "az": _of_adlfs,
}
