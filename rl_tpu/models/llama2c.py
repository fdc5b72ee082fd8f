"""Checkpoints of the llama2.c project (version 0), as a Hugging Face folder.

Seven int32 (width, feed-forward width, layers, heads, key heads, tokens,
positions; tokens negative where the output layer is not the embedding), then
float32 arrays without names, all little-endian. Matrices are [out, in],
rotary pairs adjacent. The two rotary tables at the end are not parameters.
"""

from collections.abc import Callable
import functools
import math
import pathlib

import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import importing

_HEADER = 7
_NORM_EPS, _ROPE_THETA = 1e-5, 1e4  # Constants of that project.
# A file of a later version begins with these four bytes.
_LATER = int.from_bytes(b'24ka', 'little')


def read(
    path: str | pathlib.Path,
) -> tuple[config_lib.DecoderConfig, dict[str, Callable[[], np.ndarray]]]:
  """Reads the header, and where every tensor is.

  Returns:
    The decoder's settings, and by name in a Hugging Face folder what makes
    each tensor.

  Raises:
    ValueError: the file is of another form, or longer or shorter than its
      header says.
  """
  path = pathlib.Path(path)
  header = np.fromfile(path, '<i4', _HEADER)
  config = _config(path, header)
  layout = _layout(config)
  table = config.max_length * config.head_width // 2
  count = _HEADER + sum(math.prod(shape) for _, shape in layout) + 2 * table
  if not config.tie_embeddings:
    count += config.vocab_size * config.width
  if path.stat().st_size != 4 * count:
    raise ValueError(
        f'{path}: it has {path.stat().st_size} bytes, its header'
        f' {header.tolist()} asks for {4 * count}; it is cut, or no float32'
        ' checkpoint of llama2.c (version 0).'
    )
  numbers = np.memmap(path, '<f4', 'r')
  tensors, place = {}, _HEADER
  for name, shape in layout:
    array = numbers[place : place + math.prod(shape)].reshape(shape)
    tensors |= _named(name, array, config)
    place += array.size
  if not config.tie_embeddings:
    head = numbers[-config.vocab_size * config.width :]
    tensors['lm_head.weight'] = head.reshape(-1, config.width).copy
  return config, tensors


def _config(path, header: np.ndarray) -> config_lib.DecoderConfig:
  if header.size == _HEADER and header[0] == _LATER:
    raise ValueError(
        f'{path}: it is of version {header[1]}; version 0 is read (export.py'
        ' of llama2.c, --version 0).'
    )
  if header.size < _HEADER or (np.delete(header, 5) < 1).any():
    raise ValueError(
        f'{path}: its header {header.tolist()} is not that of a llama2.c'
        ' checkpoint.'
    )
  width, hidden, layers, heads, kv_heads, tokens, positions = header.tolist()
  try:
    return config_lib.DecoderConfig(
        vocab_size=abs(tokens),
        width=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_width=width // heads,
        mlp_width=hidden,
        norm_eps=_NORM_EPS,
        rope_theta=_ROPE_THETA,
        tie_embeddings=tokens > 0,
        max_length=positions,
    )
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _layout(config) -> list[tuple[str, tuple[int, ...]]]:
  """Arrays up to the rotary tables: names in a folder, and shapes."""
  layers, width = config.num_layers, config.width
  queries = config.num_heads * config.head_width
  keys = config.num_kv_heads * config.head_width
  hidden = config.mlp_width
  return [
      ('embed_tokens', (config.vocab_size, width)),
      ('input_layernorm', (layers, width)),
      ('self_attn.q_proj', (layers, queries, width)),
      ('self_attn.k_proj', (layers, keys, width)),
      ('self_attn.v_proj', (layers, keys, width)),
      ('self_attn.o_proj', (layers, width, queries)),
      ('post_attention_layernorm', (layers, width)),
      ('mlp.gate_proj', (layers, hidden, width)),
      ('mlp.down_proj', (layers, width, hidden)),
      ('mlp.up_proj', (layers, hidden, width)),
      ('norm', (width,)),
  ]


def _named(name, array, config) -> dict[str, Callable[[], np.ndarray]]:
  """The tensors of one array: one for each layer, or one."""
  if name in ('embed_tokens', 'norm'):
    return {f'model.{name}.weight': array.copy}
  heads = {
      'self_attn.q_proj': config.num_heads,
      'self_attn.k_proj': config.num_kv_heads,
  }.get(name)
  return {
      f'model.layers.{layer}.{name}.weight': functools.partial(
          importing.halves_from_pairs, part, heads
      )
      if heads
      else part.copy
      for layer, part in enumerate(array)
  }
