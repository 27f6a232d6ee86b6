"""Let a model search: it calls the tool `search`, reads the results, and answers.

A small model, such as the embedded model, does not call tools unless its first turn must. A larger
model, `Runner("owner/name")`, can decide by itself with the tool choice "auto".
"""

import json

from relevance_gen import Runner, search

TEXTS = [
    "Whales sleep in the sea, with one half of the brain at a time.",
    "Cats sleep for fifteen hours a day, on sofas above all.",
    "Swifts sleep in the air.",
]
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find the texts that answer a question best.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "maxLength": 60}},
            "required": ["query"],
        },
    },
}

messages: list[dict] = [{"role": "user", "content": "Where do whales sleep?"}]
with Runner() as runner:
    for tool_choice in ("required", "none"):
        options = {
            "tool_choice": tool_choice,
            "parallel_tool_calls": False,
            "max_tokens": 100,
            "temperature": 0,
        }
        turn = runner.chat(messages, tools=[SEARCH], **options).responses[0]
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in turn.tool_calls
        ]
        messages.append({"role": "assistant", "content": turn.text, "tool_calls": calls})
        for call in turn.tool_calls:
            found = search(json.loads(call.text)["query"], TEXTS, top_n=2, true_order=False)
            text = "\n".join(result.chunk_txt for result in found) or "Nothing was found."
            print(f"{call.name}({call.text}) -> {text}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(turn.text.strip())
