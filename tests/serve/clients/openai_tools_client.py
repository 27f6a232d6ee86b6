"""OpenAI's client with tools: a required search and an answer from its results."""

import os

import openai
import pydantic

client = openai.OpenAI(
    api_key=os.environ["SERVER_KEY"], base_url=os.environ["SERVER_URL"] + "/v1", max_retries=0
)
model = next(model for model in client.models.list() if model.task == "generate")


class Search(pydantic.BaseModel):
    """Find texts."""

    query: str = pydantic.Field(max_length=12)
    n: int = pydantic.Field(ge=1, le=3)


search = openai.pydantic_function_tool(Search, name="search")
assert search["function"]["strict"] is True
must = {
    "model": model.id,
    "tools": [search],
    "tool_choice": "required",
    "max_tokens": 120,
    "temperature": 0,
}
must |= {"parallel_tool_calls": False}
turns = [{"role": "user", "content": "Where do whales sleep?"}]
turn = client.chat.completions.create(**must, messages=turns).choices[0]
(call,) = turn.message.tool_calls
assert (turn.finish_reason, turn.message.content, call.type, call.function.name) == (
    "tool_calls",
    None,
    "function",
    "search",
)
# Whole, parsed and streamed, it is the same call.
wanted = Search.model_validate_json(call.function.arguments)
parsed = (
    client.chat.completions.parse(**must, messages=turns).choices[0].message.tool_calls[0].function
)
assert parsed.parsed_arguments == wanted
with client.chat.completions.stream(**must, messages=turns) as stream:
    deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
    last = stream.get_final_completion().choices[0]
assert "".join(delta.arguments_delta for delta in deltas) == call.function.arguments
assert (last.finish_reason, last.message.tool_calls[0].function.parsed_arguments) == (
    "tool_calls",
    wanted,
)
chunks = [
    chunk.choices[0].delta
    for chunk in client.chat.completions.create(**must, messages=turns, stream=True)
]
pieces = [piece for delta in chunks for piece in delta.tool_calls or ()]
assert [piece.id is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)
assert "".join(piece.function.arguments or "" for piece in pieces) == call.function.arguments
# The loop: its result, and an answer.
turns += [
    turn.message,
    {"role": "tool", "tool_call_id": call.id, "content": f"{wanted.query}: they sleep in the sea."},
]
answer = client.chat.completions.create(**{**must, "tool_choice": "none"}, messages=turns)
assert answer.choices[0].message.tool_calls is None
assert answer.choices[0].message.content
assert answer.usage.prompt_tokens > 100
named = {"type": "function", "function": {"name": "search"}}
other = (
    client.chat.completions.create(**{**must, "tool_choice": named}, messages=turns)
    .choices[0]
    .message
)
assert Search.model_validate_json(other.tool_calls[0].function.arguments)
free = (
    client.chat.completions.create(**{**must, "tool_choice": "auto"}, messages=turns)
    .choices[0]
    .message
)
assert free.content or free.tool_calls
cut = client.chat.completions.create(**{**must, "max_tokens": 16}, messages=turns[:1]).choices[0]
assert cut.finish_reason == "length"
try:
    client.chat.completions.create(**{**must, "tool_choice": {"type": "any"}}, messages=turns)
except openai.BadRequestError as refused:
    assert refused.param == "tool_choice"
else:
    raise AssertionError("a choice that is none was taken")
