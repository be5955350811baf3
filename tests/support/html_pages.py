"""Pages of evaluations as a browser reads them, and texts that try to be more than text."""

from __future__ import annotations

from html.parser import HTMLParser

from tbactl.testing.task_conformance import HOSTILE_TEXTS

HOSTILE = {
    **HOSTILE_TEXTS,
    "script": "</div></article><script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)',
    "image": "<img src=https://example.org/x onerror=alert(1)>",
    "style": "</style><style>@import url(https://example.org/x)</style>",
    "comment": "<!-- --> ]]> <![CDATA[",
    "entity": "&lt;b&gt; &#x202e;",
}


class Elements(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = set(), set(), [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attributes)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
