"""What each position sees of a cache, with rings and without."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import kv_cache
from tests.models import cases

_LENGTH = 64
_STALE = -5  # What a slot's last sequence left.
_PADDING = 1000


def _config(window: int):
  """Layer 0 sees the window."""
  return cases.config(
      num_kv_heads=1, head_width=2, local_layers=(0,), window=window
  )


def _content(position: np.ndarray, length: int) -> np.ndarray:
  """float32 [1, 1, T, 2], the position in place of keys; padding has none."""
  valid = np.arange(len(position)) < length
  marked = np.where(valid, position, _PADDING).astype(np.float32)
  return np.tile(marked[:, None], (1, 2))[None, None]


@jax.jit(static_argnums=0)
def _feed(config, cache, new, start_S, length_S):
  """Masks and what they are for, by layer, and the new cache."""
  masks = kv_cache.visible(config, cache, start_S, new.shape[2])
  looked_at, kept = zip(*(
      kv_cache.add(old, new, start_S, length_S, is_ring)
      for old, is_ring in zip(cache.key, kv_cache.rings(config).key)
  ))
  return masks, looked_at, kv_cache.Cache(kept, kept)


class Reader:
  """Feeds one slot and notes what every position sees."""

  def __init__(self, window: int, prompt: int, padded: int):
    self.config, self.seen = _config(window), {}
    cache = kv_cache.init(self.config, 1, _LENGTH)
    new, length_S = _content(np.arange(padded), prompt), np.array([prompt])

    def put(old, is_ring):
      read = kv_cache.of_prompts(new, length_S, window if is_ring else None)
      stale = np.full(old.shape, _STALE, np.float32)
      stale[:, :, : read.shape[2]] = read
      return stale

    self.cache = jax.tree.map(put, cache, kv_cache.rings(self.config))

  def feed(self, start: int, length: int, padded: int) -> None:
    """Adds positions from `start` on."""
    masks, looked_at, self.cache = _feed(
        self.config,
        self.cache,
        _content(start + np.arange(padded), length),
        np.array([start]),
        np.array([length]),
    )
    for layer, (mask, keys) in enumerate(zip(masks, looked_at)):
      for offset in range(length):
        found = np.asarray(keys)[0, 0, :, 0][np.asarray(mask)[0, offset]]
        self.seen[layer, start + offset] = sorted(found.tolist())


class VisibleTest(parameterized.TestCase):

  @parameterized.parameters(
      # A prompt shorter than the window, as long, longer; padding past it.
      (1, 5, 16), (7, 1, 4), (9, 9, 9), (9, 11, 12), (9, 5, 16), (40, 20, 32)
  )
  def test_every_position_sees_its_window(self, window, prompt, padded):
    made = Reader(window, prompt, padded)
    # The last prompt token again, and a dead slot's token twice; chunks with
    # more padding than tokens, or longer than the window.
    for ahead, length, padded in (
        (-1, 1, 1), (0, 1, 1), (1, 1, 1), (2, 3, 8), (5, 1, 1), (6, 12, 16),
        (18, 1, 1), (18, 1, 1), (18, 6, 8), (24, 1, 1),
    ):
      made.feed(prompt + ahead, length, padded)
    self.assertLen(made.seen, 2 * 26)
    for (layer, now), found in made.seen.items():
      first = max(0, now - window + 1) if layer == 0 else 0
      self.assertEqual(found, list(range(first, now + 1)), (layer, now))

  def test_a_ring_is_no_longer_than_the_cache(self):
    for window, kept in ((9, 9), (64, 64), (100, 64)):
      cache = kv_cache.init(_config(window), 3, _LENGTH, 'bfloat16')
      for leaves in cache:  # Keys, then values.
        self.assertEqual(leaves[0].shape, (3, 1, kept, 2))
        self.assertEqual(leaves[1].shape, (3, 1, _LENGTH, 2))
        self.assertEqual(leaves[0].dtype, jnp.bfloat16)


if __name__ == '__main__':
  absltest.main()
