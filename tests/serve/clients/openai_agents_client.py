"""OpenAI's agents over responses: a loop with a required search and an answer, also streamed."""

import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)
client = AsyncOpenAI(
    api_key=os.environ["SERVER_KEY"], base_url=os.environ["SERVER_URL"] + "/v1", max_retries=0
)
asked = []


@function_tool
def search(query: Literal["whales", "cats"]) -> str:
    """Find texts."""
    asked.append(query)
    return "They sleep in the sea."


agent = Agent(
    name="searcher",
    instructions="Search, and answer in a few words.",
    model=OpenAIResponsesModel("any", client),
    tools=[search],
    model_settings=ModelSettings(
        tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=200
    ),
)


async def main() -> None:
    result = await Runner.run(agent, "Where do whales sleep?", max_turns=5)
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"], kinds
    assert kinds[-1] == "message_output_item", kinds
    assert result.final_output
    assert result.context_wrapper.usage.requests == len(result.raw_responses) > 1
    assert result.context_wrapper.usage.input_tokens_details.cached_tokens > 0
    streamed = Runner.run_streamed(agent, "Where do whales sleep?", max_turns=5)
    events = [event async for event in streamed.stream_events()]
    assert {"raw_response_event", "run_item_stream_event"} <= {event.type for event in events}
    assert streamed.final_output == result.final_output
    assert len(asked) == 2 * (len(result.raw_responses) - 1)


asyncio.run(main())
