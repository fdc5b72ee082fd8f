"""Rows cut into chunks of equal length that are scanned side by side."""

import jax
import jax.numpy as jnp

# Tokens of a chunk, about. A shorter one means fewer steps and more chunks.
_LENGTH = 64


class Lanes:
  """Rows of T tokens as lanes: a scan has K steps over all B * C chunks.

  Arrays over lanes are [K, M] with the step outermost, so that each step of a
  scan reads one contiguous slice; M = B * C is divided over devices as B is.

  Attributes:
    rows: B.
    tokens: T.
    per_row: C, chunks of a row.
    length: K, tokens of a chunk.
    count: M.
  """

  def __init__(self, shape: tuple[int, int]):
    """Chooses the chunks of [B, T] arrays."""
    self.rows, self.tokens = shape
    # An odd number of chunks keeps the steps of a transposed array from
    # falling on the same cache sets; one spare token at the end of a row
    # makes room for what is handed over there.
    self.per_row = max(1, self.tokens // _LENGTH) | 1
    self.length = -(-(self.tokens + 1) // self.per_row)
    self.count = self.rows * self.per_row
    self.padded = self.per_row * self.length

  def split(self, array_BT: jax.Array) -> jax.Array:
    """[K, M] of a [B, T] array, zeros in padding."""
    # Written into zeros rather than padded: XLA would fuse a pad, and with it
    # whatever made the array, into the strided loop of the transpose.
    padded = jnp.zeros((self.rows, self.padded), array_BT.dtype)
    padded = padded.at[:, : self.tokens].set(array_BT)
    return padded.reshape(self.count, self.length).T

  def merge(self, array_KM: jax.Array) -> jax.Array:
    """The [B, T] array that `split` was made from."""
    return array_KM.T.reshape(self.rows, self.padded)[:, : self.tokens]

  def by_row(self, array_M: jax.Array) -> jax.Array:
    """[..., B, C] of [..., M]."""
    return array_M.reshape(*array_M.shape[:-1], self.rows, self.per_row)

  def from_row(self, array_BC: jax.Array) -> jax.Array:
    """[..., M] of [..., B, C]."""
    return array_BC.reshape(*array_BC.shape[:-2], self.count)

  def index(self, flat: jax.Array) -> jax.Array:
    """Running index, lane * K + step, of flat indices row * T + position."""
    return flat // self.tokens * self.padded + flat % self.tokens

  def row_end(self, index: jax.Array) -> jax.Array:
    """Running index of the last, always empty, position of the same row."""
    return (index // self.padded + 1) * self.padded - 1
