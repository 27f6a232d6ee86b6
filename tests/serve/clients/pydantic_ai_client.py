"""Pydantic AI over chats and Anthropic's messages: a tool loop with structured output."""

import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
MODELS = (
    OpenAIChatModel("any", provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)),
    AnthropicModel("claude-any", provider=AnthropicProvider(base_url=URL, api_key=KEY)),
)


class Answer(BaseModel):
    """The schema of the output: the place where whales sleep."""

    place: Literal["sea", "land"]
    sources: Literal[1, 2]


def has_found(context) -> bool:
    return any(
        isinstance(part, ToolReturnPart) for message in context.messages for part in message.parts
    )


async def tools_before_search(context, tools):
    return [] if has_found(context) else tools


async def output_tools_after_search(context, tools):
    return tools if has_found(context) else []


for model in MODELS:
    asked = []
    agent = Agent(
        model,
        output_type=Answer,
        instructions="Search, and answer.",
        capabilities=[
            PrepareTools(tools_before_search),
            PrepareOutputTools(output_tools_after_search),
        ],
        model_settings={"temperature": 0, "max_tokens": 200},
    )

    @agent.tool_plain
    def search(query: Literal["whales", "cats"]) -> str:
        """Find texts."""
        asked.append(query)  # noqa: B023
        return "They sleep in the sea."

    result = agent.run_sync("Where do whales sleep?")
    assert isinstance(result.output, Answer)
    assert len(asked) == 1
    assert (result.usage.requests, result.usage.tool_calls) == (2, 1)
    assert result.usage.cache_read_tokens > 0
