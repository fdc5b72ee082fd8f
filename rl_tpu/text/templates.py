"""Jinja templates as model folders have them."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

# Tasks with tools of their own ask for the same template again and again.
_CACHED = 8


class DoesNotCompile(ValueError):
  """A template with a mistake in its syntax."""


class _Generation(jinja2.ext.Extension):
  """Accepts `{% generation %}`, which marks the assistant's text."""

  tags = {'generation'}

  def parse(
      self, parser: jinja2.parser.Parser
  ) -> list[jinja2.nodes.Node]:
    """Keeps the block's body as if the tags were not there."""
    next(parser.stream)
    return parser.parse_statements(('name:endgeneration',), drop_needle=True)


def _raise_exception(message: str) -> None:
  raise ValueError(f'the chat template refuses the messages: {message}')


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
  """JSON as models were shown it: jinja2's own filter escapes it for HTML."""
  return json.dumps(
      value,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
  )


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=[_Generation, jinja2.ext.loopcontrols],
  )
  environment.globals['raise_exception'] = _raise_exception
  environment.filters['tojson'] = _to_json
  return environment


def parsed(text: str) -> jinja2.nodes.Template:
  """The tree of a template that compiles."""
  return _environment().parse(text)


@functools.lru_cache(_CACHED)
def compiled(text: str) -> tuple[jinja2.Template, frozenset[str]]:
  """A template, and the names that it may read.

  Raises:
    DoesNotCompile: it has a mistake.
  """
  environment = _environment()
  try:
    names = jinja2.meta.find_undeclared_variables(environment.parse(text))
    return environment.from_string(text), frozenset(names)
  except jinja2.TemplateSyntaxError as error:
    raise DoesNotCompile(
        f'the chat template does not compile: {error}'
    ) from error


def with_defaults(text: str, variables: Mapping[str, Any]) -> str:
  """A template that has these values where its caller gives none.

  Args:
    text: of the template.
    variables: JSON values by name.
  """
  # A JSON value's Python form is Jinja's, too. The line's end goes with the
  # tag before it (trim_blocks), so the text begins where a line begins.
  lines = [
      f'{{%- if {name} is not defined %}}{{% set {name} = {value!r} %}}'
      '{% endif %}\n'
      for name, value in variables.items()
  ]
  return ''.join(lines) + text
