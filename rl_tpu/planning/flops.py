"""Floating-point operations of matrix products, counted in a jaxpr.

The compiler's own count takes the body of a loop once; here scans count as
often as they run. A loop of unknown length counts once. What nothing reads is
not counted: the compiler leaves it out.
"""

import math
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from rl_tpu.models import config as config_lib

# Matrix products of a splash kernel over half of the scores: the causal part.
_KERNELS = {'fwd': 2, 'dkv': 4, 'dq': 3}


def count(jaxpr: Any, *, expert_shards: int = 1) -> float:
  """Operations of all devices together.

  Args:
    jaxpr: closed or not; its shapes are those of whole arrays.
    expert_shards: size of the mesh axis `expert` around it, under a shard_map.
      Each shard's ragged products have room for the rows of all of them, and a
      row is at work on one.
  """
  jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)
  # A checkpointed layer's recomputation is written down whole, with what its
  # policy has saved.
  read, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  return _count(read, expert_shards)


def _count(jaxpr: Any, expert_shards: int) -> float:
  jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)
  return sum(_of_equation(each, expert_shards) for each in jaxpr.eqns)


def _of_equation(equation: Any, expert_shards: int) -> float:
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    return _dot(equation)
  if name == 'ragged_dot_general':
    rows, inner = equation.invars[0].aval.shape[-2:]
    columns = equation.outvars[0].aval.shape[-1]
    return 2.0 * rows * inner * columns / expert_shards
  if name == 'pallas_call':
    return _kernel(equation)
  if name == 'shard_map' and 'expert' in params['newly_manual_axes']:
    expert_shards = params['mesh'].shape['expert']
  inner = sum(
      _largest(value, expert_shards)
      for value in params.values()
      if _has_jaxpr(value)
  )
  if name == 'scan':
    return params['length'] * inner
  if name == 'shard_map':
    mesh, axes = params['mesh'], params['newly_manual_axes']
    return inner * math.prod(mesh.shape[axis] for axis in axes)
  return inner


def _dot(equation: Any) -> float:
  (contracted, _), _ = equation.params['dimension_numbers']
  left = equation.invars[0].aval.shape
  depth = math.prod(left[axis] for axis in contracted)
  return 2.0 * depth * math.prod(equation.outvars[0].aval.shape)


def _kernel(equation: Any) -> float:
  """A splash kernel: products over the causal half of [T, T]."""
  name = str(equation.params.get('name') or '')
  if 'splash' not in name:
    return 0.0
  products = next((n for key, n in _KERNELS.items() if key in name), 0)
  shapes = [v.aval.shape for v in equation.invars if len(v.aval.shape) >= 3]
  query = max(shapes, key=math.prod)
  return products * 2.0 * math.prod(query) * query[-2] / 2


def _has_jaxpr(value: Any) -> bool:
  if isinstance(value, (tuple, list)):
    return any(_has_jaxpr(each) for each in value)
  return isinstance(value, (core.Jaxpr, core.ClosedJaxpr))


def _largest(value: Any, expert_shards: int) -> float:
  """Of branches the most expensive one."""
  branches = value if isinstance(value, (tuple, list)) else (value,)
  return max(
      _count(each, expert_shards)
      for each in branches
      if _has_jaxpr(each)
  )


def of_model(
    config: config_lib.DecoderConfig, tokens: int, length: int, *, heads: int
) -> float:
  """What a forward pass cannot do without.

  Args:
    config: the model.
    tokens: that are read.
    length: of the rows that they lie in; a token sees half of it on average.
    heads: output columns: the vocabulary, or 1 for values.
  """
  attention = config.num_heads + 2 * config.num_kv_heads + config.num_heads
  matrices = config.width * config.head_width * attention
  layers = config.num_layers
  dense = layers if config.mixture is None else config.mixture.leading_dense
  per_token = layers * matrices + dense * 3 * config.width * config.mlp_width
  if config.mixture is not None:
    mixture = config.mixture
    chosen = mixture.experts_per_token * mixture.expert_width
    inner = chosen + mixture.shared_width
    router = config.width * mixture.num_experts
    per_token += (layers - dense) * (3 * config.width * inner + router)
  per_token += config.width * heads
  scores = layers * config.num_heads * config.head_width * length
  return 2.0 * tokens * (per_token + scores)
