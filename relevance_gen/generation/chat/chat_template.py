"""Render messages to a prompt with the model's chat template.

Messages cannot forge special tokens.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    MAX_MESSAGES,
    ChatMessage,
    Messages,
    a_message,
)
from relevance_gen.generation.queue.request import ANONYMOUS
from relevance_gen.llama.language_model import TOKEN_BOUNDARY, ChatFormat
from relevance_gen.sandbox import Sandbox
from relevance_gen.wire import JsonObject

_PROGRAM: Final = Path(__file__).with_name("template_program.py")
_MEMORY_BYTES: Final = 1 << 30
_MAX_CHARACTERS: Final = 1 << 24
"""Characters of a template, and of a conversation as JSON."""
_PROBE: Final = "\udc02"
"""Surrounds the probes that find system messages in a rendered prompt. No text can contain this
code point, because surrogates are replaced before."""
_CONTINUATION: Final = "\udc01"
"""Marks the end of the message that the model continues; another surrogate."""
_NO_VARIABLES: Final[Mapping[str, Any]] = {}
_MARKER: Final = re.compile(r"[<\[{|].*[>\]}|]")
_HTML_TAG: Final = re.compile(r"</?[a-z][a-z0-9]*/?>")

_message_list = checks.Rule(
    f"a list of 1 to {MAX_MESSAGES:,} messages",
    lambda value: checks.sequence.is_allowed(value) and 1 <= len(value) <= MAX_MESSAGES,
)


class Renderer:
    """Renders templates in a sandbox; each rendering may take `timeout_s` seconds of CPU time."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._sandbox = Sandbox(_PROGRAM, timeout_s=timeout_s, memory_bytes=_MEMORY_BYTES)
        self.close = self._sandbox.close

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Render `template` with `variables`, which must be serializable as JSON.

        Raises:
            InvalidRequestError: the template is invalid, rejects the messages, or exceeds its
                limits on time or memory.
            GenerationError: the sandbox cannot be started.
        """
        return str(self._request(template, variables)["text"])

    def variables_of(self, template: str) -> list[str]:
        """Return the names of the variables that `template` reads.

        Raises:
            InvalidRequestError, GenerationError: as for `render`.
        """
        return list(self._request(template, None)["names"])

    def _request(self, template: str, variables: Mapping[str, Any] | None) -> JsonObject:
        try:
            reply = self._sandbox.call({"template": template, "variables": variables})
        except TimeoutError:
            raise InvalidRequestError(
                f"must be rendered within {self._timeout_s:g} seconds", "chat_template"
            ) from None
        except EOFError:
            raise InvalidRequestError(
                "must not end the process that renders it", "chat_template"
            ) from None
        if "error" not in reply:
            return reply
        reason = reply["error"][:500]
        if reply["kind"] == "messages":
            raise InvalidRequestError(f"do not fit the chat template: {reason}", "messages")
        raise InvalidRequestError(f"cannot be rendered: {reason}", "chat_template")


_authenticated_renderer = Renderer()
_anonymous_renderer = Renderer()
atexit.register(_authenticated_renderer.close)
atexit.register(_anonymous_renderer.close)


def renderer_for(client: str | None) -> Renderer:
    """Return the renderer for the requests of a client.

    Authenticated clients share one renderer, and anonymous clients another, so that slow templates
    of anonymous clients delay no authenticated client.

    Args:
        client: the client, as in `RequestContext`.
    """
    return _anonymous_renderer if client == ANONYMOUS else _authenticated_renderer


def render_prompt(
    messages: Messages,
    model: ChatFormat,
    chat_template: str | None = None,
    variables: Mapping[str, Any] = _NO_VARIABLES,
    *,
    continues: bool = False,
    renderer: Renderer = _authenticated_renderer,
) -> str:
    """Render `messages` to the prompt of the model's next turn.

    The result is input of `LanguageModel.tokenize_chat` only: `TOKEN_BOUNDARY` splits each text of
    a special token in the messages, so that it is tokenized as plain text, regardless of the order
    in which the template renders messages. A message of a user, a tool or a document can therefore
    neither end its turn nor start a turn of another role. Special tokens are all control tokens,
    and the user-defined tokens that occur in the template or look like a marker. In messages of the
    assistant, texts that the template itself searches for, such as ``</think>``, are not split.

    A system message that the template omits is added to the next user message, or to the last user
    message.

    Args:
        messages: objects with a ``role`` and the other fields that the template reads, usually
            ``content``.
        model: the chat format stored in the model file.
        chat_template: overrides the template of the model file.
        variables: further variables of the template, such as ``tools``; they override those set
            here.
        continues: whether the model continues the last message instead of starting a turn.
        renderer: renders the template.

    Raises:
        InvalidRequestError: there is no template, it is invalid, rejects the messages, or exceeds
            its limits on time or memory.
    """
    template = model.template if chat_template is None else chat_template
    if template is None:
        raise InvalidRequestError(
            "is required: the model's file has no chat template, so the model may not be made for conversations",
            "chat_template",
        )
    checks.short(_MAX_CHARACTERS).check("chat_template", template)
    check_messages(messages, continues=continues)
    checks.mapping.check("template_variables", variables)

    tokens = _special_tokens(model.control, model.user_defined, template)
    template_variables = {
        "bos_token": model.bos,
        "eos_token": model.eos,
        "add_generation_prompt": not continues,
        **_copy_json("template_variables", dict(variables), tokens.all_roles.split_value),
    }
    split_messages = _copy_json("messages", list(messages), tokens.split_messages)
    if continues:
        split_messages[-1]["content"] += _CONTINUATION

    def render(messages: Messages) -> str:
        return renderer.render(template, {"messages": messages, **template_variables})

    text = render(split_messages)
    if omitted := _omitted_system_messages(split_messages, render):
        text = render(_move_to_user_messages(split_messages, omitted))
    if not continues:
        return text
    prompt, mark, _ = text.rpartition(_CONTINUATION)
    if not mark:
        raise InvalidRequestError(
            "do not fit the chat template: it does not render the last message unchanged",
            "messages",
        )
    return prompt


def check_messages(messages: Any, *, continues: bool) -> None:
    """Check that `messages` is a list of at most `MAX_MESSAGES` objects with a role.

    Raises:
        InvalidRequestError: `messages` is not such a list; or `continues` is true and the last
            message has no text.
    """
    _message_list.check("messages", messages)
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        a_message.check(path, message)
        checks.string.check(f"{path}.role", message.get("role"))
    if continues:
        checks.string.check(f"{path}.content", message.get("content"))


def message_texts(message: ChatMessage) -> list[str]:
    """Return the texts of a message: its content, or the texts of the parts of its content."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return [content] if isinstance(content, str) else []
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


# ── System messages that a template omits ─────────────────────────────────────────────────────────


def _omitted_system_messages(
    messages: Messages,
    render: Callable[[Messages], str],
) -> list[int]:
    """Return the indices of the system messages that a template omits from the prompt.

    To find them, the messages are rendered with a marker in each system message.

    Args:
        messages: the messages of the conversation.
        render: returns the prompt that the template makes of messages.
    """
    probes: dict[int, str] = {}
    probed = [*messages]
    for index, message in enumerate(messages):
        if _is_system(message):
            probes[index] = f"{_PROBE}{index}{_PROBE}"
            probed[index] = _append_to_texts(message, probes[index])
    text = render(probed) if probes else ""
    return [index for index, probe in probes.items() if probe not in text]


def _is_system(message: ChatMessage) -> bool:
    """Return whether a message is a system message with text that the model does not continue."""
    text = "".join(message_texts(message))
    return message["role"] == "system" and bool(text.strip()) and not text.endswith(_CONTINUATION)


def _append_to_texts(message: ChatMessage, suffix: str) -> ChatMessage:
    """Append a suffix to each text of a message."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + suffix}
    parts = []
    for part in content:
        has_text = isinstance(part, dict) and isinstance(part.get("text"), str)
        parts.append({**part, "text": part["text"] + suffix} if has_text else part)
    return {**message, "content": parts}


def _move_to_user_messages(messages: Messages, omitted: Collection[int]) -> list[ChatMessage]:
    """Return messages in which the texts of omitted messages are in messages of the user.

    The text of an omitted message is added to the start of the next user message, or, if there is
    none, to the end of the last user message.

    Raises:
        InvalidRequestError: there is no user message.
    """
    user_indices = [
        index
        for index, message in enumerate(messages)
        if message["role"] == "user" and isinstance(message.get("content"), str | list)
    ]
    before: defaultdict[int, str] = defaultdict(str)
    after_last_user = ""
    for index in omitted:
        text = "\n".join(message_texts(messages[index]))
        if not user_indices:
            raise InvalidRequestError(
                "is omitted by the chat template, and there is no user message to which it could be added",
                f"messages[{index}]",
                remedy="send it as a user message",
            )
        next_user = next((user for user in user_indices if user > index), None)
        if next_user is None:
            after_last_user += f"\n\n{text}"
        else:
            before[next_user] += f"{text}\n\n"
    moved: list[ChatMessage] = []
    for index, message in enumerate(messages):
        if index in user_indices:
            after = after_last_user if index == user_indices[-1] else ""
            content = _surround(before[index], message["content"], after)
            moved.append({**message, "content": content})
        elif index not in omitted:
            moved.append(message)
    return moved


def _surround(before: str, content: Any, after: str) -> Any:
    """Add text before and after a content, which is a string or a list of parts."""
    if isinstance(content, str):
        return before + content + after
    first = [{"type": "text", "text": before}] if before else []
    last = [{"type": "text", "text": after}] if after else []
    return [*first, *content, *last]


# ── Special tokens in messages ────────────────────────────────────────────────────────────────────


def _copy_json(field: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the result of `convert` for a copy of a JSON value.

    Args:
        field: the name of the value in error messages.
        value: the value.
        convert: receives the copy, which has only lists, dictionaries and JSON's other types.

    Raises:
        InvalidRequestError: `value` is not JSON, or has more than `_MAX_CHARACTERS` characters.
    """
    try:
        written = json.dumps(value, ensure_ascii=False)
        if len(written) <= _MAX_CHARACTERS:
            return convert(json.loads(written))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"must be JSON: {error}", field) from None
    raise InvalidRequestError(f"must hold at most {_MAX_CHARACTERS:,} characters as JSON", field)


class _TokenSplitter:
    """Splits the texts of special tokens with `TOKEN_BOUNDARY`."""

    def __init__(self, token_texts: Sequence[str]) -> None:
        texts = [text for text in token_texts if len(text) > 1]
        rests: defaultdict[str, list[str]] = defaultdict(list)
        for text in texts:
            rests[text[0]].append(re.escape(text[1:]))
        starts = [
            f"{re.escape(first_character)}(?={'|'.join(alternatives)})"
            for first_character, alternatives in rests.items()
        ]
        self._pattern = re.compile("|".join(starts) or r"(?!)")
        self._prefixes = {
            text[:n_characters] for text in texts for n_characters in range(1, len(text))
        }
        self._max_characters = max(map(len, texts), default=0)

    def split(self, text: str) -> str:
        """Insert a boundary into each special token.

        The boundary follows the first character of each special token, so that special tokens
        inside or across the end of another one are split, too. If the text ends with the beginning
        of a special token, which the next message could complete, a boundary is appended.
        """
        text = self._pattern.sub(rf"\g<0>{TOKEN_BOUNDARY}", text)
        stripped = text.rstrip()  # templates strip messages
        for n in range(1, min(self._max_characters, len(stripped) + 1)):
            if stripped[-n:] in self._prefixes:
                return stripped + TOKEN_BOUNDARY + text[len(stripped) :]
        return text

    def split_value(self, value: Any) -> Any:
        """Return a copy of a JSON value with all its strings split."""
        match value:
            case str():
                # Replace lone surrogates, because the boundary is a surrogate.
                return self.split(value.encode(errors="replace").decode())
            case list():
                return [self.split_value(item) for item in value]
            case dict():
                return {
                    self.split_value(key): self.split_value(item) for key, item in value.items()
                }
            case _:
                return value


@frozen
class _SpecialTokens:
    """The splitters for text of all roles and for the assistant's own text.

    Attributes:
        all_roles: splits all special tokens.
        assistant: splits special tokens except user-defined tokens for whose text the template
            searches in messages, such as ``</think>``.
    """

    all_roles: _TokenSplitter
    assistant: _TokenSplitter

    def split_messages(self, messages: list[JsonObject]) -> list[JsonObject]:
        """Return messages in which all strings are split.

        Strings in messages of the assistant are split by `assistant`, all others by `all_roles`.
        Tool calls of the assistant are split by `all_roles`, too, because their arguments can
        repeat text of other roles.
        """
        return [self._split_message(message) for message in messages]

    def _split_message(self, message: JsonObject) -> JsonObject:
        splitter = self.assistant if message["role"] == "assistant" else self.all_roles
        split: JsonObject = splitter.split_value(message)
        if "tool_calls" in message:
            split["tool_calls"] = self.all_roles.split_value(message["tool_calls"])
        return split


@functools.lru_cache(maxsize=8)
def _special_tokens(
    control: tuple[str, ...], user_defined: tuple[str, ...], template: str
) -> _SpecialTokens:
    special = [text for text in user_defined if _may_be_special(text, template)]
    unsearched = [text for text in special if not _is_searched_for(text, template)]
    return _SpecialTokens(
        all_roles=_TokenSplitter((*control, *special)),
        assistant=_TokenSplitter((*control, *unsearched)),
    )


def _may_be_special(text: str, template: str) -> bool:
    """Return whether a template may give a user-defined token a meaning.

    This is true in two cases: the token's text is part of the template; or the text looks like a
    marker, such as ``<|name|>``, and is not an HTML tag. It is always false for white space and for
    texts that consist of letters and digits only.
    """
    if not text.strip() or text.isalnum():
        return False
    is_marker = _MARKER.fullmatch(text) is not None and not _HTML_TAG.fullmatch(text)
    return text in template or is_marker


def _is_searched_for(text: str, template: str) -> bool:
    """Return whether a template searches for a text in messages."""
    quoted = rf"""(['"])[^'"]*{re.escape(text)}[^'"]*"""
    pattern = rf"{quoted}\1\s*(not\s+)?in\b|(split|find|replace|with)\(\s*{quoted}"
    return re.search(pattern, template) is not None
