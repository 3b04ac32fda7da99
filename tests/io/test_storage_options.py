"""The options of a storage are obstore's own, those of its HTTP client apart."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.io import Storage
from headrace.io.storage import Secrets, connect, options_of

HTTP = {"allow_http": True}
MEANT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("s3", {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"}, {}),
    ("s3", {"skip_signature": True, "request_payer": True, "virtual_hosted_style_request": True}, {}),
    ("s3", {"endpoint": "http://h:1"}, HTTP),
    ("s3", {"endpoint_url": "http://h:1"}, HTTP),
    ("s3", {"endpoint": "https://h:1"}, {}),
    ("s3", {"default_region": "r", "proxy_url": "http://p"}, {"proxy_url": "http://p"}),
    ("s3", {"allow_invalid_certificates": True}, {"allow_invalid_certificates": True}),
    ("gs", {"base_url": "http://h:1"}, HTTP),
    ("gs", {"bearer_token": "planted"}, {}),
    ("az", {"account_name": "me", "account_key": "a2V5"}, {}),
    ("az", {"account_name": "me", "sas_token": "sv=1&sig=x"}, {}),
    ("az", {"account_name": "me", "tenant_id": "t", "client_id": "c", "client_secret": "s"}, {}),
]
"""A scheme, options, and what of them the HTTP client is told."""

UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("s3", {"key": "planted", "secret": "planted"}),
    ("s3", {"client_kwargs": {"verify": False}}),
    ("gs", {"token": "planted"}),
    ("az", {"connection_string": "planted"}),
]
"""Options as fsspec names them."""


@pytest.mark.parametrize(("scheme", "options", "client"), MEANT)
def test_options_are_obstores_own(scheme: str, options: dict[str, Any], client: dict[str, Any]) -> None:
    storage = Storage(options=options)
    found = options_of(f"{scheme}://b", scheme, storage)
    assert found[0] == {name: value for name, value in options.items() if name not in client}
    assert found[1] == {"timeout": "600s", "connect_timeout": "10s", **client}
    assert connect(f"{scheme}://b", scheme, storage)
    assert storage.options == options


@pytest.mark.parametrize(("scheme", "options"), UNKNOWN)
def test_other_options_are_refused_by_name(scheme: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))) as caught:
        connect(f"{scheme}://b", scheme, Storage(options=options))
    assert "planted" not in str(caught.value)


def test_a_profile_has_credentials() -> None:
    with pytest.raises(ConfigError, match="skip_signature"):
        options_of("s3://b", "s3", Storage(profile="me", options={"skip_signature": True}))


def test_secrets_within_options() -> None:
    options = {
        "service_account_key": "planted-1",
        "default_headers": {"x-api-key": "planted-2", "x-other": "not-planted"},
        "account_key": {"more": {"of it": "planted-3"}},
    }
    words = "planted-1 planted-2 planted-3 not-planted"
    assert Secrets([Storage(options=options)]).hidden(words) == "*** *** *** not-planted"
