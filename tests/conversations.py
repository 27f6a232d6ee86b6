"""A conversation with calls, results and reasoning, and the number of its computed tokens."""

from __future__ import annotations

from typing import Any

HERMES = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{% set arguments = call.function.arguments %}{{ arguments | tojson }}}\n</tool_call>"
    "{% endfor %}</{{ m.role }}>{% endfor %}<assistant>{% if enable_thinking %}<think>\n{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "maxLength": 3}, "n": {"enum": [1, 22]}},
    "required": ["query", "n"],
}
SEARCH = {
    "type": "function",
    "function": {"name": "search", "description": "Find texts.", "parameters": SCHEMA},
}


def tokens_of(runner: Any, number: int = 0, template: str = HERMES) -> tuple[int, int]:
    """Have ten turns, and return how many tokens of prompts were computed, and how many the last prompt has."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"question of {number}"}]
    n_computed = n_once = 0
    for turn in range(10):
        choice = "none" if turn % 2 else "required"
        asked = {
            "tools": [SEARCH],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "max_tokens": 60,
        }
        response = runner.chat(
            messages, chat_template=template, temperature=0.5, seed=turn, **asked
        )
        (sample,) = response.responses
        n_once = response.prompt_tokens
        n_computed += n_once - response.reused_tokens
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in sample.tool_calls
        ]
        said = {
            "role": "assistant",
            "content": sample.text,
            "tool_calls": calls,
            "reasoning_content": "Hm.",
        }
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}"}
            for call in calls
        ]
        messages += [said, *(results or [{"role": "user", "content": f"question {turn}"}])]
    return n_computed, n_once
