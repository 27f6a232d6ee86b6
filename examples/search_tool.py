"""Search a folder as a tool for a model, with OpenAI's or Anthropic's client.

The tools, their schemas and their answers equal those of `relevance-gen mcp`. A stub replaces the
model, so that the example runs without a network: pass `OpenAI().chat.completions.create` or
`Anthropic().messages.create` instead.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any

from relevance_gen.agents.folders import Folders
from relevance_gen.agents.tools import Tools
from relevance_gen.errors import RelevanceGenError


def called(tools: Tools, name: str, arguments: dict[str, Any]) -> str:
    """Return a tool's answer, or its error as text, so that the model can correct the call."""
    try:
        return tools.call(name, arguments)
    except (RelevanceGenError, KeyError) as error:
        return f"error: {error}"


def ask_openai(create: Callable[..., Any], model: str, question: str, tools: Tools) -> str:
    """Have a model of OpenAI's interface answer a question, calling tools until it does."""
    offered = [
        {
            "type": "function",
            "function": {"name": name, "description": one.purpose, "parameters": one.schema},
        }
        for name, one in tools.by_name.items()
    ]
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        turn = create(model=model, messages=messages, tools=offered).choices[0].message
        if not turn.tool_calls:
            return str(turn.content)
        messages.append(turn)
        for call in turn.tool_calls:
            text = called(tools, call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def ask_anthropic(create: Callable[..., Any], model: str, question: str, tools: Tools) -> str:
    """Have a model of Anthropic's interface answer a question, calling tools until it does."""
    offered = [
        {"name": name, "description": one.purpose, "input_schema": one.schema}
        for name, one in tools.by_name.items()
    ]
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        turn = create(model=model, max_tokens=1000, messages=messages, tools=offered)
        calls = [block for block in turn.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in turn.content)
        messages.append({"role": "assistant", "content": turn.content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": one.id,
                "content": called(tools, one.name, one.input),
            }
            for one in calls
        ]
        messages.append({"role": "user", "content": results})


def openai_stand_in(*, messages: list[Any], **_: Any) -> Any:
    """Search first, and then repeat the first line that was found."""
    if len(messages) == 1:
        function = Stub(name="search", arguments=json.dumps({"question": messages[0]["content"]}))
        return Stub(
            choices=[Stub(message=Stub(content=None, tool_calls=[Stub(id="1", function=function)]))]
        )
    return Stub(
        choices=[
            Stub(message=Stub(content=messages[-1]["content"].split("\n")[1], tool_calls=None))
        ]
    )


def anthropic_stand_in(*, messages: list[Any], **_: Any) -> Any:
    """The same."""
    if len(messages) == 1:
        asked = {"question": messages[0]["content"]}
        return Stub(content=[Stub(type="tool_use", id="1", name="search", input=asked)])
    found = messages[-1]["content"][0]["content"]
    return Stub(content=[Stub(type="text", text=found.split("\n")[1])])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ferry.md").write_text("The ferry to the island leaves at seven.\n")
        Path(folder, "bus.md").write_text("The bus to the harbour leaves at six.\n")
        tools = Tools(Folders.open([folder]))
        print(ask_openai(openai_stand_in, "any", "When does the ferry leave?", tools))
        print(ask_anthropic(anthropic_stand_in, "any", "When does the bus leave?", tools))
