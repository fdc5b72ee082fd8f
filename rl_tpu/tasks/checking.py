"""What a file of rows holds, and which of its rows cannot be used."""

import dataclasses
import json
from collections.abc import Callable, Mapping

from rl_tpu.records import records
from rl_tpu.tasks import row_fields
from rl_tpu.tasks import row_files
from rl_tpu.tasks import rows

# (text, tokens) of a task's prompt as the policy is asked it.
Render = Callable[[records.Task], tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Report:
  """What was found.

  Attributes:
    rows: of the file, faulty ones among them.
    faults: one message for each faulty row, with file and line.
    lengths: by name, one number for each usable row.
    sources: usable rows by source.
    repeated: usable rows whose prompt an earlier one has too.
    examples: text of the first prompts, as the policy is asked them.
  """

  rows: int
  faults: tuple[str, ...]
  lengths: Mapping[str, tuple[int, ...]]
  sources: Mapping[str, int]
  repeated: int
  examples: tuple[str, ...]


def check(
    file: row_files.RowFile,
    fields: row_fields.Fields,
    *,
    render: Render | None = None,
    examples: int = 2,
) -> Report:
  """Reads every row.

  Args:
    file: of rows.
    fields: the names that it uses.
    render: writes a task's prompt as a model is asked it; a ValueError of it
      is a fault of the row. None shows the messages and counts no tokens.
    examples: prompts to keep.
  """
  names = ['prompt characters', 'answer characters']
  names += ['prompt tokens'] if render else []
  lengths: dict[str, list[int]] = {name: [] for name in names}
  faults, shown = [], []
  sources: dict[str, int] = {}
  prompts: set[str] = set()
  repeated = 0
  for index, found in enumerate(rows.scan(file, fields)):
    if isinstance(found, row_files.RowFault):
      faults.append(str(found))
      continue
    plain = _plain(found)
    text, tokens = plain, None
    if render is not None:
      try:
        text, tokens = render(found)
      except ValueError as error:
        faults.append(f'{file.place(index)}: {error}')
        continue
      lengths['prompt tokens'].append(tokens)
    said = [m['content'] for m in found.payload['messages']]
    lengths['prompt characters'].append(sum(map(len, said)))
    lengths['answer characters'].append(len(found.payload['answer']))
    sources[found.source] = sources.get(found.source, 0) + 1
    repeated += plain in prompts
    prompts.add(plain)
    if len(shown) < examples:
      shown.append(text)
  return Report(
      rows=len(file),
      faults=tuple(faults),
      lengths={name: tuple(found) for name, found in lengths.items()},
      sources=sources,
      repeated=repeated,
      examples=tuple(shown),
  )


def _plain(task: records.Task) -> str:
  shown = [
      f'tool: {json.dumps(tool, ensure_ascii=False)}' for tool in task.tools
  ]
  said = [f'{m["role"]}: {m["content"]}' for m in task.payload['messages']]
  return '\n'.join(shown + said)
