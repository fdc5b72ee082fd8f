"""What importers of other formats share: row order, and the folder's files."""

from collections.abc import Callable, Mapping, Sequence
import json
import pathlib

import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import huggingface
from rl_tpu.models import huggingface_config
from rl_tpu.models import tensor_files


def halves_from_pairs(matrix: np.ndarray, heads: int) -> np.ndarray:
  """Rows of a query or key matrix in the order of a Hugging Face folder.

  A rotary pair (2i, 2i + 1) of a head becomes (i, i + K / 2).

  Args:
    matrix: [heads * K, in], rotary pairs adjacent.
    heads: of the matrix.
  """
  rows, inputs = matrix.shape
  pairs = matrix.reshape(heads, rows // heads // 2, 2, inputs)
  return pairs.swapaxes(1, 2).reshape(rows, inputs)


def write(
    folder: pathlib.Path,
    config: config_lib.DecoderConfig,
    tensors: Mapping[str, Callable[[], np.ndarray]],
    *,
    special_ids: Mapping[str, int | Sequence[int]],
    on_written: Callable[[int, int], None] = lambda done, total: None,
) -> None:
  """Writes config.json, generation_config.json and the tensors.

  Args:
    folder: made if it is not there.
    config: the decoder's settings.
    tensors: by name in the folder: what makes each of them.
    special_ids: ids by their names in the configs, such as `eos_token_id`.
    on_written: called after every tensor with the bytes so far and in all.
  """
  folder.mkdir(parents=True, exist_ok=True)
  content = huggingface_config.render(config) | dict(special_ids)
  huggingface.write_config(folder, content)
  text = json.dumps(dict(special_ids), indent=2)
  (folder / 'generation_config.json').write_text(text + '\n', encoding='utf-8')
  entries = [
      tensor_files.Entry(name, shape, tensors[name])
      for name, shape in huggingface.tensor_shapes(config).items()
  ]
  tensor_files.write(folder, entries, on_written=on_written)
