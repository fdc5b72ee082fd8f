"""Chat templates, and token streams that only ever grow.

The stream of a conversation is what the policy was fed and what it sampled,
in that order. Nothing that is already in it is encoded a second time (R4): a
template only says which text comes after it. A template that would change
earlier text is refused with `HistoryRewritten`, and the caller opens a new
window, which is a cut (K04).
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from rl_tpu.text import hashing
from rl_tpu.text import json_files
from rl_tpu.text import templates
from rl_tpu.text import tokenizer as tokenizer_lib

_SPECIAL = ('bos_token', 'eos_token', 'pad_token', 'unk_token')
# What a template is given of the conversation and the model.
_GIVEN = (
    'messages', 'tools', 'documents', 'add_generation_prompt', *_SPECIAL
)
# Members of a message that a template sees only where they are set.
_OPTIONAL = ('reasoning_content', 'tool_calls', 'tool_call_id', 'name')
# Nothing that a template may write by itself, so that it is found again.
_PROBE = 'rl_tpu probe'
# Bytes; the longest public template is a twentieth of it.
_MAX_TEMPLATE = 2**20
# A turn previews what it then adds, so the last few texts are asked for again.
_CACHED_TEXTS = 256


@dataclasses.dataclass(frozen=True)
class Message:
  """One message, with what chat templates read of it.

  Attributes:
    role: system, user, tool or assistant.
    content: its text.
    reasoning_content: what an assistant thought before it.
    tool_calls: of an assistant: {'type': 'function', 'function': {'name': ..,
      'arguments': {..}}}, with an optional 'id'.
    tool_call_id: of a tool's message: the call that it answers.
    name: of who speaks, or of the tool.
  """

  role: str
  content: str
  reasoning_content: str = ''
  # Objects have no hash; equality looks at them all the same.
  tool_calls: tuple[Mapping[str, Any], ...] = dataclasses.field(
      default=(), hash=False
  )
  tool_call_id: str = ''
  name: str = ''

  @classmethod
  def of(cls, members: Mapping[str, Any]) -> 'Message':
    """The message that a row's JSON object describes.

    Raises:
      TypeError: it has a member that no message has.
    """
    calls = tuple(members.get('tool_calls', ()))
    return cls(**{**members, 'tool_calls': calls})

  def members(self) -> dict[str, Any]:
    """What a template is given: role, content, and the others that are set."""
    given = {'role': self.role, 'content': self.content}
    for name in _OPTIONAL:
      if value := getattr(self, name):
        given[name] = list(value) if name == 'tool_calls' else value
    return given


class HistoryRewritten(ValueError):
  """The template changed text that is already part of the stream."""


class MessagesRefused(ValueError):
  """The template does not take the messages that it was given."""


class ChatTemplate:
  """The chat template of a model folder."""

  def __init__(
      self,
      text: str,
      special: Mapping[str, str] | None = None,
      tools: Sequence[Mapping[str, Any]] = (),
      variables: Mapping[str, Any] | None = None,
  ):
    """Compiles a template.

    Args:
      text: in jinja2.
      special: special tokens by the names a template uses (`bos_token`).
      tools: descriptions of functions, which the template shows the model.
      variables: JSON values of what else the template reads, by name
        (`enable_thinking`).

    Raises:
      ValueError: it does not compile, does not show the tools or does not
        read a variable.
    """
    self._template, reads = templates.compiled(text)
    self._variables = dict(variables or {})
    _check_variables(self._variables, reads)
    if tools and 'tools' not in reads:
      raise ValueError(
          'the chat template does not read `tools`, so the model would not see'
          ' those of the task or the environment; name a template that shows'
          ' them with model.chat_template.'
      )
    self._text = text
    self._special = dict(special or {})
    self._tools = tuple(tools)
    self._hash = hashing.of_json([text, self._special, self._variables])
    self._render = functools.lru_cache(_CACHED_TEXTS)(self._render_text)

  @classmethod
  def from_folder(
      cls,
      folder: str | pathlib.Path,
      *,
      file: str | pathlib.Path = '',
      variables: Mapping[str, Any] | None = None,
  ) -> 'ChatTemplate':
    """Reads chat_template.jinja, else the one in tokenizer_config.json.

    Args:
      folder: of the model; names the special tokens in any case.
      file: a template that takes the place of the folder's; empty is none.
      variables: as the constructor takes them.

    Raises:
      ValueError: there is no template, it does not compile, or it does not
        read a variable.
      FileNotFoundError: the file named is not there.
    """
    config = tokenizer_lib.read_config(folder)
    path = pathlib.Path(file or pathlib.Path(folder) / 'chat_template.jinja')
    if file or json_files.is_there(path):
      text = _read(path)
    else:
      path = pathlib.Path(folder) / 'tokenizer_config.json'
      text = _named_default(config.get('chat_template'))
    if text is None:
      raise ValueError(
          f'{folder}: there is no chat template; it is read from'
          ' chat_template.jinja or from chat_template in'
          ' tokenizer_config.json. Name a file of your own with'
          ' model.chat_template.'
      )
    special = {n: tokenizer_lib.token_text(config.get(n)) for n in _SPECIAL}
    special = {n: t for n, t in special.items() if t is not None}
    try:
      return cls(text, special, variables=variables)
    except templates.DoesNotCompile as error:
      raise ValueError(f'{path}: {error}') from error

  def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> 'ChatTemplate':
    """The template that shows these tools; itself where there are none.

    Raises:
      ValueError: it shows no tools.
    """
    if not tools:
      return self
    return ChatTemplate(self._text, self._special, tools, self._variables)

  @property
  def hash(self) -> str:
    """Stands for the template, its special tokens and its variables (R5)."""
    return self._hash

  @property
  def text(self) -> str:
    """The template that has its variables' values as defaults."""
    return templates.with_defaults(self._text, self._variables)

  def render(self, messages: Sequence[Message], *, ask: bool) -> str:
    """The text of a conversation.

    Args:
      messages: in order.
      ask: the assistant speaks next, so its header is added.

    Raises:
      MessagesRefused: the template does not take the messages.
    """
    return self._render(tuple(messages), ask)

  def _render_text(self, messages: tuple[Message, ...], ask: bool) -> str:
    plain = [message.members() for message in messages]
    try:
      return self._template.render(
          messages=plain,
          tools=list(self._tools) or None,
          documents=None,
          add_generation_prompt=ask,
          **self._special,
          **self._variables,
      )
    except jinja2.TemplateError as error:
      raise MessagesRefused(f'the chat template failed: {error}') from error

  def closing(self) -> str:
    """What the template itself writes after an assistant's content."""
    try:
      user = Message('user', _PROBE)
      text = self.render([user, Message('assistant', _PROBE)], ask=False)
    except ValueError:
      return ''
    _, found, rest = text.rpartition(_PROBE)
    return rest if found else ''


def _read(path: pathlib.Path) -> str:
  try:
    return json_files.read_bytes(path, limit=_MAX_TEMPLATE).decode('utf-8')
  except UnicodeDecodeError as error:
    raise ValueError(f'{path}: a chat template is UTF-8: {error}.') from error


def _check_variables(
    variables: Mapping[str, Any], reads: frozenset[str]
) -> None:
  for name, value in variables.items():
    setting = f'model.template_variables.{name} = {value!r}'
    if name in _GIVEN:
      raise ValueError(
          f'{setting}: the run itself gives the chat template {name}; take it'
          ' out.'
      )
    if name not in reads:
      others = ', '.join(sorted(reads - {*_GIVEN})) or 'no variable'
      raise ValueError(
          f'{setting}: the chat template does not read it; it reads {others}.'
      )


def _named_default(entry: Any) -> str | None:
  """A config's template: a text, or the one named default of a list."""
  if isinstance(entry, list):
    by_name = {e.get('name'): e.get('template') for e in entry}
    return by_name.get('default')
  return entry if isinstance(entry, str) else None


class Conversation:
  """The token stream of one window.

  Every method that adds returns the ids that were added, in order; the
  stream is their concatenation with the sampled ids between.
  """

  def __init__(
      self, template: ChatTemplate, tokenizer: tokenizer_lib.Tokenizer
  ):
    """Starts empty; `open` comes first."""
    self._template = template
    self._tokenizer = tokenizer
    self._messages: list[Message] = []
    self._text = ''
    self._end_token: str | None = None
    # The last reply's stop token, where the template ends no reply itself.
    self._open_stop = ''

  @property
  def template_hash(self) -> str:
    """Hash of the template in use (R5)."""
    return self._template.hash

  @property
  def messages(self) -> tuple[Message, ...]:
    """The messages of the window, replies included."""
    return tuple(self._messages)

  def open(self, messages: Sequence[Message]) -> np.ndarray:
    """Starts a new window that ends with the assistant's header."""
    text = self._template.render(messages, ask=True)
    ids = self._tokenizer.encode(text)
    self._messages, self._text = list(messages), text
    self._open_stop = ''
    return ids

  def reply(self, text: str) -> None:
    """Takes note of what was sampled, its stop token included.

    The ids are the sampler's and are not made here (K05).
    """
    content, end = text, self._closing_token()
    self._open_stop = ''
    if not end:
      # GLM's templates close a reply with the next message's header, and that
      # header is what the policy stops with.
      special = self._tokenizer.special_tokens
      end = self._open_stop = next(filter(text.endswith, special), '')
    if end and text.endswith(end):
      content = text.removesuffix(end)
    self._messages.append(Message('assistant', content))
    self._text += text

  def add(self, messages: Sequence[Message], *, ask: bool) -> np.ndarray:
    """Appends messages, and with `ask` the assistant's header.

    Raises:
      HistoryRewritten: the template changes earlier text; the conversation
        is as before, and `open` starts a window with the changed history.
    """
    text, history = self._continued(messages, ask)
    ids = self._tokenizer.encode(text[len(self._text) :], follows=True)
    self._messages = [*history, *messages]
    self._text = text
    return ids

  def preview(self, messages: Sequence[Message], *, ask: bool) -> np.ndarray:
    """The ids that `add` would append; appends nothing."""
    text, _ = self._continued(messages, ask)
    return self._tokenizer.encode(text[len(self._text) :], follows=True)

  def _continued(
      self, messages: Sequence[Message], ask: bool
  ) -> tuple[str, list[Message]]:
    """The text with the messages, and the history that it renders."""
    history = self._messages
    text = self._template.render([*history, *messages], ask=ask)
    if self._open_stop and not text.startswith(self._text):
      if text + self._open_stop == self._text:
        return self._text, history
      # Another header follows than the one that was sampled: it stays, as
      # part of what was said.
      said = dataclasses.replace(
          history[-1], content=history[-1].content + self._open_stop
      )
      history = [*history[:-1], said]
      text = self._template.render([*history, *messages], ask=ask)
    if not text.startswith(self._text):
      place = next(_differences(text, self._text))
      raise HistoryRewritten(
          'the chat template changed the conversation from character'
          f' {place} on: {self._text[place:place + 40]!r} became'
          f' {text[place:place + 40]!r}.'
      )
    return text, history

  def _closing_token(self) -> str:
    """The token that ends a reply where the template writes it, else ''.

    Such a template adds the token after the content, so the sampled one is
    not part of the content. A template that writes nothing there leaves the
    stop token to the content.
    """
    if self._end_token is None:
      closing = self._template.closing()
      ids = self._tokenizer.encode(closing, follows=True)
      self._end_token = self._tokenizer.decode(ids[:1]) if len(ids) else ''
    return self._end_token


def _differences(left: str, right: str) -> Iterator[int]:
  """Indices at which two texts differ, the shorter one's end among them."""
  for index, (a, b) in enumerate(zip(left, right)):
    if a != b:
      yield index
  yield min(len(left), len(right))
