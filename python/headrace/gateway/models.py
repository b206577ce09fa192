"""Which models there are.

In: the upstreams, or the fields of a request's body. Out: the merged list that `/v1/models` answers with, or
the model that a request asks for.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from headrace.exchange import Request
from headrace.gateway.model_list import Entry, entry_of, same
from headrace.gateway.upstreams import Upstream

BODY_FIELDS = ("model",)
"""What the gateway reads of a request's body (`Exchange.body_fields`)."""


def asked(fields: dict[str, str | bool | None] | None) -> str | None:
    """The model that a request names, by its body's fields. `None` when it names none: so does a body that is
    not a JSON object.

    Raises `ValueError` when what it names cannot be the name of a model.
    """
    model = fields.get("model") if fields else None
    if fields and "model" in fields and not isinstance(model, str):
        raise ValueError("the request's `model` is not a text of at most 256 bytes")
    return model if isinstance(model, str) else None


def is_unreadable(request: Request, fields: dict[str, str | bool | None] | None) -> bool:
    """Whether a body that says that it is JSON is not, so that a model that it may name is not known."""
    kind = (request.header("content-type") or "application/json").partition(";")[0].strip().lower()
    return fields is None and kind == "application/json"


def merged(upstreams: list[Upstream]) -> dict[str, Any]:
    """All models by name, each with the entry of the first upstream that tells of it, as it came. Patterns
    name no model and are left out."""
    entries: dict[str, Entry] = {}
    for upstream in upstreams:
        for model in upstream.models:
            if "*" not in model:
                entries.setdefault(model, upstream.discovered.get(model) or entry_of(model, upstream.name))
    return {"object": "list", "data": [entry for _, entry in sorted(entries.items())]}


def entry(upstreams: list[Upstream], path: str) -> Entry | None:
    """The model that a path below `/v1/models/` names, whether the client has encoded it or not."""
    names = {name := path.removeprefix("/v1/models/"), unquote(name)}
    listed: list[Entry] = merged(upstreams)["data"]
    exact = (entry for entry in listed if entry["id"] in names)
    tagged = (entry for entry in listed if any(same(name, entry["id"]) for name in names))
    return next(exact, None) or next(tagged, None)


def unknown(upstreams: list[Upstream]) -> dict[str, str]:
    """Upstreams of whose models nothing is known, by name, each with the reason."""
    return {up.name: up.unknown_because for up in upstreams if not up.knows_models}
