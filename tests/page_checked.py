"""A page that is followed tag by tag: well-formed, of known elements, without handlers or addresses of others."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "img"}
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "h4", "p", "dl", "dt", "dd", "div"),
    *("label", "input", "section", "span", "i", "b", "pre", "svg", "g", "rect", "text", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td", "img", "video", "audio"),
}
SOURCE = re.compile(r"data:(image/(png|jpeg)|video/(mp4|webm|x-matroska)|audio/(flac|mpeg|wav));base64,[A-Za-z0-9+/=]*")


class CheckedPage(HTMLParser):
    """What a page says; it is an error if data have become markup."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.texts: dict[str, list[str]] = {}
        """By the element that they are in."""
        self.text = ""
        """All of them, without the styles."""
        self.sources: dict[str, list[str]] = {}
        self.num_trained = 0
        self.feed(page)
        self.close()
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("href", "style", "srcset", "action", "poster"), name
            if name == "src":
                assert SOURCE.fullmatch(value or ""), value
                self.sources.setdefault(tag, []).append(value or "")
            if name == "id" and value is not None:
                self.ids.append(value)
        self.num_trained += tag == "span" and "on" in (dict(attrs).get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)
            self.text += data * (self.open[-1] != "style")
