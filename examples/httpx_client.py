"""Stream text with `httpx`, asynchronously. SERVER_URL is the address of the server."""

import asyncio
import json
import os

import httpx

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8000")


async def stream(client: httpx.AsyncClient, prompt: str) -> str:
    """Print the text of one generation as it comes; return all of it."""
    request = {"text": prompt, "max_tokens": 24, "temperature": 0.7, "seed": 1}
    event = ""
    async with client.stream("POST", f"{URL}/generate_stream", json=request) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "text":
                print(json.loads(value)["text"], end="", flush=True)
            elif name == "data" and event == "response":
                return json.loads(value)["responses"][0]["text"]
            elif name == "data" and event == "error":
                raise RuntimeError(json.loads(value)["error"]["message"])
    raise RuntimeError("the stream ended early")


async def main() -> None:
    """Stream one generation, then run several at once: the server batches them."""
    async with httpx.AsyncClient(timeout=60) as client:
        await stream(client, "Once upon a time")
        print()
        prompts = ["The sea was", "In the city", "A small dog"]
        bodies = [{"text": prompt, "max_tokens": 16, "seed": 1} for prompt in prompts]
        answers = await asyncio.gather(
            *(client.post(f"{URL}/generate", json=body) for body in bodies)
        )
        for prompt, answer in zip(prompts, answers, strict=True):
            print(prompt + answer.json()["responses"][0]["text"])


asyncio.run(main())
