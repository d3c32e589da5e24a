"""The jinja2 environment of the pages: everything escaped and cleaned, everything inline."""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import TYPE_CHECKING, Any

from .palette import theme_css
from .text import clean

if TYPE_CHECKING:
    import jinja2


def fill(template: str, **values: Any) -> str:
    """Fill ``template`` (a file of the folder ``templates``) with ``values``; names in them are untrusted."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else clean(value)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pluribus.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )
    assert environment.loader is not None

    def source(name: str) -> Markup:
        text, _, _ = environment.loader.get_source(environment, name)  # type: ignore[union-attr]
        return Markup(text)  # ours, not a user's

    script = source("hover.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        theme=Markup(theme_css()),
        chart_css=source("charts.css"),
        page_css=source("page.css"),
        script=script,
        # Only this very script may run: a name that got through the escaping still could not.
        script_hash=f"sha256-{digest}",
    )
    return environment
