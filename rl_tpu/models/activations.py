"""Non-linearities of the gated feed-forward layers."""

import jax


def gated(gate: jax.Array, up: jax.Array, kind: str) -> jax.Array:
  """`up` times the activation `kind` of the gate."""
  if kind == 'relu':
    return jax.nn.relu(gate) * up
  if kind == 'silu':
    return jax.nn.silu(gate) * up
  return jax.nn.gelu(gate, approximate=True) * up
