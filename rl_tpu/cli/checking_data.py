"""The verb `check-data`: what a file of rows holds, before a run reads it."""

from collections.abc import Mapping, Sequence

import numpy as np
import rich.console
import rich.table
import rich.text

from rl_tpu.cli import arguments
from rl_tpu.config import fields as fields_lib
from rl_tpu.records import records
from rl_tpu.tasks import checking
from rl_tpu.tasks import row_fields
from rl_tpu.tasks import row_files
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib

FAULTY = 1

FLAGS = (
    arguments.Flag('input', 'JSONL or Parquet file of rows.', required=True),
    arguments.Flag(
        'layout',
        'what the file calls its fields.',
        'plain',
        choices=tuple(row_fields.LAYOUTS),
    ),
    arguments.Flag(
        'keys',
        'names of single fields: prompt=question,answer=solution.',
        '',
    ),
    arguments.Flag(
        'model',
        'Hugging Face folder, whose tokenizer and chat template are used.',
        '',
    ),
    arguments.Flag(
        'chat_template',
        "file with another chat template than the model's.",
        '',
    ),
    arguments.Flag(
        'template_variables',
        'what the chat template reads besides: enable_thinking=false.',
        '',
    ),
    arguments.Flag('limit', 'faulty rows to name at most.', 20),
)

_COLUMNS = ('', 'least', 'median', '95 %', '99 %', 'most', 'mean')


def run(values: Mapping[str, object], console: rich.console.Console) -> int:
  """Prints the report; the exit code says whether every row can be used.

  Raises:
    ValueError: a file or a model that cannot be read, or a flag that is wrong.
  """
  keys = _pairs('keys', values['keys'], 'prompt=question')
  fields = row_fields.Fields(values['layout'], keys, 'rows', prefix='--')
  for name in ('chat_template', 'template_variables'):
    if values[name] and not values['model']:
      raise ValueError(
          f'--{name}={values[name]}: prompts are rendered with --model only;'
          ' name its folder.'
      )
  if values['limit'] < 0:
    raise ValueError(f'--limit={values["limit"]}: name 0 faulty rows or more.')
  file = row_files.open_file(values['input'], '--input')
  render = _renderer(values) if values['model'] else None
  report = checking.check(file, fields, render=render)
  show(report, console, limit=values['limit'])
  return FAULTY if report.faults else 0


def _pairs(flag: str, text: str, example: str) -> dict[str, str]:
  """The pairs name=value of a flag."""
  pairs = {}
  for pair in filter(None, text.split(',')):
    name, equals, value = pair.partition('=')
    if not equals:
      raise ValueError(
          f'--{flag}={text}: {pair!r} is no pair name=value, such as'
          f' {example}.'
      )
    pairs[name.strip()] = value.strip()
  return pairs


def _renderer(values: Mapping[str, object]) -> checking.Render:
  folder, flag = values['model'], 'template_variables'
  named = _pairs(flag, values[flag], 'enable_thinking=false')
  tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
  template = chat.ChatTemplate.from_folder(
      folder,
      file=values['chat_template'],
      variables={
          name: fields_lib.free_value(value, None)
          for name, value in named.items()
      },
  )

  def render(task: records.Task) -> tuple[str, int]:
    messages = [chat.Message.of(m) for m in task.payload['messages']]
    text = template.with_tools(task.tools).render(messages, ask=True)
    return text, len(tokenizer.encode(text))

  return render


def show(
    report: checking.Report, console: rich.console.Console, *, limit: int
) -> None:
  """Prints rows, lengths, examples and faults."""
  console.print(_table(report))
  for number, text in enumerate(report.examples, start=1):
    console.rule(f'prompt {number}', align='left')
    console.print(rich.text.Text(text), soft_wrap=True)
  if report.examples:
    console.rule()
  # Text, not str: brackets of a message are no markup.
  for fault in report.faults[:limit]:
    console.print(rich.text.Text(fault), soft_wrap=True)
  left = len(report.faults) - limit
  if left > 0:
    console.print(f'and {left} more faulty rows (--limit)')


def _table(report: checking.Report) -> rich.table.Table:
  usable = report.rows - len(report.faults)
  caption = f'{report.rows} rows, {len(report.faults)} of them faulty'
  if report.repeated:
    caption += f'; {report.repeated} repeat the prompt of another'
  if len(report.sources) > 1:
    found = sorted(report.sources.items())
    caption += '; ' + ', '.join(f'{name} {count}' for name, count in found)
  table = rich.table.Table(
      title=rich.text.Text(caption), title_justify='left'
  )
  for name in _COLUMNS:
    table.add_column(name, justify='right' if name else 'left', no_wrap=True)
  for name, lengths in report.lengths.items():
    table.add_row(name, *(_figures(lengths) if usable else ()))
  return table


def _figures(lengths: Sequence[int]) -> list[str]:
  counts = np.asarray(lengths)
  # A length that occurs, not one between two.
  points = np.quantile(
      counts, (0.0, 0.5, 0.95, 0.99, 1.0), method='inverted_cdf'
  )
  return [f'{point:,}' for point in points] + [f'{counts.mean():,.1f}']
