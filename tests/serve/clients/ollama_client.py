"""Ollama's own client; run against the server at SERVER_URL."""

import asyncio
import os

import ollama

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
HEADERS = {"Authorization": f"Bearer {KEY}"}
HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"num_predict": 8, "temperature": 0, "seed": 3, "num_ctx": 4096, "repeat_penalty": 1.1}
client = ollama.Client(host=URL, headers=HEADERS)


def refuses(call, message: str, status: int = 400) -> None:
    try:
        call()
    except ollama.ResponseError as error:
        assert message in error.error, error.error
        assert error.status_code == status, error.status_code
    else:
        raise AssertionError("the request was accepted")


# Models.
listed = {model.model: model for model in client.list().models}
assert "relevance_gen" in listed
assert "encoder" in listed
assert listed["relevance_gen"].details.format == "gguf"
assert listed["relevance_gen"].size > 1000
shown = client.show("relevance_gen:latest")
assert {"completion", "tools"} <= set(shown.capabilities)
architecture = shown.modelinfo["general.architecture"]
assert shown.modelinfo[f"{architecture}.context_length"] == 2048
assert client.show("encoder").capabilities == ["embedding"]
refuses(lambda: client.show("absent"), "GET /v1/models", 404)

# Chats.
model = "relevance_gen"
whole = client.chat(model, HELLO, options=OPTIONS, keep_alive="5m")
assert whole.message.content
assert whole.done
assert whole.done_reason in ("stop", "length")
assert whole.eval_count == 8 or whole.done_reason == "stop"
pieces = [*client.chat(model, HELLO, options=OPTIONS, stream=True)]
assert "".join(piece.message.content for piece in pieces) == whole.message.content
assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
assert pieces[-1].prompt_eval_count == whole.prompt_eval_count > 0
assert model in [running.model for running in client.ps().models]

# Completions.
text = client.generate(model, "Once upon", system="Be brief.", options=OPTIONS)
assert text.response
raw = client.generate(model, "Once upon", raw=True, options=OPTIONS)
pieces = [*client.generate(model, "Once upon", raw=True, options=OPTIONS, stream=True)]
assert "".join(piece.response for piece in pieces) == raw.response
assert client.generate(model).done_reason == "load"
assert client.generate(model, keep_alive=0).done_reason == "unload"
assert client.chat(model).done_reason == "load"

# Structured output.
schema = {
    "type": "object",
    "properties": {"visitors": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["visitors"],
    "additionalProperties": False,
}
long = {**OPTIONS, "num_predict": 200}
answer = client.chat(model, HELLO, format=schema, options=long)
assert '"visitors"' in answer.message.content
loose = client.chat(model, HELLO, format="json", options=OPTIONS)
assert loose.message.content.lstrip().startswith("{")


# Tools: the model may answer instead of calling one, so the call is written by hand.
def search(query: str) -> str:
    """Search the notes.

    Args:
        query: the words.
    """
    return query


turn = client.chat(model, HELLO, tools=[search], options=OPTIONS)
assert turn.message.role == "assistant"
call = {"function": {"name": "search", "arguments": {"query": "ferry"}}}
turns = [
    *HELLO,
    {"role": "assistant", "content": "", "tool_calls": [call]},
    {"role": "tool", "tool_name": "search", "content": "The ferry leaves at nine."},
]
answer = client.chat(model, turns, tools=[search], options=OPTIONS)
assert answer.message.content or answer.message.tool_calls
assert answer.prompt_eval_count > turn.prompt_eval_count

# Vectors.
one = client.embed("encoder", "Cats purr.").embeddings
two = client.embed("encoder", ["Cats purr.", "Dogs bark."])
assert list(two.embeddings[0]) == list(one[0])
assert two.prompt_eval_count > 0
assert list(client.embeddings("encoder", "Cats purr.").embedding) == list(one[0])
words = " ".join(["word"] * 100)
refuses(lambda: client.embed("encoder", words), "tokens for this encoder")
assert client.embed("encoder", words, truncate=True).embeddings

# Errors.
image = [{**HELLO[0], "images": ["aGVsbG8="]}]
refuses(lambda: client.chat(model, image), "the model reads only text")
refuses(lambda: [*client.chat(model, HELLO, options={"top_k": -1}, stream=True)], "options.top_k")
refuses(lambda: client.generate(model, "a", suffix="b"), "suffix is not supported")
full = [{"role": "user", "content": "hello " * 3000}]
refuses(lambda: client.chat(model, full), "messages is too long")
anonymous = ollama.Client(host=URL, headers={"Authorization": "Bearer wrong"})
refuses(lambda: anonymous.embed("encoder", "x"), "wrong", 401)


async def chat_concurrently() -> None:
    concurrent = ollama.AsyncClient(host=URL, headers=HEADERS)
    chats = (concurrent.chat(model, HELLO, options=OPTIONS) for _ in range(4))
    answers = await asyncio.gather(*chats)
    assert {answer.message.content for answer in answers} == {whole.message.content}
    async for _ in await concurrent.chat(model, HELLO, stream=True):
        break  # a client that leaves


asyncio.run(chat_concurrently())
