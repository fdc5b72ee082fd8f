"""Sums with their counts: the only form in which statistics travel.

Losses and metrics are returned as a total and a count (or a total under fixed
weights), so that microbatches, devices and processes can be added up. Nothing
averages an average (L8).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TokenSum(NamedTuple):
  """A sum over tokens and what it is divided by."""

  total: jax.Array
  count: jax.Array

  def __add__(self, other: 'TokenSum') -> 'TokenSum':  # type: ignore[override]
    return TokenSum(self.total + other.total, self.count + other.count)

  @property
  def mean(self) -> jax.Array:
    """total / count, and 0 where nothing was counted (L9)."""
    safe = jnp.where(self.count > 0, self.count, 1)
    return jnp.where(self.count > 0, self.total / safe, 0.0)


def masked_sum(value: jax.Array, mask: jax.Array) -> TokenSum:
  """Sums `value` where `mask` is True; NaN and inf elsewhere do not enter."""
  clean = jnp.where(mask, value, 0.0).astype(jnp.float32)
  return TokenSum(jnp.sum(clean), jnp.sum(mask, dtype=jnp.float32))


def weighted_sum(value: jax.Array, weight: jax.Array) -> jax.Array:
  """Sum of weight * value; NaN and inf without a weight do not enter (L9)."""
  return jnp.sum(jnp.where(weight > 0, value, 0.0) * weight)
