"""Which models there are.

In: the upstreams. Out: the merged list that `/v1/models` answers with, and the model that a request asks for.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from headrace.exchange import Request
from headrace.gateway.model_list import LONGEST_NAME
from headrace.gateway.upstreams import Upstream


class _Body(msgspec.Struct):
    """What routing needs of a request's body; the rest is skipped, not built."""

    model: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)] | None = None


_decoder = msgspec.json.Decoder(_Body)


class BadBody(Exception):
    """The body is no JSON object, or its `model` no text."""


def asked_model(request: Request, body: bytes) -> str | None:
    """The `model` of a JSON body; `None` when there is no body, no JSON, or no model in it.

    Raises `BadBody` when the body says that it is JSON and is not.
    """
    content_type = (request.header("content-type") or "application/json").partition(";")[0].strip().lower()
    is_json = content_type == "application/json"
    # `curl -d` names another type, and model servers read JSON all the same.
    if not body or not (is_json or body.lstrip()[:1] == b"{"):
        return None
    try:
        return _decoder.decode(body).model
    except msgspec.ValidationError as error:
        raise BadBody(f"the request's body is not what was expected: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not is_json:
            return None
        raise BadBody(f"the request's body is no JSON: {error}") from None
    except RecursionError:
        raise BadBody("the request's body is nested too deeply") from None


def merged(upstreams: list[Upstream]) -> dict[str, Any]:
    """All models by name, each with the upstreams that serve it. Patterns name no model and are left out."""
    owners: dict[str, list[str]] = {}
    for upstream in upstreams:
        for model in upstream.models:
            if "*" not in model:
                owners.setdefault(model, []).append(upstream.name)
    data = [
        {"id": model, "object": "model", "created": 0, "owned_by": ", ".join(names)}
        for model, names in sorted(owners.items())
    ]
    return {"object": "list", "data": data}
