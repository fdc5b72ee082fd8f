"""Tiny models of every family, made from a seed, for parity with transformers.

Read by `make_parity.py`, which runs where there is torch, and by the tests,
which run where there is none: numpy only.
"""

import json
import pathlib
import zlib

import numpy as np
from safetensors import numpy as safetensors_numpy

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / 'golden' / 'parity'
VOCAB = 64
LONG, SHORT = 44, 27  # Tokens of the two sequences.

_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    bos_token_id=2,
    eos_token_id=1,
    pad_token_id=0,
)
_LLAMA3 = dict(
    rope_type='llama3',
    rope_theta=500.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
_MIXTURE = dict(moe_intermediate_size=16, num_experts_per_tok=3)

# Every feature of the family's published configurations is on: windows are
# shorter than the sequences, soft-caps are near, rope scaling is past the
# original length.
CONFIGS = {
    'llama': dict(rope_parameters=_LLAMA3, tie_word_embeddings=True),
    'qwen2': dict(
        head_dim=None,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=1,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'qwen3': dict(
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=2,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'gemma2': dict(
        sliding_window=9,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    'gemma3_text': dict(
        num_hidden_layers=7,
        sliding_window=9,
        query_pre_attn_scalar=24,
        rope_parameters=dict(
            full_attention=dict(
                rope_type='linear', factor=8.0, rope_theta=1e6
            ),
            sliding_attention=dict(rope_type='default', rope_theta=1e4),
        ),
    ),
    'glm4': dict(attention_bias=True, rms_norm_eps=1.5625e-07),
    'qwen3_moe': dict(
        **_MIXTURE,
        num_local_experts=8,
        norm_topk_prob=True,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'glm4_moe': dict(
        **_MIXTURE,
        attention_bias=True,
        use_qk_norm=True,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        rms_norm_eps=1e-5,
    ),
}


def settings(kind: str) -> dict:
  """Arguments of the family's configuration class in transformers."""
  merged = {**_COMMON, **CONFIGS[kind]}
  return {name: value for name, value in merged.items() if value is not None}


def ids(length: int) -> np.ndarray:
  """Token ids of one sequence; pad and end ids stand inside, too."""
  return _numbers(f'ids {length}', length) % VOCAB


def tensor(kind: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
  """One tensor as the folder has it, float32.

  Matrices keep the size of what they read, twice over, so that scores and
  logits reach their caps; norms are not 1, biases not 0.

  Args:
    kind: the model_type.
    name: the tensor's name.
    shape: its shape.
  """
  raw = _numbers(f'{kind} {name}', int(np.prod(shape))).reshape(shape)
  unit = (raw >> np.uint64(11)) * 2.0**-53 * 2.0 - 1.0
  if len(shape) > 1:
    return (unit * 3.0 / np.sqrt(shape[-1])).astype(np.float32)
  is_centred = name.endswith('bias') or kind.startswith('gemma')
  return (0.4 * unit + (0.0 if is_centred else 1.0)).astype(np.float32)


def write_folder(kind: str, folder: pathlib.Path) -> None:
  """The folder that transformers had, its tensors made again."""
  content = golden_json(kind)
  text = json.dumps(content['config'])
  (folder / 'config.json').write_text(text)
  tensors = {
      name: tensor(kind, name, tuple(shape))
      for name, shape in content['tensors'].items()
  }
  safetensors_numpy.save_file(
      tensors, str(folder / 'model.safetensors'), metadata={'format': 'pt'}
  )


def golden_json(kind: str) -> dict:
  """config.json and the tensors' shapes."""
  return json.loads((GOLDEN / f'{kind}.json').read_text())


# The objectives whose gradients are compared, and the model of each.
GRADIENTS = {'grpo': 'gemma2', 'ppo': 'glm4_moe', 'critic': 'glm4_moe'}
CLIP = (0.2, 0.28)
KL_COEF, ENTROPY_COEF = 0.1, 0.01


def is_action(length: int) -> np.ndarray:
  """Two turns of the policy with an observation between."""
  place = np.arange(length)
  return (place >= 5) & ((place < 12) | (place >= 18))


def noise(key: str, length: int) -> np.ndarray:
  """float32 numbers between -1 and 1, one a token."""
  raw = _numbers(key, length) >> np.uint64(11)
  return (raw * 2.0**-52 - 1.0).astype(np.float32)


def summary(name: str, gradient: np.ndarray) -> np.ndarray:
  """A gradient's norm, and what it is along four directions."""
  flat = gradient.astype(np.float64).reshape(-1)
  along = [noise(f'{name} {n}', flat.size) @ flat for n in range(4)]
  return np.array([np.linalg.norm(flat), *along])


def _numbers(key: str, count: int) -> np.ndarray:
  """Raw output of a bit generator, which numpy keeps as it is."""
  return np.random.PCG64(zlib.crc32(key.encode())).random_raw(count)
