"""Adapters in the layout of Hugging Face's PEFT: one small folder.

adapter_config.json says what they are, adapter_model.safetensors holds
lora_A [r, in] and lora_B [out, r] of every module.
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import huggingface_names as names
from rl_tpu.models import lora
from rl_tpu.models import tensor_files

CONFIG = 'adapter_config.json'
TENSORS = 'adapter_model.safetensors'
_PREFIX = 'base_model.model.'


def save(
    folder: str | pathlib.Path,
    config: config_lib.DecoderConfig,
    adapters: lora.Params,
    *,
    base: str,
) -> None:
  """Writes the adapters beside whatever the folder holds.

  Args:
    folder: made if it is not there.
    config: the decoder's settings, with those of the adapters.
    adapters: as `lora.split` gives them.
    base: folder or name of the model that they belong to.

  Raises:
    ValueError: a module whose matrix the family's files fuse with another's.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  tensors = {}
  for name, stack, module, layer in _places(config):
    pair = adapters[stack][module][lora.NAME]
    a, b = (np.asarray(jax.device_get(pair[key][layer])) for key in ('a', 'b'))
    rank = config.lora.rank
    tensors[f'{_PREFIX}{name}.lora_A.weight'] = a.reshape(-1, rank).T
    tensors[f'{_PREFIX}{name}.lora_B.weight'] = b.reshape(rank, -1).T
  tensor_files.write_file(
      folder / TENSORS,
      {name: np.ascontiguousarray(value) for name, value in tensors.items()},
  )
  targets = {name.split('.')[-1] for name, *_ in _places(config)}
  content = {
      'peft_type': 'LORA',
      'task_type': 'CAUSAL_LM',
      'base_model_name_or_path': base,
      'r': config.lora.rank,
      'lora_alpha': config.lora.alpha,
      'target_modules': sorted(targets),
      'lora_dropout': 0.0,
      'bias': 'none',
      'fan_in_fan_out': False,
      'inference_mode': True,
  }
  text = json.dumps(content, indent=2) + '\n'
  (folder / CONFIG).write_text(text, encoding='utf-8')


def _places(config: config_lib.DecoderConfig) -> list[tuple[Any, ...]]:
  """(module's name in the family's files, stack, module, layer of it)."""
  out = []
  shapes = decoder.shapes_of(config)
  for stack in decoder.stacks(config):
    for module in config.lora.targets:
      if module not in shapes[stack]:
        continue  # A layer of experts has no feed-forward of its own.
      kernel = shapes[stack][module]['kernel']
      keys = stack, module, 'kernel'
      for layer, piece in enumerate(names.pieces(keys, kernel.shape, config)):
        if piece.part != (0, 1):
          raise ValueError(
              f'model.lora.targets: {module!r} is part of a larger matrix in'
              f' the files of this family ({piece.name}), which PEFT cannot'
              ' adapt in part; export with --merge.'
          )
        out.append((piece.name.removesuffix('.weight'), stack, module, layer))
  return out
