"""What a check keeps on disk, and how it shows that it goes on."""

import collections
import hashlib
import json
import pathlib
from collections.abc import Mapping

import rich.console
import rich.progress

from tests.mutation import runner


def console() -> rich.console.Console:
  """A console wide enough for the tables, whoever reads it."""
  made = rich.console.Console()
  if not made.is_terminal:
    made.width = 120
  return made


def name(title: str, sources: Mapping[str, str]) -> str:
  """The same in every run as long as the given sources are."""
  digest = hashlib.blake2b(digest_size=8)
  for module, source in sorted(sources.items()):
    digest.update(f'{module}\n{source}\n'.encode())
  return f'{title} {digest.hexdigest()}'


class Store:
  """Results in a file of JSON lines; without a path nothing is kept."""

  def __init__(self, path: str | None):
    """Reads what earlier runs left."""
    self._path = path
    self._lines = {}
    if path is not None and pathlib.Path(path).exists():
      for text in pathlib.Path(path).read_text('utf-8').splitlines():
        line = json.loads(text)
        self._lines[line['name']] = line

  def get(self, key: str) -> runner.Result | None:
    """The result of an earlier run, without its log."""
    line = self._lines.get(key)
    if line is None:
      return None
    return runner.Result(
        runner.Outcome(line['outcome']), tuple(line['failed']), line['cpu_s'],
        '',
    )

  def add(self, key: str, result: runner.Result) -> None:
    """Appends a result."""
    if self._path is None:
      return
    line = {
        'name': key,
        'outcome': result.outcome.value,
        'failed': result.failed,
        'cpu_s': round(result.cpu_s, 2),
    }
    with open(self._path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')


class Progress:
  """A line that counts; a plain one every so often where no one watches."""

  def __init__(self, console, what: str, total: int):
    self._console, self._what, self._total = console, what, total
    self._counts: collections.Counter[str] = collections.Counter()
    self._bar = rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TimeElapsedColumn(),
        console=console,
    )

  def __enter__(self):
    self._bar.__enter__()
    self._task = self._bar.add_task(self._what, total=self._total)
    return self._advance

  def __exit__(self, *exception):
    self._bar.__exit__(*exception)

  def _advance(self, outcome) -> None:
    self._counts['done'] += 1
    if outcome is not None:
      self._counts[outcome.value] += 1
    parts = [f'{k} {n}' for k, n in self._counts.items() if k != 'done']
    text = ' '.join([self._what, *parts])
    self._bar.update(self._task, advance=1, description=text)
    if not self._console.is_terminal and not self._counts['done'] % 25:
      self._console.print(f'{self._counts["done"]}/{self._total} {text}')
