"""Dumps on disk: the arrays of a skipped step, and what is known of it (L18).

A dump is two files of one name: NAME.npz holds the arrays, NAME.json the rest.
"""

import json
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

FOLDER = 'dumps'


def path_of(
    workdir: str | os.PathLike[str], update: int, network: str, minibatch: int
) -> pathlib.Path:
  """Where the arrays of a skipped step go."""
  name = f'{update:06d}-{network}-{minibatch}.npz'
  return pathlib.Path(workdir) / FOLDER / name


def write(
    path: str | os.PathLike[str],
    report: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
  """Writes both files; the one with the arrays appears last, and whole."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(report, allow_nan=False, indent=1)
  path.with_suffix('.json').write_text(text, encoding='utf-8')
  partial = path.with_name(path.stem + '.partial.npz')
  np.savez_compressed(partial, **arrays)
  os.replace(partial, path)


def read(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """What `write` was given; either file may be named.

  Raises:
    ValueError: a file that is missing or is no dump.
  """
  path = pathlib.Path(path).with_suffix('.npz')
  for file in (path, path.with_suffix('.json')):
    if not file.is_file():
      raise ValueError(f'{file}: there is no such file; a dump has two.')
  try:
    report = json.loads(path.with_suffix('.json').read_text('utf-8'))
    with np.load(path, allow_pickle=False) as stored:
      return report, {name: stored[name] for name in stored.files}
  except (ValueError, KeyError, zipfile.BadZipFile) as error:
    raise ValueError(f'{path}: it is no dump: {error}') from error
