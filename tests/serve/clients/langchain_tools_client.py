"""LangChain's chat model for OpenAI with tools: a required search, its results, and an answer."""

import os
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="any",
    api_key=os.environ["SERVER_KEY"],
    base_url=os.environ["SERVER_URL"] + "/v1",
    temperature=0,
    max_tokens=120,
)


@tool
def search(query: Literal["whales", "cats"], n: Literal[1, 2, 3]) -> str:
    """Find texts."""
    return f"{n}: {query} sleep in the sea."


must = model.bind_tools([search], tool_choice="required", parallel_tool_calls=False)
turns = [HumanMessage("Where do whales sleep?")]
turn = must.invoke(turns)
(call,) = turn.tool_calls
assert (call["name"], turn.invalid_tool_calls) == ("search", [])
assert turn.response_metadata["finish_reason"] == "tool_calls"
streamed = None
for chunk in must.stream(turns):
    streamed = chunk if streamed is None else streamed + chunk
assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [("search", call["args"])]
result = search.invoke(call)
assert isinstance(result, ToolMessage)
answer = model.bind_tools([search], tool_choice="none").invoke([*turns, turn, result])
assert answer.content
assert not answer.tool_calls
assert answer.usage_metadata["input_token_details"]["cache_read"] > 0
