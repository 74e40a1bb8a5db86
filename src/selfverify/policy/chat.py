"""Problems, and what is shown and said about them, as the text of a chat template.

A problem's messages stand as the model's chat template writes them (`chat_text`). The form of replies and the
length of texts are checked before any work is done on them. The policy's words are read as a chat message by
the response template that its tokenizer may have (`read_message`).

Where the environment speaks first, what it shows may differ between the samples of a group, so that it is no
part of the prompt that they share. Such a prompt ends before the chat template begins the policy's message.
A reply follows as a message of its own or, where a template takes no two messages of users in a row, as
the end of the user's message (`Opening`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateSyntaxError

from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import BETWEEN, Problem, content_parts
from selfverify.policy.loading import Loaded

CHARACTERS_PER_TOKEN = 64
"""Words of more characters than this for each token of the model's context are not tokenised at all."""
_NO_LIMIT = 2**18
"""Tokens of the context of a model whose settings name none."""
_FEWEST = 4
"""Characters per token of the shortest beginning that is looked at."""


class TooLongError(DataError):
    """A text that alone takes more tokens than the model reads."""

    code = "context_length_exceeded"


def reply_parts(reply: Observation, where: str) -> list[dict[str, Any]]:
    """A reply's content as parts.

    Raises:
        DataError: The reply is not of the form that `Observation` describes; ``where`` is named.
    """
    if reply.role not in ("user", "tool"):
        raise DataError(f"{where}: the reply's role is {reply.role!r}, and only user and tool reply")
    if not isinstance(reply.images, list | tuple):
        raise DataError(f"{where}: the reply's images are no list")
    wrong = _wrong_parts(reply.content)
    parts = [] if wrong else content_parts(reply.content)
    if wrong := wrong or [part for part in parts if part["type"] not in ("text", "image")]:
        raise DataError(
            f"{where}: the reply's content has {str(wrong[0])[:100]}; it has to be a text or a list of "
            "{'type': 'text', 'text': ...} and {'type': 'image'}"
        )
    return parts


def without_surrogates(text: str) -> str:
    """A text with ``?`` in place of surrogates, which JSON can hold and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def has_too_many_characters(characters: int, limit: int | None) -> bool:
    """Whether a text is longer than any that a model of ``limit`` tokens could read (None: it says none)."""
    return characters > CHARACTERS_PER_TOKEN * (_NO_LIMIT if limit is None else limit)


def check_beginnings(tokenizer: Any, texts: Sequence[str], limit: int | None, whose: str) -> None:
    """Refuse a text whose beginning fills a model's context; each is twice as long as the one before.

    Args:
        tokenizer: The model's.
        texts: The text in pieces.
        limit: The tokens that the model reads; None where its settings do not say.
        whose: The name in errors.

    Raises:
        TooLongError: One does.
    """
    limit = _NO_LIMIT if limit is None else limit
    size = _FEWEST * limit
    whole = "".join(texts) if sum(map(len, texts)) > size else ""
    while size < len(whole):
        tokens = len(tokenizer(whole[:size], add_special_tokens=False)["input_ids"])
        if tokens > limit:
            raise TooLongError(
                f"{whose} first {size} characters take {tokens} tokens and the model reads {limit}"
            )
        size *= 2


_ASKED = {"role": "user", "content": [{"type": "text", "text": "?"}]}
_ANSWER = "ANSWER"
_THOUGHT_END = re.compile(r"[<\[][^<>\[\]\n]{0,24}think[^<>\[\]\n]{0,24}[>\]]", re.IGNORECASE)
"""The last of these ends an assistant's thoughts: ``</think>``, ``[/THINK]``, ``<|END_THINKING|>``."""


class TemplateRefusal(DataError):
    """The chat template raises an error on the messages of a problem, or leaves words of them out.

    Args:
        problem_id: The problem's id.
        reason: The template's error, or the words that it leaves out.
    """

    def __init__(self, problem_id: str, reason: str) -> None:
        super().__init__(problem_id, reason)
        self.problem_id, self.reason = problem_id, reason

    def __str__(self) -> str:
        return (
            f"problem {self.problem_id}: the model's chat template does not take its messages: {self.reason}"
        )


def check_template(loaded: Loaded) -> None:
    """Refuse a model without a chat template, or with one that is no jinja template.

    Raises:
        ConfigError: It has none, or several of which none is the default, or one that is used (there may be
            another for problems with tools) cannot be read.
    """
    tokenizer: Any = loaded.tokenizer
    remedy = f"put a right one into {tokenizer.name_or_path or 'its folder'} as chat_template.jinja"
    try:
        used = {tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[{}])}
        if "" in used:
            raise ValueError("it is empty")
    except ValueError as error:
        raise ConfigError(
            f"policy.path: the model has no chat template, which makes prompts of messages ({error}); take "
            f"one that was tuned to chat, or {remedy}"
        ) from error
    for template in used:
        try:
            tokenizer.apply_chat_template([_ASKED], chat_template=template, tokenize=False)
        except (TemplateSyntaxError, ImportError) as error:
            raise ConfigError(f"policy.path: its chat template cannot be read: {error}; {remedy}") from error
        except Exception:
            # It takes other messages than this one: problems will tell.
            continue


def chat_text(loaded: Loaded, problem: Problem, begun: bool = True) -> str:
    """A problem's messages and tools as the chat template writes them.

    Templates of models that read images loop over the parts of a content, and many find none in a string;
    others take messages without images as strings only. A form that leaves words out is replaced by the other
    one, also for arguments of calls. Tools that a template does not show are described in the first message.

    Args:
        loaded: The model with its tokenizer, which holds the template.
        problem: The problem.
        begun: Whether the policy's message is begun behind them.

    Raises:
        DataError: A message is of no form that is known, or has a part that the model does not read.
        TemplateRefusal: The template raises an error, or leaves out words of the messages.
    """
    family, model, tools = loaded.family, loaded.model, problem.tools or None

    def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = tools) -> str:
        try:
            text: str = loaded.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=begun, **loaded.template_options
            )
        except Exception as error:
            # Templates raise their authors' errors, and jinja its own.
            raise TemplateRefusal(problem.id, str(error) or type(error).__name__) from error
        text = without_surrogates(text)
        _check_shown(problem, text)
        for message in messages:
            parts = message.get("content")
            if not isinstance(parts, list) or not parts:
                continue
            # Templates for strings write lists so, which know no better.
            if str(parts) in text or json.dumps(parts, ensure_ascii=False, default=str) in text:
                raise TemplateRefusal(problem.id, f"it writes parts as they are in Python: {str(parts)[:80]}")
        return text

    if family.placeholder(model) is None and family.shares_prompts:
        forms = [text_only(problem)]
    else:
        in_parts = _in_parts(problem, {"text", "image"}, "text and images only")
        forms = [in_parts, [_as_string(message) for message in in_parts]]
    refused: TemplateRefusal | None = None
    for messages in forms + [_with_texts(form) for form in forms]:
        try:
            text = rendered(messages)
            break
        except TemplateRefusal as error:
            refused = refused or error
    else:
        assert refused is not None
        raise refused
    _check_calls(problem, messages, text, rendered)
    if tools:
        try:
            shown = text != rendered(messages, tools=None)
        except TemplateRefusal:
            shown = True
        if not shown:
            return chat_text(loaded, _with_tools_in_words(problem))
    return text


def _with_tools_in_words(problem: Problem) -> Problem:
    """The problem with its tools described in its first message, for templates that show none."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in problem.tools)
    words = (
        f"# Tools\n\nThese functions may be called:\n<tools>\n{listed}\n</tools>\n\nA call is written so:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>\n\n'
    )
    first, *others = problem.messages
    content = first["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    described = {**first, "content": [{"type": "text", "text": words}, *parts]}
    return replace(problem, messages=[described, *others], tools=[])


def text_only(problem: Problem) -> list[dict[str, Any]]:
    """Return the messages with plain strings as contents, which templates of text-only models need.

    Raises:
        DataError: A message is of no form that is known, or has a part that is no text.
    """
    messages = [_as_string(message) for message in _in_parts(problem, {"text"}, "text only")]
    return [{**message, "content": message.get("content")} for message in messages]


def _in_parts(problem: Problem, known: AbstractSet[str], reads: str) -> list[dict[str, Any]]:
    """Return the messages with lists of parts as contents.

    Raises:
        DataError: A message is of no form that is known, or has a part of another type than the ``known``
            ones; ``reads`` is said of the model.
    """
    messages = []
    for message in checked_messages(problem):
        if (content := message.get("content")) is not None:
            parts = content_parts(content)
            if unknown := {part["type"] for part in parts} - known:
                raise DataError(
                    f"problem {problem.id}: a message has a part of type {min(unknown)!r}, "
                    f"but the model reads {reads}"
                )
            message = {**message, "content": parts}
        messages.append(message)
    return messages


def _as_string(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is a string, unless it shows an image."""
    parts = message.get("content")
    if parts is None or any(part["type"] != "text" for part in parts):
        return message
    return {**message, "content": "".join(part["text"] for part in parts)}


def with_objects(problem: Problem) -> Problem:
    """A problem whose calls have their arguments as objects, which templates write as JSON.

    OpenAI's API has them as JSON already, which most templates would write as a text in quotes.
    """

    def read(call: Any) -> Any:
        try:
            given = json.loads(call["function"]["arguments"])
        except (KeyError, TypeError, ValueError, RecursionError):
            return call
        is_object = isinstance(given, dict)
        return {**call, "function": {**call["function"], "arguments": given}} if is_object else call

    messages = [_with_calls(message, read) for message in checked_messages(problem)]
    return problem if messages == problem.messages else replace(problem, messages=messages)


def _with_texts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as JSON, which a few templates put into their text."""

    def written(call: Any) -> Any:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            return call
        given = call["function"].get("arguments")
        text = json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given
        return {**call, "function": {**call["function"], "arguments": text}}

    return [_with_calls(message, written) for message in messages]


def _with_calls(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [*map(change, calls)]} if isinstance(calls, list) else message


def _check_calls(
    problem: Problem, messages: list[dict[str, Any]], text: str, rendered: Callable[[Any], str]
) -> None:
    """Refuse what a chat template has written if it leaves out calls of tools, some or all.

    Raises:
        TemplateRefusal: A call's name does not stand there as often as it is called.
    """
    called = Counter(
        str(call["function"].get("name"))
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    )
    if not called:
        return
    try:
        bare = rendered([{k: v for k, v in message.items() if k != "tool_calls"} for message in messages])
    except TemplateRefusal:
        bare = ""
    for name, times in called.items():
        if text.count(name) - bare.count(name) < times:
            raise TemplateRefusal(problem.id, f"it leaves out a call of {name!r} (tool_calls)")


def checked_messages(problem: Problem) -> list[dict[str, Any]]:
    """Return the messages.

    Raises:
        DataError: One is no message in the Hugging Face form.
    """
    for message in problem.messages:
        named = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not named or (message.get("content") is not None and _wrong_parts(message["content"])):
            raise DataError(
                f"problem {problem.id}: a message is {str(message)[:100]}; it has to have a role, and as "
                "content a text or a list of {'type': 'text', 'text': ...} and {'type': 'image'}"
            )
    return problem.messages


def _wrong_parts(content: Any) -> list[Any]:
    """What of a content is neither a text nor a part; the content itself, where it is no list either."""
    if isinstance(content, str):
        return []
    return (
        [part for part in content if not _is_part(part)] if isinstance(content, list | tuple) else [content]
    )


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)


def _check_shown(problem: Problem, text: str) -> None:
    """Refuse what a chat template has written if it leaves out words of a problem's messages.

    White space may differ, words may stand as JSON, and an assistant's thoughts and what it says beside calls
    may be left out, as many templates do. Words that are said twice, or within others, have to stand there as
    often.

    Raises:
        TemplateRefusal: Words are missing.
    """
    said = [
        (message["role"], part)
        for message in problem.messages
        if not (message["role"] == "assistant" and message.get("tool_calls"))
        for part in map(without_surrogates, content_texts(message.get("content")))
    ]
    needed = [(role, words, _spaced(_aloud(words, role))) for role, words in said]
    whole, place = _spaced(text), 0
    for _, _, form in needed:
        found = whole.find(form, place)
        if found < 0:
            break
        place = found + len(form)
    else:
        return
    everything = "\n".join(form for _, _, form in needed)
    for role, words, form in needed:
        forms = {
            form,
            *(_spaced(json.dumps(_aloud(words, role), ensure_ascii=a)[1:-1]) for a in (True, False)),
        }
        if form and sum(map(whole.count, forms)) < everything.count(form):
            reason = f"it leaves the message out in which the {role} says {words.strip()[:60]!r}"
            raise TemplateRefusal(problem.id, f"{reason}; say it as another role, or mend the template")


def _aloud(words: str, role: str) -> str:
    """Return a message's words, without an assistant's thoughts."""
    if role != "assistant":
        return words
    return words[max((found.end() for found in _THOUGHT_END.finditer(words)), default=0) :]


def _spaced(text: str) -> str:
    """A text whose white space is single spaces."""
    return " ".join(text.split())


def content_texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content."""
    for part in [] if content is None else content_parts(content):
        if part.get("type") == "text":
            yield part["text"]


def turn_end(loaded: Loaded, stops: AbstractSet[int]) -> int:
    """Return the token that ends the policy's turn where one is demonstrated.

    It is the first token that the chat template writes behind an answer, if the policy stops at it: a
    conversation that goes on then reads as the template writes it. Some templates write that token only once
    somebody else speaks. Where there is none it is the tokenizer's own end token.

    Args:
        loaded: The model with its tokenizer.
        stops: The tokens that end a response (`Policy.stop_tokens`).

    Raises:
        ConfigError: There is no end token either.
    """
    answered = [_ASKED, {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]}]
    for messages in (answered, [*answered, _ASKED]):
        try:
            _, answer, behind = chat_text(loaded, Problem("", messages), begun=False).rpartition(_ANSWER)
        except TemplateRefusal:
            continue
        ids = loaded.tokenizer(behind, add_special_tokens=False)["input_ids"] if answer else []
        if ids and ids[0] in stops:
            return int(ids[0])
    if loaded.tokenizer.eos_token_id is None:
        raise ConfigError(
            "policy.path: nothing ends a turn: the tokenizer has no eos_token, and the chat template writes "
            "no stop token (generation_config.json: eos_token_id) behind an answer"
        )
    return int(loaded.tokenizer.eos_token_id)


_MARK = "SHOWNFIRST"
_MARKED = [{"type": "text", "text": _MARK}]


@dataclass(frozen=True, slots=True)
class Opening:
    """How the conversations about a problem are opened.

    Args:
        prompt: The text of the prompt.
        continues: Whether what is shown first continues the user's message.
    """

    prompt: str
    continues: bool

    def rest(
        self, loaded: Loaded, problem: Problem, role: str, parts: Sequence[dict[str, Any]]
    ) -> str | None:
        """Return the text that the template writes behind the prompt, up to where the policy begins.

        Args:
            loaded: The model with its template.
            problem: The problem that is opened.
            role: The role of the speaker.
            parts: The parts that are shown; nothing where a conversation is opened without.

        Returns:
            The text; None where the template changes what stands before it.
        """
        if self.continues:
            if role != "user":
                return None
            whole = chat_text(loaded, _continued(problem, parts or _MARKED))
        else:
            shown = [{"role": role, "content": list(parts)}] if parts else []
            whole = chat_text(loaded, replace(problem, messages=[*problem.messages, *shown]))
        if not whole.startswith(self.prompt):
            return None
        rest = whole.removeprefix(self.prompt)
        if self.continues:
            return BETWEEN + rest if parts else rest.removeprefix(_MARK)
        return rest


def find_opening(loaded: Loaded, problem: Problem) -> Opening:
    """How the chat template lets the environment speak first.

    Raises:
        ConfigError: It does not.
        DataError: A message has a part that is no text, and the model reads nothing else; or the template
            refuses the problem's own messages.
    """
    reasons = []
    for continues in (False, True):
        try:
            if continues:
                prompt = chat_text(loaded, _continued(problem, _MARKED)).partition(_MARK)[0]
            else:
                prompt = chat_text(loaded, problem, begun=False)
            opening = Opening(prompt, continues)
            if _MARK in (opening.rest(loaded, problem, "user", _MARKED) or ""):
                return opening
            reasons.append("it writes other text before what is shown")
        except TemplateRefusal as error:
            reasons.append(error.reason)
    chat_text(loaded, problem)  # what it refuses of every conversation is this problem's fault
    raise ConfigError(
        f"problem {problem.id}: with the model's chat template the environment cannot speak first. As a "
        f"message of its own: {reasons[0]}. At the end of the user's message: {reasons[1]}"
    )


def _continued(problem: Problem, parts: Sequence[dict[str, Any]]) -> Problem:
    """The problem with ``parts`` at the end of its last message, which has to be a user's."""
    if not problem.messages or problem.messages[-1]["role"] != "user":
        raise TemplateRefusal(problem.id, "the last message is not a user's")
    *before, last = problem.messages
    content = [*content_parts(last["content"]), *parts]
    return replace(problem, messages=[*before, {**last, "content": content}])


LONGEST = 100_000
"""Characters of a message that is read. The time that a template takes may grow faster than the text."""


def read_message(loaded: Loaded, text: str, tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the message that the tokenizer's response template makes of the policy's words; see
    `PolicyTurn.message`.

    transformers reads a response behind its prompt, since a chat template may begin the message itself. The
    prompt given here is that of a harmless question: in the real one, an environment could have written
    what reads like the beginning of the policy's message, with a call in it.

    Args:
        loaded: The model with its tokenizer.
        text: The policy's words with the token that ended them, and nothing that another has written.
        tools: As in `Problem.tools`; arguments are cast to the types that they name.
    """
    template = getattr(loaded.tokenizer, "response_template", None)
    if template is None:
        return None
    if len(text) > LONGEST:
        return {"error": f"the message is longer than {LONGEST} characters"}
    prefix = chat_text(loaded, Problem("", [_ASKED]))
    try:
        return dict(loaded.tokenizer.parse_response(text, prefix=prefix, tools=tools or None))
    except Exception as error:
        # Templates name their own parsers, each of which raises as it likes on what a model writes.
        return {"error": f"the message cannot be read: {error}"[:500]}
