"""Experiment modules, classes by import path, and settings as JSON."""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import io
import json
import pathlib
import re
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping
from typing import Any

from rl_tpu.config import fields
from rl_tpu.config import schema

_SURPLUS = re.compile(
    r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'"
)


def load_experiment(path: str | pathlib.Path) -> schema.ExperimentConfig:
  """The settings that an experiment file's `get_config()` returns.

  The file's folder and the one above become importable, so an experiment may
  build on its neighbour and name a class in a file beside it.

  Raises:
    ValueError: no such file, no `get_config`, a file that raises, or something
      else than an ExperimentConfig returned.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'--experiment={path}: there is no such file.')
  for folder in (path.resolve().parent.parent, path.resolve().parent):
    if str(folder) not in sys.path:
      sys.path.append(str(folder))
  with _guarded(path):
    config = _config_of(path)
  if not isinstance(config, schema.ExperimentConfig):
    raise ValueError(
        f'--experiment={path}: get_config() returned a'
        f' {type(config).__name__}, not an ExperimentConfig.'
    )
  return config


def _config_of(path: pathlib.Path) -> Any:
  module = _module(path)
  get_config = getattr(module, 'get_config', None)
  if not callable(get_config):
    raise ValueError(
        f'--experiment={path}: the file has no function get_config(); an'
        ' experiment is a module whose get_config() returns an'
        ' ExperimentConfig.'
    )
  return _call(get_config, path)


def _module(path: pathlib.Path) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location(
      f'_experiment_{path.stem}', path
  )
  if spec is None or spec.loader is None:
    raise ValueError(f'--experiment={path}: not a Python file (.py).')
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except SyntaxError as error:
    where = f'line {error.lineno}' if error.lineno else 'the file'
    raise ValueError(
        f'--experiment={path}: {where} is not Python: {error.msg}.'
    ) from error
  except ModuleNotFoundError as error:
    raise ValueError(
        f'--experiment={path}: it imports {error.name}, which is not installed.'
    ) from error
  except Exception as error:  # The file is the user's: so is what it raises.
    raise ValueError(f'--experiment={path}: {_raised(error, path)}') from error
  return module


@contextlib.contextmanager
def _guarded(path: pathlib.Path) -> Iterator[None]:
  """Runs a file that may be no experiment but a program (setup.py).

  It finds no flags of ours and nothing to read, and what would end the process
  is its fault. Ctrl-C of the user is not. What it prints is shown where it is
  an experiment.

  Raises:
    ValueError: it asked to end the process.
  """
  words, stdin, printed = sys.argv, sys.stdin, io.StringIO()
  interrupted = threading.Event()
  sys.argv, sys.stdin = [str(path)], io.StringIO()
  try:
    with _noting_interrupts(interrupted), contextlib.redirect_stdout(
        printed
    ), contextlib.redirect_stderr(printed):
      yield
  except (SystemExit, KeyboardInterrupt) as error:
    if interrupted.is_set():
      raise
    raise ValueError(
        f'--experiment={path}: it ends the process'
        f' ({type(error).__name__}{_place(error, path)}); an experiment is a'
        ' module whose get_config() returns an ExperimentConfig, no program.'
    ) from error
  finally:
    sys.argv, sys.stdin = words, stdin
  sys.stderr.write(printed.getvalue())


@contextlib.contextmanager
def _noting_interrupts(interrupted: threading.Event) -> Iterator[None]:
  """Notes a real Ctrl-C, which a file's own KeyboardInterrupt is not."""
  before = signal.getsignal(signal.SIGINT)
  is_main = threading.current_thread() is threading.main_thread()
  if not is_main or not callable(before):
    yield
    return

  def note(number: int, frame: types.FrameType | None) -> None:
    interrupted.set()
    before(number, frame)

  signal.signal(signal.SIGINT, note)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


def _call(get_config: Any, path: pathlib.Path) -> Any:
  try:
    return get_config()
  except TypeError as error:
    surplus = _SURPLUS.search(str(error))
    section = getattr(schema, surplus.group(1), None) if surplus else None
    if section is None:
      raise ValueError(
          f'--experiment={path}: {_raised(error, path)}'
      ) from error
    name = fields.nearest(
        surplus.group(2), list(fields.by_shown_name(section).values())
    )
    raise ValueError(
        f'--experiment={path}: {surplus.group(1)} has no field'
        f' {surplus.group(2)}; did you mean {name}?'
    ) from error
  except Exception as error:
    raise ValueError(f'--experiment={path}: {_raised(error, path)}') from error


def _raised(error: Exception, path: str | pathlib.Path | None) -> str:
  """What the code of a user raised, and in which line; of `path`, if it can."""
  return f'{type(error).__name__}: {error} ({_place(error, path)[2:]}).'


def _place(error: BaseException, path: str | pathlib.Path | None) -> str:
  """File and line of an error, after a comma."""
  frames = traceback.extract_tb(error.__traceback__)
  theirs = [f for f in frames if path and f.filename == str(path)]
  frame = (theirs or frames)[-1]
  return f', {pathlib.Path(frame.filename).name}, line {frame.lineno}'


def import_target(target: str) -> Any:
  """What an import path `module:Class` names.

  Raises:
    ValueError: not of that form, no such module, or no such name in it.
  """
  module_name, colon, name = target.partition(':')
  if not colon or not module_name or not name:
    raise ValueError(
        f'{target!r} is no import path; write module:Class, for example'
        ' my_package.my_module:MyClass.'
    )
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    if error.name is None or not (module_name + '.').startswith(
        error.name + '.'
    ):
      raise ValueError(
          f'{target}: the module imports {error.name}, which is not installed.'
      ) from error
    raise ValueError(
        f'{target}: there is no module {error.name}; it must be importable'
        " from the working directory or from the experiment file's folder."
    ) from error
  found = getattr(module, name, None)
  if found is None:
    names = [n for n in vars(module) if not n.startswith('_')]
    raise ValueError(
        f'{target}: {module_name} has no {name}; did you mean'
        f' {fields.nearest(name, names)}?'
    )
  return found


def construct(
    target: str, settings: Mapping[str, Any], *, setting: str, **given: Any
) -> Any:
  """Calls the class that `target` names with a user's settings.

  Args:
    target: import path, `module:Class`.
    settings: keyword arguments that the user chose.
    setting: name of the section, for messages (`environment`).
    **given: keyword arguments that the program adds.

  Raises:
    ValueError: a setting that the class does not take, or one it needs that
      is missing, something that is no class, or a class that raises.
  """
  try:
    cls = import_target(target)
  except ValueError as error:
    raise ValueError(f'{setting}.target: {error}') from error
  if not callable(cls):
    raise ValueError(
        f'{setting}.target: {target} is a {type(cls).__name__}; name a class.'
    )
  parameters = inspect.signature(cls).parameters
  is_open = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
  for name in settings:
    if name in given:
      raise ValueError(
          f'{setting}.settings.{name}: set by the run itself; remove it.'
      )
    if name not in parameters and not is_open:
      known = [n for n in parameters if n not in given]
      raise ValueError(
          f'{setting}.settings.{name}: {target} takes no such argument; did'
          f' you mean {fields.nearest(name, known)}?'
      )
  missing = [
      n
      for n, p in parameters.items()
      if p.default is p.empty
      and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
      and n not in settings
      and n not in given
  ]
  if missing:
    raise ValueError(
        f'{setting}.settings.{missing[0]}: {target} needs it, and it is not'
        ' set.'
    )
  try:
    return cls(**given, **settings)
  except (ValueError, ModuleNotFoundError):
    raise  # It says what it needs.
  except Exception as error:
    where = inspect.getsourcefile(cls)
    raise ValueError(
        f'{setting}.target: {target}: {_raised(error, where)}'
    ) from error


def check_has(made: Any, name: str, *, setting: str) -> None:
  """Refuses what was made of the class of another section.

  Args:
    made: by `construct`.
    name: an attribute that it needs.
    setting: name of the section.

  Raises:
    ValueError: it has none of that name.
  """
  if getattr(made, name, None) is None:
    cls = type(made)
    raise ValueError(
        f'{setting}.target: {cls.__module__}:{cls.__qualname__} has no {name},'
        f' which {setting} needs; name another class.'
    )


def to_dict(settings: Any) -> dict[str, Any]:
  """A settings tree as JSON values, under the names a user writes."""
  return {
      fields.shown(f.name): _plain(getattr(settings, f.name))
      for f in dataclasses.fields(settings)
  }


def _plain(value: Any) -> Any:
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return to_dict(value)
  if isinstance(value, Mapping):
    return {name: _plain(v) for name, v in value.items()}
  if isinstance(value, (tuple, list)):
    return [_plain(v) for v in value]
  return value


def from_dict(
    data: Mapping[str, Any], settings: type = schema.ExperimentConfig
) -> Any:
  """The inverse of `to_dict`; a missing name takes its default.

  Raises:
    ValueError: an unknown name or a value of another type.
  """
  return _from_dict(data, settings, '')


def _from_dict(data: Mapping[str, Any], settings: type, prefix: str) -> Any:
  if not isinstance(data, Mapping):
    name = prefix.rstrip('.') or 'the settings'
    raise ValueError(f'{name}: {data!r} is not a mapping {{name: value}}.')
  names = fields.by_shown_name(settings)
  hints = fields.annotations(settings)
  values = {}
  for shown, value in data.items():
    if shown not in names:
      raise ValueError(
          f'{prefix}{shown}: there is no such setting; did you mean'
          f' {prefix}{fields.nearest(shown, list(names))}?'
      )
    name = names[shown]
    section = fields.section_type(hints[name])
    if section is not None and value is not None:
      values[name] = _from_dict(value, section, f'{prefix}{shown}.')
      continue
    try:
      values[name] = fields.check(value, hints[name])
    except ValueError as error:
      raise ValueError(f'{prefix}{shown}: {error}') from error
  return settings(**values)


def save(config: schema.ExperimentConfig, path: str | pathlib.Path) -> None:
  """Writes the settings in force as JSON."""
  text = json.dumps(to_dict(config), indent=2, allow_nan=False)
  pathlib.Path(path).write_text(text + '\n', encoding='utf-8')


def load(path: str | pathlib.Path) -> schema.ExperimentConfig:
  """Reads what `save` wrote.

  Raises:
    ValueError: no such file, not JSON, or unknown settings; the file is named.
  """
  path = pathlib.Path(path)
  try:
    data = json.loads(path.read_text(encoding='utf-8'))
    return from_dict(data)
  except FileNotFoundError as error:
    raise ValueError(f'{path}: there is no such file.') from error
  except json.JSONDecodeError as error:
    raise ValueError(
        f'{path}: it is not JSON: {error}; name the directory of another run.'
    ) from error
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def differences(
    left: schema.ExperimentConfig, right: schema.ExperimentConfig
) -> list[str]:
  """Dotted names of the settings that differ, in the order of the tree."""
  left_flat, right_flat = flat(left), flat(right)
  names = list(left_flat) + [n for n in right_flat if n not in left_flat]
  absent = object()
  return [
      name
      for name in names
      if left_flat.get(name, absent) != right_flat.get(name, absent)
  ]


def flat(config: schema.ExperimentConfig) -> dict[str, Any]:
  """Every setting by its dotted name, as JSON has it."""
  return _flat(to_dict(config))


def _flat(data: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for name, value in data.items():
    if isinstance(value, dict):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
