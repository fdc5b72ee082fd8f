"""How families of models write tool calls and reasoning, as text.

qwen (Hermes style):  <tool_call>{"name": .., "arguments": {..}}</tool_call>
llama3:               <|python_tag|>{"name": .., "parameters": {..}}; {..}
                      or the bare objects where the reply begins with one
glm (GLM-4.5):        <tool_call>name <arg_key>k</arg_key>
                      <arg_value>v</arg_value> .. </tool_call>

A reader never raises: what was meant as a call and is none is a call with an
error. JSON decides where it ends, so an argument may hold a closing mark.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from rl_tpu.text import json_spans

_THINK, _THINK_END = '<think>', '</think>'
_CALL, _CALL_END = '<tool_call>', '</tool_call>'
_PYTHON = '<|python_tag|>'
_KEY, _KEY_END = '<arg_key>', '</arg_key>'
_VALUE, _VALUE_END = '<arg_value>', '</arg_value>'

_ARGUMENTS = ('arguments', 'parameters')
# An object that was meant as a call: other JSON is an answer.
_BARE = re.compile(r'\s*\{\s*"(?:name"|type"\s*:\s*"function")')
_NEXT = re.compile(r'\{\s*"name"')
_GLM_NAME = re.compile(r'\s*([^<>\s]+)\s*(?=<arg_key>|</tool_call>)')

Span = tuple[int, int]
Part = tuple[int, int, str]


class _Malformed(ValueError):
  """A call that is none; `at` is where it stopped being one."""

  def __init__(self, what: str, at: int):
    super().__init__(what)
    self.at = at


@dataclasses.dataclass(frozen=True)
class Call:
  """A call as written: characters [start, stop), with its parts."""

  start: int
  stop: int
  name: str = ''
  arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
  error: str = ''
  parts: tuple[Part, ...] = ()


# Reads a call that begins at a place of a text.
ReadCall = Callable[[str, int], Call]


@dataclasses.dataclass
class Scan:
  """What a reply is made of, in characters.

  Attributes:
    parts: (start, stop, token type); of two that overlap the later one holds.
    calls: in order, malformed ones among them.
    reasoning: thinking blocks, their marks included.
    said: the rest.
  """

  parts: list[Part] = dataclasses.field(default_factory=list)
  calls: list[Call] = dataclasses.field(default_factory=list)
  reasoning: list[Span] = dataclasses.field(default_factory=list)
  said: list[Span] = dataclasses.field(default_factory=list)

  def mark(self, start: int, mark: str) -> int:
    """Notes a mark as structure; returns where it ends."""
    self.parts.append((start, start + len(mark), 'structure'))
    return start + len(mark)

  def add(self, call: Call) -> int:
    """Notes a call, whose format is structure; returns where it ends."""
    self.calls.append(call)
    if not call.error:
      self.parts += [(call.start, call.stop, 'structure'), *call.parts]
    return call.stop

  def say(self, start: int, stop: int) -> None:
    """Notes prose, if there is any."""
    if stop > start:
      self.said.append((start, stop))


def read(text: str, name: str) -> Scan:
  """Reads a reply, its stop token left out, in the named format.

  Raises:
    ValueError: there is no such format.
  """
  return _reader(name)(text)


def check_name(name: str) -> None:
  """Raises ValueError where there is no such format."""
  _reader(name)


def _reader(name: str) -> Callable[[str], Scan]:
  readers = {'qwen': _qwen, 'llama3': _llama3, 'glm': _glm}
  if name not in readers:
    raise ValueError(
        f'tool_format = {name!r}: there is no such format of tool calls; there'
        f' are {", ".join(readers)}.'
    )
  return readers[name]


def _qwen(text: str) -> Scan:
  return _tagged(text, _read_json_call)


def _glm(text: str) -> Scan:
  return _tagged(text, _read_glm_call)


def _tagged(text: str, read_call: ReadCall) -> Scan:
  """Prose, thinking blocks and calls between marks, in any order."""
  scan = Scan()
  at = _prompted_reasoning(scan, text)
  while at < len(text):
    places = [(text.find(mark, at), mark) for mark in (_THINK, _CALL)]
    start, mark = min(
        (p for p in places if p[0] >= 0), default=(len(text), '')
    )
    scan.say(at, start)
    if mark == _CALL:
      at = _tagged_call(scan, text, start, read_call)
    elif mark == _THINK:
      at = _reasoning(scan, text, start)
    else:
      at = start
  return scan


def _prompted_reasoning(scan: Scan, text: str) -> int:
  """A thinking block that the prompt has opened already."""
  end = text.find(_THINK_END)
  if end < 0 or 0 <= text.find(_THINK) < end:
    return 0
  stop = scan.mark(end, _THINK_END)
  scan.reasoning.append((0, stop))
  return stop


def _reasoning(scan: Scan, text: str, start: int) -> int:
  inner = scan.mark(start, _THINK)
  end = text.find(_THINK_END, inner)
  stop = len(text) if end < 0 else scan.mark(end, _THINK_END)
  scan.reasoning.append((start, stop))
  return stop


def _tagged_call(
    scan: Scan, text: str, start: int, read_call: ReadCall
) -> int:
  inner = scan.mark(start, _CALL)
  try:
    call = read_call(text, inner)
    at = json_spans.after_space(text, call.stop)
    if not text.startswith(_CALL_END, at):
      raise _Malformed(f'{_CALL_END} expected after the call', at)
  except _Malformed as error:
    end = text.find(_CALL_END, error.at)
    again = text.find(_CALL, error.at)
    if end >= 0 and not 0 <= again < end:
      stop = scan.mark(end, _CALL_END)
    else:
      stop = again if again >= 0 else len(text)
    return scan.add(Call(start, stop, error=str(error)))
  stop = at + len(_CALL_END)
  return scan.add(dataclasses.replace(call, start=start, stop=stop))


def _read_json_call(text: str, at: int) -> Call:
  """{"name": .., "arguments": {..}}."""
  start = json_spans.after_space(text, at)
  try:
    members, stop = json_spans.members_at(text, start)
  except json_spans.NotJson as error:
    raise _Malformed(f'not a JSON object: {error}', at) from error
  by_key = {m.key: m for m in members}
  given = [by_key[key] for key in _ARGUMENTS if key in by_key]
  if 'name' not in by_key or not isinstance(by_key['name'].value, str):
    raise _Malformed('the call has no "name" that is a string', stop)
  if not by_key['name'].value:
    raise _Malformed('the name of the call is empty', stop)
  if len(given) != 1 or not isinstance(given[0].value, dict):
    raise _Malformed('the call needs one object "arguments"', stop)
  parts = [(*by_key['name'].value_span, 'tool_name')]
  for member in json_spans.members_at(text, given[0].value_start)[0]:
    parts.append((*member.key_span, 'arg_key'))
    parts.append((*member.value_span, 'arg_value'))
  return Call(
      start, stop, by_key['name'].value, given[0].value, parts=tuple(parts)
  )


def _read_glm_call(text: str, at: int) -> Call:
  """A name, then pairs of <arg_key> and <arg_value>.

  A value is JSON where it reads as JSON, else the text between its marks: the
  format does not say whether `5` is a number or a string.
  """
  name = _GLM_NAME.match(text, at)
  if not name:
    raise _Malformed('the call does not begin with a name', at)
  parts = [(*name.span(1), 'tool_name')]
  arguments: dict[str, Any] = {}
  at = name.end()
  while not text.startswith(_CALL_END, at):
    start, stop = _between(text, at, _KEY, _KEY_END)
    key = text[start:stop].strip()
    if key in arguments:
      raise _Malformed(f'the key {key!r} comes twice', at)
    parts.append((start, stop, 'arg_key'))
    at = json_spans.after_space(text, stop + len(_KEY_END))
    start, stop = _between(text, at, _VALUE, _VALUE_END)
    parts.append((start, stop, 'arg_value'))
    at = json_spans.after_space(text, stop + len(_VALUE_END))
    try:
      arguments[key] = json_spans.value_of(text[start:stop])
    except json_spans.NotJson:
      arguments[key] = text[start:stop]
  return Call(name.start(1), at, name.group(1), arguments, parts=tuple(parts))


def _between(text: str, at: int, mark: str, mark_end: str) -> Span:
  if not text.startswith(mark, at):
    raise _Malformed(f'{mark} expected', at)
  inner = at + len(mark)
  end = text.find(mark_end, inner)
  # Else the mark of a following call would close what this one left open.
  if end < 0 or mark in text[inner:end]:
    raise _Malformed(f'{mark} is not closed', at)
  return inner, end


def _llama3(text: str) -> Scan:
  scan = Scan()
  at = _prompted_reasoning(scan, text)
  begins = json_spans.after_space(text, at)
  if text.startswith(_THINK, begins):
    scan.say(at, begins)
    at = _reasoning(scan, text, begins)
  tag = text.find(_PYTHON, at)
  if tag >= 0:
    scan.say(at, tag)
    _json_calls(scan, text, scan.mark(tag, _PYTHON), tag)
  elif _BARE.match(text, at):
    _json_calls(scan, text, at, json_spans.after_space(text, at))
  else:
    scan.say(at, len(text))
  return scan


def _json_calls(scan: Scan, text: str, at: int, start: int) -> None:
  """Objects with `;` between them; the first call begins at `start`."""
  while True:
    try:
      call = _read_json_call(text, at)
      stop = scan.add(dataclasses.replace(call, start=start))
    except _Malformed as error:
      following = _NEXT.search(text, max(error.at, at + 1))
      stop = following.start() if following else len(text)
      scan.add(Call(start, stop, error=str(error)))
    at = json_spans.after_space(text, stop)
    if text.startswith(';', at):
      at = json_spans.after_space(text, scan.mark(at, ';'))
    if not text.startswith('{', at):
      scan.say(at, len(text))
      return
    start = at
