"""The options of fsspec's three file systems: what each of them means to obstore, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.io import Storage
from headrace.io.objects import abandoned
from headrace.io.storage import Secrets, connect, options_of

# obstore parses the key when a store is made, and this one has no use anywhere.
SERVICE = {"type": "service_account", "client_email": "me@x", "private_key": "none", "private_key_id": "1"}
USER = {"type": "authorized_user", "client_id": "a", "client_secret": "planted", "refresh_token": "planted"}
CONNECTION = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a2V5;EndpointSuffix=core.windows.net"
HTTP = {"allow_http": True}
ANONYMOUS = {"skip_signature": True}

MEANT: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("s3", {"key": "k", "secret": "s"}, {"access_key_id": "k", "secret_access_key": "s"}, {}),
    ("s3", {"key": "k", "secret": "s", "token": "t"}, {"session_token": "t"}, {}),
    ("s3", {"key": None, "secret": None, "token": None, "client_kwargs": None}, {}, {}),
    ("s3", {"anon": True}, ANONYMOUS, {}),
    ("s3", {"anon": False}, {"skip_signature": False}, {}),
    ("s3", {"endpoint_url": "http://h:1"}, {"endpoint": "http://h:1"}, HTTP),
    ("s3", {"endpoint_url": "https://h:1", "use_ssl": False}, {"endpoint": "https://h:1"}, {}),
    ("s3", {"use_ssl": True}, {}, {}),
    ("s3", {"requester_pays": True}, {"request_payer": True}, {}),
    (
        "s3",
        {"client_kwargs": {"endpoint_url": "http://h", "region_name": "r"}},
        {"endpoint": "http://h", "region": "r"},
        HTTP,
    ),
    (
        "s3",
        {"client_kwargs": {"endpoint_url": "https://other"}, "endpoint_url": "https://h"},
        {"endpoint": "https://h"},
        {},
    ),
    (
        "s3",
        {"client_kwargs": {"aws_access_key_id": "x", "aws_secret_access_key": "s"}, "key": "k"},
        {"access_key_id": "k"},
        {},
    ),
    ("s3", {"client_kwargs": {"verify": False}}, {}, {"allow_invalid_certificates": True}),
    ("s3", {"client_kwargs": {"verify": True, "use_ssl": True}}, {}, {}),
    ("s3", {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {"virtual_hosted_style_request": True}, {}),
    ("s3", {"config_kwargs": {"s3": {"addressing_style": "path"}}}, {"virtual_hosted_style_request": False}, {}),
    ("s3", {"config_kwargs": {"signature_version": "s3v4", "region_name": "r"}}, {"region": "r"}, {}),
    ("s3", {"config_kwargs": {"region_name": "x"}, "client_kwargs": {"region_name": "r"}}, {"region": "r"}, {}),
    ("s3", {"default_region": "r", "proxy_url": "http://p"}, {"default_region": "r"}, {"proxy_url": "http://p"}),
    ("gs", {"token": "anon"}, ANONYMOUS, {}),
    ("gs", {"token": None}, {}, {}),
    ("gs", {"token": "google_default"}, {}, {}),
    ("gs", {"token": "SERVICE"}, {"service_account": "SERVICE"}, {}),
    ("gs", {"token": "USER"}, {"application_credentials": "USER"}, {}),
    ("gs", {"token": SERVICE}, {"service_account_key": json.dumps(SERVICE)}, {}),
    ("gs", {"endpoint_url": "http://h:1", "requester_pays": False}, {"base_url": "http://h:1"}, HTTP),
    ("gs", {"bearer_token": "planted"}, {"bearer_token": "planted"}, {}),
    ("az", {"account_name": "me", "account_key": "a2V5"}, {"account_name": "me", "account_key": "a2V5"}, {}),
    ("az", {"account_name": "me", "sas_token": "sv=1&sig=x"}, {"sas_key": "sv=1&sig=x"}, {}),
    ("az", {"account_name": "me", "anon": True}, ANONYMOUS, {}),
    (
        "az",
        {"account_name": "me", "tenant_id": "t", "client_id": "c", "client_secret": "s"},
        {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
        {},
    ),
    ("az", {"connection_string": CONNECTION}, {"account_name": "me", "account_key": "a2V5"}, {}),
    ("az", {"connection_string": CONNECTION, "account_name": "x"}, {"account_name": "me", "account_key": "a2V5"}, {}),
    (
        "az",
        {"connection_string": "DefaultEndpointsProtocol=http;AccountName=me;AccountKey=a2V5;EndpointSuffix=x.cn"},
        {"account_name": "me", "account_key": "a2V5", "endpoint": "http://me.blob.x.cn"},
        HTTP,
    ),
    (
        "az",
        {"connection_string": "BlobEndpoint=https://me.blob.x.net/;SharedAccessSignature=sv=1&sig=x==;"},
        {"account_name": "me", "endpoint": "https://me.blob.x.net/", "sas_key": "sv=1&sig=x=="},
        {},
    ),
    ("az", {"connection_string": "UseDevelopmentStorage=true"}, {"use_emulator": True}, {}),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("s3", {"use_ssl": False}, "use_ssl=False has no meaning here: pass endpoint_url"),
    ("s3", {"client_kwargs": {"verify": "/certificates.pem"}}, r"client_kwargs\['verify'\].*root_certificate"),
    ("s3", {"client_kwargs": {"api_version": "planted"}}, r"client_kwargs\['api_version'\] has no meaning here: leave"),
    ("s3", {"client_kwargs": "planted"}, "client_kwargs has no meaning here: pass a dict"),
    ("s3", {"config_kwargs": {"retries": {"max_attempts": 9}}}, r"config_kwargs\['retries'\].*FetchPolicy"),
    ("s3", {"config_kwargs": {"signature_version": "planted"}}, r"config_kwargs\['signature_version'\]"),
    ("s3", {"config_kwargs": {"s3": {"addressing_style": "auto"}}}, "addressing_style.*'virtual' or 'path'"),
    ("s3", {"config_kwargs": {"s3": {"payload_signing_enabled": True}}}, "only addressing_style"),
    ("s3", {"profile": "me", "anon": True}, "profile"),
    ("gs", {"token": "cloud"}, "token='cloud' has no meaning here: leave it out"),
    ("gs", {"token": "cache"}, "token='cache' has no meaning here: write"),
    ("gs", {"token": "browser"}, "token='browser' has no meaning here: run gcloud"),
    ("gs", {"token": "planted-token"}, "no file of credentials can be read there; an access token is passed as bearer"),
    ("gs", {"token": USER}, "as a dict it must be a service account"),
    ("gs", {"token": object()}, "pass 'anon'"),
    ("gs", {"project": "planted"}, "project has no meaning here: leave it out"),
    ("gs", {"requester_pays": True}, "requester_pays has no meaning here"),
    ("gs", {"consistency": "planted"}, "consistency"),
    ("az", {"credential": "planted"}, "credential has no meaning here: pass account_key"),
    ("az", {"anon": True, "account_name": "me", "account_key": "planted"}, "anon has no meaning here: credentials"),
    ("az", {"connection_string": "planted"}, "connection_string has no meaning here: it has neither"),
    ("az", {"account_host": "planted"}, "account_host"),
]


@pytest.fixture
def placed(tmp_path: Path) -> Any:
    """Options with the paths of files of credentials in the place of their names."""
    paths = {}
    for name, content in (("SERVICE", SERVICE), ("USER", USER)):
        paths[name] = str(tmp_path / f"{name}.json")
        Path(paths[name]).write_text(json.dumps(content))
    return lambda options: {
        name: paths.get(value, value) if isinstance(value, str) else value for name, value in options.items()
    }


@pytest.mark.parametrize(("scheme", "options", "config", "client"), MEANT)
def test_what_options_mean(
    placed: Any, scheme: str, options: dict[str, Any], config: dict[str, Any], client: dict[str, Any]
) -> None:
    found = options_of(f"{scheme}://b", scheme, Storage(options=placed(options)))
    plain = {"access_key_id", "secret_access_key", "account_name"} - config.keys()
    assert {name: value for name, value in found.config.items() if name not in plain} == placed(config)
    assert found.client == {"timeout": "600s", "connect_timeout": "10s", **client}
    assert found.profile is None


@pytest.mark.parametrize(("scheme", "options", "message"), REFUSED)
def test_what_is_refused(scheme: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        connect(f"{scheme}://b", scheme, Storage(options=options))
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "options"), [(scheme, options) for scheme, options, *_ in MEANT])
def test_obstore_knows_what_they_mean(placed: Any, scheme: str, options: dict[str, Any]) -> None:
    more = {"account_name": "me"} if scheme == "az" and "connection_string" not in options else {}
    if options.get("token") in ("SERVICE", SERVICE):
        with pytest.raises(ConfigError, match="pem file") as caught:  # its key is none
            connect(f"{scheme}://b", scheme, Storage(options=placed(options)))
        assert "is not valid" not in str(caught.value)
        return
    assert connect(f"{scheme}://b", scheme, Storage(options={**placed(options), **more}))


def test_a_profile() -> None:
    assert options_of("s3://b", "s3", Storage(options={"profile": "me"})).profile == "me"
    assert options_of("s3://b", "s3", Storage(profile="me", options={"profile": "me"})).profile == "me"
    with pytest.raises(ConfigError, match="another profile"):
        options_of("s3://b", "s3", Storage(profile="me", options={"profile": "other"}))


def test_secrets_within_options() -> None:
    options = {
        "token": {"private_key": "planted-1", "more": {"of it": "planted-2"}},
        "client_kwargs": {"aws_secret_access_key": "planted-3", "region_name": "not-planted"},
        "connection_string": "AccountName=planted-me;AccountKey=planted-4==",
    }
    words = "planted-1 planted-2 planted-3 not-planted planted-4=="
    assert Secrets([Storage(options=options)]).hidden(words) == "*** *** *** not-planted ***"


@pytest.mark.parametrize(
    "options",
    [
        {"client_kwargs": {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_session_token": "t"}},
        {"key": "k", "secret": "s", "token": "t", "use_ssl": True, "config_kwargs": {"region_name": "r"}},
    ],
)
def test_uploads_are_aborted_with_the_same_keys(options: dict[str, Any]) -> None:
    assert abandoned._keys(Storage(options=options)) == ("k", "s", "t")
    assert abandoned._keys(Storage(options={**options, "anon": True})) is None
