"""What /openapi.json says of a body and what the server reads of it are the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from scripted import ScriptedExecutor

if TYPE_CHECKING:
    import httpx

MESSAGE = {"role": "user", "content": "x"}
PATHS = {
    "/generate": {"text": "x"},
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [MESSAGE]},
    "/start_profile": {},
}


@pytest.fixture
def ask(in_process: Any, says: Any) -> Any:
    """The published schemas of request bodies by path, and the answers to `bodies`."""

    async def talk(bodies: list[tuple[str, Any]]) -> tuple[dict[str, Any], list[httpx.Response]]:
        async with in_process(ScriptedExecutor(says("abc"), max_context=64)) as client:
            document = (await client.get("/openapi.json")).json()
            return bodies_of(document), [await client.post(path, json=body) for path, body in bodies]

    return lambda *bodies: asyncio.run(talk(list(bodies)))


def bodies_of(document: dict[str, Any]) -> dict[str, Any]:
    operations = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    return {
        path: operation["requestBody"]["content"]["application/json"]["schema"]
        for path, operation in operations.items()
        if "requestBody" in operation
    }


def keys_read(response: httpx.Response) -> set[str]:
    """The keys that the refusal of an unknown one names."""
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "unknown key 'nobody_knows'" in message
    return set(message.split("allowed: ")[1].split(", "))


def object_in(schema: dict[str, Any]) -> dict[str, Any]:
    """The object among a schema's alternatives."""
    return next(one for one in schema["anyOf"] if one.get("type") == "object")


def test_every_body_is_published(ask: Any) -> None:
    schemas, _ = ask()
    assert schemas.keys() == PATHS.keys()
    assert all(schema["properties"] and schema["additionalProperties"] is False for schema in schemas.values())


@pytest.mark.parametrize("path", PATHS)
def test_published_keys_are_those_read(ask: Any, path: str) -> None:
    schemas, (response,) = ask((path, {**PATHS[path], "nobody_knows": 1}))
    assert schemas[path]["properties"].keys() == keys_read(response)


def test_nested_keys_are_published_too(ask: Any) -> None:
    unknown = {"nobody_knows": 1}
    schemas, answers = ask(
        ("/generate", {"text": "x", "sampling_params": unknown}),
        ("/v1/completions", {"prompt": "x", "stream_options": unknown}),
        ("/v1/chat/completions", {"messages": [{**MESSAGE, **unknown}]}),
    )
    sampling = object_in(schemas["/generate"]["properties"]["sampling_params"])
    options = object_in(schemas["/v1/completions"]["properties"]["stream_options"])
    message = schemas["/v1/chat/completions"]["properties"]["messages"]["items"]
    for schema, answer in zip((sampling, options, message), answers, strict=True):
        assert schema["properties"].keys() == keys_read(answer)


def test_limits_are_this_models(ask: Any) -> None:
    schemas, (inside, outside) = ask(
        ("/generate", {"input_ids": [511], "sampling_params": {"max_new_tokens": 1}}),
        ("/generate", {"input_ids": [512]}),
    )
    ids = schemas["/generate"]["properties"]["input_ids"]["anyOf"][0]
    assert ids["items"]["maximum"] == 511
    assert (inside.status_code, outside.status_code) == (200, 400)
    assert schemas["/v1/completions"]["properties"]["model"]["enum"] == ["tiny", None]
