"""The page at `/`: where everything is, with nothing from outside."""

from html import escape

from .text import valid_text

LINKS = {
    "/metrics": "counters for Prometheus, text or OpenMetrics",
    "/v1/corrupted-requests": "the newest corrupted requests, as JSON",
    "/health/numeric": "503 while too many requests come out corrupted",
    "/readyz": "503 until a source has been seen; what cannot be read",
    "/healthz": "whether this sidecar lives",
    "/openapi.json": "all of this for programs",
}

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>nanwatch</title>
<style>body {{ font: 16px/1.5 sans-serif; margin: 2em auto; max-width: 42em; padding: 0 1em }}</style>
<h1>nanwatch</h1>
<p>Which requests came out as NaN, and where. Version {version}, journal <code>{journal}</code>.</p>
<ul>
{links}
</ul>
</html>
"""


def page(journal: str, version: str) -> str:
    """Return the page as HTML."""
    links = "\n".join(f'<li><a href="{path}">{path}</a>: {escape(what)}</li>' for path, what in LINKS.items())
    return _PAGE.format(version=escape(version), journal=escape(valid_text(journal)), links=links)
