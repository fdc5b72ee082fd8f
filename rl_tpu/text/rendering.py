"""Chat templates rendered in a process of their own: what it runs there."""

import functools
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.meta
import jinja2.sandbox

from rl_tpu.text import templates

TARGET = 'rl_tpu.text.rendering:render_here'
_LONGEST = 300
_REFUSES = 'the chat template refuses'


def render_here(text: str, context: Mapping[str, Any]) -> tuple[str, str]:
  """Renders in this process.

  Args:
    text: the template.
    context: what it may read, by name.

  Returns:
    ('text', it), ('refused', why) where the template itself refuses, or
    ('failed', why).
  """
  if problem := _unusable(text):
    return 'failed', problem
  template, _ = templates.compiled(text)
  try:
    return 'text', template.render(**context)
  except MemoryError:
    raise  # The process ends, and the caller is told why.
  except jinja2.sandbox.SecurityError as error:
    return 'failed', f'the chat template reaches too far: {error}'[:_LONGEST]
  except jinja2.TemplateError as error:
    return 'failed', f'the chat template failed: {error}'[:_LONGEST]
  except Exception as error:  # pylint: disable=broad-except
    # Its code is a stranger's and may raise anything; raise_exception too.
    if str(error).startswith(_REFUSES):
      return 'refused', str(error)[:_LONGEST]
    kind = type(error).__name__
    return 'failed', f'the chat template failed: {kind}: {error}'[:_LONGEST]


@functools.lru_cache(8)
def _unusable(text: str) -> str:
  """Why a template cannot be used at all; empty where it can."""
  try:
    templates.compiled(text)
  except ValueError as error:
    return str(error)[:_LONGEST]
  except RecursionError:
    return 'the chat template is nested too deeply'
  tree = templates.parsed(text)
  if any(True for _ in jinja2.meta.find_referenced_templates(tree)):
    return (
        'the chat template reads another one (include, import or extends);'
        ' write it as one file'
    )
  return ''
