"""Which ids of rl_tpu/ALGORITHMS.md are named by which tests.

    python -m tests.algorithm_ids

prints the number of tests of every id. An id counts where it stands as a word
of its own in the name of a test function, or in the name of a case of
`parameterized.named_parameters`; comments and docstrings prove nothing.
"""

import ast
import pathlib
import re
from collections.abc import Iterable, Iterator

import rich.console
import rich.table

ROOT = pathlib.Path(__file__).resolve().parent
REFERENCE = ROOT.parent / 'rl_tpu' / 'ALGORITHMS.md'

_ID = re.compile(r'[A-Z]\d+')
_INDEX = '## Index of ids'


def index(text: str) -> dict[str, list[str]]:
  """Ids of every section, as the table at the end of the reference has them.

  Raises:
    ValueError: a row whose count is not the number of its ids.
  """
  sections = {}
  for line in text[text.index(_INDEX) :].splitlines():
    cells = [cell.strip() for cell in line.strip('|').split('|')]
    if len(cells) != 3 or not cells[2].isdigit():
      continue
    section, ids = cells[0], cells[1].split(', ')
    if len(ids) != int(cells[2]):
      raise ValueError(f'section {section} counts {cells[2]} ids: {ids}')
    sections[section] = ids
  return sections


def definitions(text: str) -> list[str]:
  """Ids that a paragraph of the reference opens with, in its order."""
  return re.findall(r'^\*\*([A-Z]\d+)\*\* ', text, re.MULTILINE)


def words(name: str) -> set[str]:
  """Ids that stand as words of their own in a name."""
  return {w for w in re.split(r'[^A-Za-z0-9]+', name) if _ID.fullmatch(w)}


def _case_names(function: ast.FunctionDef) -> Iterator[str]:
  """Names of the cases that `named_parameters` gives a test."""
  for decorator in function.decorator_list:
    if not isinstance(decorator, ast.Call):
      continue
    if not ast.unparse(decorator.func).endswith('named_parameters'):
      continue
    for case in decorator.args:
      if isinstance(case, ast.Tuple | ast.List) and case.elts:
        case = case.elts[0]
      elif isinstance(case, ast.Dict):
        keys = [ast.unparse(key) for key in case.keys if key is not None]
        if "'testcase_name'" not in keys:
          continue
        case = case.values[keys.index("'testcase_name'")]
      if isinstance(case, ast.Constant) and isinstance(case.value, str):
        yield case.value


def names(source: str) -> list[str]:
  """Names of the tests in a module, and of their named cases."""
  found = []
  left = [ast.parse(source)]
  while left:
    for node in left.pop().body:
      if isinstance(node, ast.ClassDef):
        left.append(node)
      elif isinstance(node, ast.FunctionDef) and node.name.startswith('test_'):
        found.append(node.name)
        found += [f'{node.name}/{case}' for case in _case_names(node)]
  return found


def tests_by_id(paths: Iterable[pathlib.Path]) -> dict[str, list[str]]:
  """Tests, as `file: name`, by the id they name.

  A function counts once for each id in its name, and each of its cases once
  for each further id in the case's own.
  """
  found: dict[str, list[str]] = {}
  for path in sorted(paths):
    for name in names(path.read_text('utf-8')):
      function, _, case = name.partition('/')
      ids = words(case) - words(function) if case else words(function)
      for id_ in ids:
        found.setdefault(id_, []).append(f'{path.name}: {name}')
  return found


def all_tests() -> dict[str, list[str]]:
  """`tests_by_id` of the whole suite."""
  return tests_by_id(ROOT.rglob('*_test.py'))


def main() -> None:
  """Prints the table."""
  tests = all_tests()
  table = rich.table.Table('section', 'tests by id', box=None)
  total = missing = 0
  for section, ids in index(REFERENCE.read_text('utf-8')).items():
    counts = [len(tests.get(id_, ())) for id_ in ids]
    total, missing = total + len(ids), missing + counts.count(0)
    cells = (f'{id_} {count}' for id_, count in zip(ids, counts))
    table.add_row(section, '  '.join(cells))
  console = rich.console.Console()
  console.print(table)
  console.print(f'{total - missing} of {total} ids are named by a test.')


if __name__ == '__main__':
  main()
