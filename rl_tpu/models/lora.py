"""Low-rank adapters (LoRA, arXiv 2106.09685).

A matrix W that has an adapter acts as W + alpha / rank * A B. The base is
frozen; an adapter is a leaf pair `lora/a`, `lora/b` beside the `kernel` of its
module. B starts at zero, so a new adapter changes nothing.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

NAME = 'lora'
TARGETS = ('query', 'key', 'value', 'out', 'gate', 'up', 'down')

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
  """Which matrices have adapters.

  Attributes:
    rank: r, inner size of an adapter.
    alpha: the product of A and B is multiplied by alpha / rank.
    targets: modules of a layer, of TARGETS.
  """

  rank: int
  alpha: float
  targets: tuple[str, ...] = TARGETS

  @property
  def scale(self) -> float:
    """What the product of A and B is multiplied by."""
    return self.alpha / self.rank


def split(params: Params, *trained: str) -> tuple[Params, Params]:
  """Takes a tree apart: (frozen base, what is trained).

  Args:
    params: nested parameters.
    *trained: names of further subtrees that are trained, such as a head.

  Returns:
    Two trees without the other's leaves; `join` puts them together.
  """
  base, adapters = {}, {}
  for name, value in params.items():
    if name == NAME or name in trained:
      adapters[name] = value
    elif not isinstance(value, dict):
      base[name] = value
    else:
      inner, ours = split(value, *trained)
      if inner:
        base[name] = inner
      if ours:
        adapters[name] = ours
  return base, adapters


def join(base: Params | None, adapters: Params) -> Params:
  """One tree with the leaves of both; nothing is copied."""
  out = dict(base or {})
  for name, value in adapters.items():
    out[name] = join(out[name], value) if name in out else value
  return out


def merge(params: Params, settings: Settings) -> Params:
  """Plain parameters that act as the adapted ones: W + alpha / rank * A B.

  Args:
    params: nested parameters; layers are stacked on a leading axis.
    settings: those that the adapters were made with.
  """
  out = {}
  for name, value in params.items():
    if name == NAME:
      continue
    out[name] = merge(value, settings) if isinstance(value, dict) else value
  if NAME in params:
    out['kernel'] = params['kernel'] + settings.scale * product(
        params[NAME], params['kernel'].shape
    )
  return out


def product(adapter: Params, shape: tuple[int, ...]) -> jnp.ndarray:
  """A B in the shape of the kernel, float32."""
  a, b = adapter['a'], adapter['b']
  stack, rank = a.shape[0], a.shape[-1]
  wide = jnp.einsum(
      'lir,lro->lio', a.reshape(stack, -1, rank), b.reshape(stack, rank, -1)
  )
  return wide.reshape(shape)
