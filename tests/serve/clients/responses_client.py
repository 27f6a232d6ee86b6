"""OpenAI's client for responses: text, structured output, streaming and a tool loop."""

import json
import os

import openai
import pydantic

URL, KEY = os.environ["SERVER_URL"] + "/v1", os.environ["SERVER_KEY"]
client = openai.OpenAI(api_key=KEY, base_url=URL, max_retries=0)
short = {"model": "any", "max_output_tokens": 8, "temperature": 0}


def refused(call, says: str, param: str) -> None:
    try:
        call()
    except openai.BadRequestError as caught:
        assert says in caught.message, caught.message
        assert caught.param == param, caught.param
    else:
        raise AssertionError("nothing was refused")


# A text, whole and streamed, and as turns.
whole = client.responses.create(
    **short, input="Where do whales sleep?", instructions="Be brief.", store=False
)
assert (whole.object, whole.model, whole.store) == ("response", "any", False)
assert whole.status in ("completed", "incomplete")
assert whole.output_text == whole.output[0].content[0].text
assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
assert whole.usage.output_tokens_details.reasoning_tokens == 0
turns = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Where do whales sleep?"},
]
same = client.responses.create(**short, input=turns)
assert (same.output_text, same.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
events = list(client.responses.create(**short, input=turns, stream=True))
assert [event.type for event in events[:4]] == [
    *("response.created", "response.in_progress"),
    *("response.output_item.added", "response.content_part.added"),
]
assert [event.type for event in events[-4:-1]] == [
    *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
]
assert [event.sequence_number for event in events] == list(range(len(events)))
assert events[-1].response.output_text == whole.output_text


# A form to keep to.
class City(pydantic.BaseModel):
    """The schema of the output."""

    name: str = pydantic.Field(max_length=8)
    visitors: int = pydantic.Field(ge=0, le=999)


asked = {"model": "any", "input": "Name a city.", "text_format": City, "temperature": 0}
parsed = client.responses.parse(**asked)
assert isinstance(parsed.output_parsed, City)
with client.responses.stream(**asked) as stream:
    kinds = {event.type for event in stream}
    assert stream.get_final_response().output_parsed == parsed.output_parsed
assert {"response.output_text.delta", "response.output_text.done", "response.completed"} <= kinds


# The tool loop: a search call, its results, and an answer.
class Search(pydantic.BaseModel):
    """Find texts."""

    query: str = pydantic.Field(max_length=12)
    n: int = pydantic.Field(ge=1, le=3)


search = {"type": "function", "name": "search", "description": "Find texts.", "strict": True}
search["parameters"] = {**Search.model_json_schema(), "additionalProperties": False}
must = {
    "model": "any",
    "tools": [search, {"type": "web_search", "external_web_access": False}],
    "temperature": 0,
}
must |= {
    "max_output_tokens": 120,
    "parallel_tool_calls": False,
    "store": False,
    "tool_choice": "required",
}
must |= {
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "x",
    "reasoning": {"summary": "auto"},
}
items = [{"role": "user", "content": [{"type": "input_text", "text": "Where do whales sleep?"}]}]
turn = client.responses.create(**must, input=items)
(call,) = turn.output
wanted = Search.model_validate_json(call.arguments)
assert (turn.status, call.type, call.name, call.status) == (
    "completed",
    "function_call",
    "search",
    "completed",
)
with client.responses.stream(**must, input=items) as stream:
    deltas = [
        event.delta for event in stream if event.type == "response.function_call_arguments.delta"
    ]
    (streamed,) = stream.get_final_response().output
assert "".join(deltas) == streamed.arguments == call.arguments
items += turn.output
found = json.dumps({wanted.query: "They sleep in the sea."})
items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})
answer = client.responses.create(**{**must, "tool_choice": "none"}, input=items)
assert answer.output_text
assert {item.type for item in answer.output} == {"message"}
assert answer.usage.input_tokens > turn.usage.input_tokens
assert answer.usage.input_tokens_details.cached_tokens > 0
named = client.responses.create(
    **{**must, "tool_choice": {"type": "function", "name": "search"}}, input=items
)
assert Search.model_validate_json(named.output[0].arguments)
cut = client.responses.create(**{**must, "max_output_tokens": 16}, input=items[:1])
assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")

# Fields that need stored state or are not supported.
ask = client.responses.create
refused(
    lambda: ask(**short, input="x", previous_response_id="resp_1"),
    "not supported",
    "previous_response_id",
)
refused(lambda: ask(**short, input="x", store=True), "not supported", "store")
refused(lambda: ask(**short, input="x", tools=[{"type": "mcp"}]), "function", "tools[0]")
refused(
    lambda: ask(**short, input=[{"type": "item_reference", "id": "x"}]),
    "item_reference",
    "input[0].type",
)
image = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}]
refused(lambda: ask(**short, input=image), "input_image", "input[0].content[0]")
refused(lambda: list(ask(**short, input="hello " * 9000, stream=True)), "is too long", "input")
