"""OpenAI's own client; run against the server at SERVER_URL."""

import asyncio
import json
import os

import openai
import pydantic

URL, KEY = os.environ["SERVER_URL"] + "/v1", os.environ["SERVER_KEY"]
client = openai.OpenAI(api_key=KEY, base_url=URL, max_retries=0)
HELLO = [{"role": "user", "content": "hello"}]


def refused(call, error, says: str, param: str | None = None) -> None:
    try:
        call()
    except error as caught:
        assert says in caught.message, caught.message
        assert caught.param == param, caught.param
    else:
        raise AssertionError(f"{error} was not raised")


model, *_ = client.models.list().data
assert client.models.retrieve(model.id) == model
chat = {"model": model.id, "messages": HELLO, "max_tokens": 8, "temperature": 0}

# Chats: whole, streamed, with usage, log probabilities and several samples.
whole = client.chat.completions.create(**chat)
assert whole.model == model.id
assert whole.choices[0].message.role == "assistant"
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
chunks = list(
    client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
)
assert chunks[0].choices[0].delta.role == "assistant"
assert chunks[-1].usage == whole.usage
assert not chunks[-1].choices
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
assert text == whole.choices[0].message.content
token_logprobs = (
    client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
    .choices[0]
    .logprobs.content
)
assert len(token_logprobs) in (whole.usage.completion_tokens, whole.usage.completion_tokens - 1)
assert all(len(token.top_logprobs) == 2 for token in token_logprobs)
several = client.chat.completions.create(
    **{**chat, "temperature": 1}, n=3, seed=7, presence_penalty=0.5, top_p=0.9
)
assert [choice.index for choice in several.choices] == [0, 1, 2]
biased = client.chat.completions.create(
    **chat, logit_bias={"70": 100}, stop=["zzzz"], user="u", store=False
)
assert len(set(biased.choices[0].message.content)) == 1
parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
same = client.chat.completions.create(**{**chat, "messages": parts}, max_completion_tokens=8)
assert same.choices[0].message.content == text
with_instructions = client.chat.completions.create(
    **{**chat, "messages": [{"role": "developer", "content": "x"}, *parts]}
)
assert with_instructions.usage.prompt_tokens > whole.usage.prompt_tokens


# A form to keep to.
class City(pydantic.BaseModel):
    """The schema of the output."""

    name: str = pydantic.Field(max_length=8)
    visitors: int = pydantic.Field(ge=0, le=999)


parsed = client.chat.completions.parse(model="m", messages=HELLO, response_format=City, seed=3)
assert isinstance(parsed.choices[0].message.parsed, City)
with client.chat.completions.stream(
    model="m", messages=HELLO, response_format=City, seed=3, logprobs=True
) as stream:
    kinds = {event.type for event in stream}
    final = stream.get_final_completion().choices[0]
assert final.message.parsed == parsed.choices[0].message.parsed
assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds, kinds
assert (
    bytes(byte for one in final.logprobs.content for byte in one.bytes).decode()
    == final.message.content
)
loose = client.chat.completions.create(
    model="m", messages=HELLO, response_format={"type": "json_object"}, max_tokens=4
)
assert loose.choices[0].message.content.lstrip().startswith("{")

# Completions.
texts = client.completions.create(
    model="m", prompt=["hello", "you"], n=2, max_tokens=4, echo=True, temperature=0
)
assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
assert all(
    choice.text.startswith(prompt)
    for choice, prompt in zip(texts.choices, ["hello"] * 2 + ["you"] * 2, strict=True)
)
logprobs = (
    client.completions.create(model="m", prompt="hello", max_tokens=4, logprobs=2, temperature=0)
    .choices[0]
    .logprobs
)
assert (
    len(logprobs.tokens)
    == len(logprobs.token_logprobs)
    == len(logprobs.top_logprobs)
    == len(logprobs.text_offset)
)
pieces = client.completions.create(
    model="m", prompt="hello", max_tokens=4, echo=True, temperature=0, stream=True
)
assert "".join(piece.choices[0].text for piece in pieces) == texts.choices[0].text

# Vectors, which the client asks for as base64 and gives as numbers.
vectors = client.embeddings.create(model="m", input=["Cats purr.", "Dogs bark."]).data
assert [vector.index for vector in vectors] == [0, 1]
numbers = (
    client.embeddings.create(model="m", input="Cats purr.", encoding_format="float")
    .data[0]
    .embedding
)
assert all(abs(a - b) < 1e-6 for a, b in zip(numbers, vectors[0].embedding, strict=True))

# Errors.
tool = {"type": "web_search"}
refused(
    lambda: client.chat.completions.create(**chat, tools=[tool]),
    openai.BadRequestError,
    "function",
    "tools[0]",
)
image = [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
asked = {**chat, "messages": [{"role": "user", "content": image}]}
refused(
    lambda: client.chat.completions.create(**asked),
    openai.BadRequestError,
    "image_url",
    "messages[0].content[0]",
)
long = {**chat, "messages": [{"role": "user", "content": "hello " * 900}]}
refused(
    lambda: list(client.chat.completions.create(**long, stream=True)),
    openai.BadRequestError,
    "is too long",
    "messages",
)
refused(
    lambda: client.completions.create(model="m", prompt=["a", [1]]),
    openai.BadRequestError,
    "string",
    "prompt[1]",
)
refused(lambda: client.models.retrieve("gpt"), openai.NotFoundError, "GET /v1/models", "model")
wrong = openai.OpenAI(api_key="wrong", base_url=URL, max_retries=0)
refused(lambda: wrong.embeddings.create(model="m", input="x"), openai.AuthenticationError, "wrong")


async def run_concurrently() -> None:
    other = openai.AsyncOpenAI(api_key=KEY, base_url=URL, max_retries=0)
    answers = await asyncio.gather(*(other.chat.completions.create(**chat) for _ in range(6)))
    assert {answer.choices[0].message.content for answer in answers} == {text}
    async with await other.chat.completions.create(
        **{**chat, "max_tokens": 200}, stream=True
    ) as stream:
        async for _ in stream:
            break  # a client that leaves


asyncio.run(run_concurrently())
json.dumps(whole.model_dump())
