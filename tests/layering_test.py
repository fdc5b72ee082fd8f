"""The floor table of the architecture, checked on every import."""

import ast
import pathlib

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'rl_tpu'

FLOORS = (
    ('types',),
    ('config', 'records'),
    ('sharding', 'isolation', 'text'),
    ('models', 'losses', 'advantages', 'rewards', 'metrics', 'verifiers'),
    ('environments', 'tasks', 'sampler', 'learner'),
    ('rollout', 'alignment'),
    ('checkpointing', 'evaluation', 'serving'),
    ('assembly',),
    ('trainer', 'sft', 'planning'),
    ('ablation', 'reporting'),
    ('cli',),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Worker processes import these: they start fast because jax is not loaded.
WITHOUT_JAX = (
    'config',
    'records',
    'isolation',
    'text',
    'environments',
    'verifiers',
    'types/budget.py',
    'types/termination.py',
)
ONLY_SITE_OF_JETSTREAM = 'sampler/contract.py'


def imports(source: str) -> list[str]:
  """Dotted names that a module imports, also inside functions."""
  found = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      found += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      module = '.' * node.level + (node.module or '')
      found += [f'{module}.{alias.name}' for alias in node.names]
  return found


def room_of(path: pathlib.Path) -> str:
  """The room a file of the package belongs to."""
  return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


def faults(source: str, room: str) -> list[str]:
  """Imports of a module in `room` that do not point to a lower floor."""
  found = []
  for name in imports(source):
    parts = name.split('.')
    if name.startswith('.'):
      found.append(f'{name}: relative import')
    elif parts[0] == 'rl_tpu' and len(parts) > 1:
      other = parts[1]
      if other not in FLOOR:
        found.append(f'{name}: no such room in the floor table')
      elif other != room and FLOOR[other] >= FLOOR[room]:
        found.append(f'{name}: floor {FLOOR[other]} from floor {FLOOR[room]}')
  return found


def modules() -> list[pathlib.Path]:
  """All modules of the package but its own __init__ and __main__."""
  own = {PACKAGE / '__init__.py', PACKAGE / '__main__.py'}
  return sorted(p for p in PACKAGE.rglob('*.py') if p not in own)


def is_import_of(name: str, package: str) -> bool:
  return name == package or name.startswith(package + '.')


class LayeringTest(absltest.TestCase):

  def test_every_room_has_a_floor(self):
    rooms = {room_of(path) for path in modules()}
    self.assertContainsSubset(rooms, FLOOR)

  def test_imports_point_to_a_lower_floor(self):
    found = [
        f'{path.relative_to(ROOT)} imports {fault}'
        for path in modules()
        for fault in faults(path.read_text('utf-8'), room_of(path))
    ]
    self.assertEmpty(found, '\n'.join(found))

  def test_the_check_finds_faults(self):
    self.assertLen(faults('from rl_tpu.trainer import train', 'losses'), 1)
    self.assertLen(faults('def f():\n  import rl_tpu.cli.main', 'models'), 1)
    self.assertLen(faults('from rl_tpu import losses', 'models'), 1)
    self.assertLen(faults('from . import policy', 'losses'), 1)
    self.assertLen(faults('from rl_tpu import misc', 'cli'), 1)
    self.assertEmpty(faults('from rl_tpu.losses import value', 'losses'))
    self.assertEmpty(faults('from rl_tpu.types import sums', 'losses'))

  def test_worker_rooms_do_not_import_jax(self):
    found = []
    for path in modules():
      place = path.relative_to(PACKAGE).as_posix()
      if place.split('/')[0] in WITHOUT_JAX or place in WITHOUT_JAX:
        for name in imports(path.read_text('utf-8')):
          if any(is_import_of(name, p) for p in ('jax', 'flax', 'optax')):
            found.append(f'{place} imports {name}')
    self.assertEmpty(found)

  def test_jetstream_has_one_import_site(self):
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        for name in imports(path.read_text('utf-8'))
        if is_import_of(name, 'jetstream')
    }
    self.assertContainsSubset(found, {ONLY_SITE_OF_JETSTREAM})

  def test_experiments_import_config_only(self):
    found = []
    for path in sorted((ROOT / 'experiments').glob('*.py')):
      for name in imports(path.read_text('utf-8')):
        if is_import_of(name, 'rl_tpu') and not is_import_of(
            name, 'rl_tpu.config'
        ):
          found.append(f'{path.name} imports {name}')
    self.assertEmpty(found)

  def test_launch_imports_nothing_of_the_package(self):
    found = [
        f'{path.name} imports {name}'
        for path in sorted((ROOT / 'launch').rglob('*.py'))
        for name in imports(path.read_text('utf-8'))
        if is_import_of(name, 'rl_tpu')
    ]
    self.assertEmpty(found)


if __name__ == '__main__':
  absltest.main()
