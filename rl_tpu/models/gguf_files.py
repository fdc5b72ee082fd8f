"""GGUF files of Llama's and Qwen's dense models, as a Hugging Face folder.

Such a file has numbers in many forms and the tokenizer among its fields; of
Llama's models it has the rows of query and key matrices in pairs. Fields that
are not understood are refused: one that is ignored gives a model that talks
nonsense.
"""

from collections.abc import Callable, Mapping
import functools
import pathlib
from typing import Any

import gguf
import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import huggingface
from rl_tpu.models import importing

# By general.architecture, the settings that no field tells.
ARCHITECTURES = {
    'llama': {},
    'qwen2': {'qkv_bias': True},
    'qwen3': {'qk_norm': True},
}
# Their rotary pairs are neighbours; elsewhere they are half a head apart.
_PAIRED = ('llama',)
_NAMES = {
    'token_embd': 'model.embed_tokens',
    'output_norm': 'model.norm',
    'output': 'lm_head',
}
_LAYER_NAMES = {
    'attn_norm': 'input_layernorm',
    'attn_q': 'self_attn.q_proj',
    'attn_q_norm': 'self_attn.q_norm',
    'attn_k': 'self_attn.k_proj',
    'attn_k_norm': 'self_attn.k_norm',
    'attn_v': 'self_attn.v_proj',
    'attn_output': 'self_attn.o_proj',
    'ffn_norm': 'post_attention_layernorm',
    'ffn_gate': 'mlp.gate_proj',
    'ffn_up': 'mlp.up_proj',
    'ffn_down': 'mlp.down_proj',
}
# Settings by their fields, without the architecture, that every file has.
_REQUIRED = {
    'embedding_length': 'width',
    'block_count': 'num_layers',
    'attention.head_count': 'num_heads',
    'feed_forward_length': 'mlp_width',
    'context_length': 'max_length',
}
_NORM_EPS, _ROPE_THETA = 'attention.layer_norm_rms_epsilon', 'rope.freq_base'
_KV_HEADS, _VOCAB = 'attention.head_count_kv', 'vocab_size'
_HEAD_WIDTHS = (
    'attention.key_length',
    'attention.value_length',
    'rope.dimension_count',
)
_SCALING = 'rope.scaling.type'


def read(
    path: str | pathlib.Path,
) -> tuple[
    config_lib.DecoderConfig,
    dict[str, Callable[[], np.ndarray]],
    dict[str, Any],
]:
  """Reads the fields, and where every tensor is.

  Returns:
    The decoder's settings; by name in a Hugging Face folder what makes each
    tensor, dequantised; and the fields of the tokenizer.

  Raises:
    ValueError: no GGUF file, another architecture, a field or a tensor that
      is missing or not understood.
  """
  path = pathlib.Path(path)
  try:
    reader = gguf.GGUFReader(str(path))
  except (ValueError, IndexError) as error:
    raise ValueError(f'{path}: it is no GGUF file: {error}') from None
  fields = {name: field.contents() for name, field in reader.fields.items()}
  stored = {tensor.name: tensor for tensor in reader.tensors}
  kind = _architecture(path, fields)
  config = _config(path, kind, fields, stored)
  heads = {}
  if kind in _PAIRED:
    heads = {'attn_q': config.num_heads, 'attn_k': config.num_kv_heads}
  tensors = {
      _name(path, name): functools.partial(
          _numbers, tensor, heads.get(name.split('.')[-2])
      )
      for name, tensor in stored.items()
  }
  _check_tensors(path, config, tensors, stored)
  texts = {n: v for n, v in fields.items() if n.startswith('tokenizer.')}
  return config, tensors, texts


def _architecture(path, fields) -> str:
  kind = fields.get('general.architecture')
  if kind not in ARCHITECTURES:
    raise ValueError(
        f'{path}: general.architecture = {kind!r} is not supported; use one of'
        f' {", ".join(ARCHITECTURES)}.'
    )
  return kind


def _config(path, kind, fields, stored) -> config_lib.DecoderConfig:
  prefix = kind + '.'
  own = {
      name.removeprefix(prefix): value
      for name, value in fields.items()
      if name.startswith(prefix)
  }
  known = {*_REQUIRED, *_HEAD_WIDTHS}
  known |= {_NORM_EPS, _ROPE_THETA, _KV_HEADS, _VOCAB, _SCALING}
  for name in own:
    if name not in known:
      raise ValueError(f'{path}: {prefix}{name} is not supported.')
  for name in (*_REQUIRED, _NORM_EPS):
    if name not in own:
      raise ValueError(f'{path}: {prefix}{name} is missing.')
  if own.get(_SCALING, 'none') != 'none':
    raise ValueError(
        f'{path}: {prefix}{_SCALING} = {own[_SCALING]!r} is not supported.'
    )
  settings = {ours: own[name] for name, ours in _REQUIRED.items()}
  width, heads = settings['width'], settings['num_heads']
  widths = {own[name] for name in _HEAD_WIDTHS if name in own}
  widths = widths or {width // heads}
  if len(widths) > 1:
    raise ValueError(
        f'{path}: {", ".join(prefix + name for name in _HEAD_WIDTHS)} differ'
        f' ({sorted(widths)}), which is not supported.'
    )
  embedding = stored.get('token_embd.weight')
  tokens = own.get(_VOCAB) or (0 if embedding is None else embedding.shape[1])
  try:
    return config_lib.DecoderConfig(
        **settings,
        vocab_size=int(tokens),
        num_kv_heads=own.get(_KV_HEADS) or heads,
        head_width=widths.pop(),
        norm_eps=_shortest(own[_NORM_EPS]),
        rope_theta=_shortest(own.get(_ROPE_THETA, 1e4)),
        tie_embeddings='output.weight' not in stored,
        **ARCHITECTURES[kind],
    )
  except (TypeError, ValueError) as error:
    raise ValueError(f'{path}: {error}') from None


def _shortest(value: float) -> float:
  """The shortest number that is the same float32: 1e-5, not 9.99999975e-6."""
  return float(str(np.float32(value)))


def _name(path, name: str) -> str:
  """A tensor's name in a Hugging Face folder."""
  *place, module, kind = name.split('.')
  if kind == 'weight' and not place and module in _NAMES:
    return f'{_NAMES[module]}.weight'
  if (
      kind in ('weight', 'bias')
      and module in _LAYER_NAMES
      and len(place) == 2
      and place[0] == 'blk'
  ):
    return f'model.layers.{place[1]}.{_LAYER_NAMES[module]}.{kind}'
  raise ValueError(f'{path}: tensor {name} has no place in the model.')


def _check_tensors(path, config, tensors, stored: Mapping[str, Any]) -> None:
  shapes = huggingface.tensor_shapes(config)
  for name in sorted(set(shapes) ^ set(tensors)):
    problem = 'is missing' if name in shapes else 'has no place in the model'
    raise ValueError(f'{path}: the tensor of {name} {problem}.')
  for name, tensor in stored.items():
    found, wanted = _shape(tensor), shapes[_name(path, name)]
    if found != wanted:
      raise ValueError(
          f'{path}: tensor {name} has shape {list(found)}, its fields ask for'
          f' {list(wanted)}.'
      )


def _shape(tensor) -> tuple[int, ...]:
  """Shape with the innermost axis last; the file has it first."""
  return tuple(int(size) for size in reversed(tensor.shape))


def _numbers(tensor, heads: int | None) -> np.ndarray:
  """A tensor's float32 numbers, with rows in a folder's order."""
  numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
  numbers = np.asarray(numbers, np.float32).reshape(_shape(tensor))
  if heads is None:
    return numbers
  return importing.halves_from_pairs(numbers, heads)
