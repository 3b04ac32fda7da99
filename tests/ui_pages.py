"""Asks the application of `headrace ui` for pages."""

from __future__ import annotations

import html
import re

from starlette.testclient import TestClient

from headrace.ui import Places, application

TOKEN = "a-token-of-a-test"


LINKS = re.compile(r'(?:href|src)="([^"]*)"')


def links(text: str) -> list[str]:
    """All links of a page."""
    return [html.unescape(link) for link in LINKS.findall(text)]


class Pages:
    """Asks for pages by what stands behind the token."""

    def __init__(self, *paths: str, prefix: str = "") -> None:
        self.places = Places(paths or (".",))
        self.client = TestClient(application(self.places, token=TOKEN), base_url="http://127.0.0.1")
        self.root = f"{prefix}/{TOKEN}/"

    def get(self, url: str = "", status: int = 200, **headers: str) -> str:
        answer = self.client.get(self.root + url, headers=headers)
        assert answer.status_code == status, f"{url}: {answer.status_code}\n{answer.text[:3000]}"
        return answer.text
