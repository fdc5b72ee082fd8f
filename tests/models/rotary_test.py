"""Rotary frequencies and the rotation."""

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import rotary
from tests.models import cases

_RULE = {
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
}
_WIDTH_64 = {
    14: (0.00321144599475, 0.00321144599475),
    15: (0.00213111953691, 0.00129054792821),
    16: (0.00141421356237, 0.000429556796559),
    17: (0.000938473870357, 9.70828780263e-05),
    18: (0.000622772421915, 1.94616381848e-05),
    31: (3.01385815214e-06, 9.41830672543e-08),
}
_WIDTH_128 = {
    28: (0.00321144599475, 0.00321144599475),
    29: (0.00261609925293, 0.0021665707635),
    32: (0.00141421356237, 0.000524846160993),
    36: (0.000622772421915, 7.78465527393e-05),
    63: (2.45514079113e-06, 3.06892598891e-07),
}


class RotaryTest(parameterized.TestCase):

  @parameterized.product(
      key_name=('rope_type', 'type'),
      table=((64, 32.0, _WIDTH_64), (128, 8.0, _WIDTH_128)),
  )
  def test_K41_llama3_scaling(self, key_name, table):
    width, factor, expected = table
    scaling = {key_name: 'llama3', 'factor': factor, **_RULE}
    plain = rotary.frequencies(
        cases.config(head_width=width, rope_theta=5e5)
    )
    scaled = rotary.frequencies(
        cases.config(head_width=width, rope_theta=5e5, rope_scaling=scaling)
    )
    for pair, (before, after) in expected.items():
      np.testing.assert_allclose(plain[pair], before, rtol=1e-10)
      np.testing.assert_allclose(scaled[pair], after, rtol=1e-10)

  def test_pairs_are_half_a_head_apart(self):
    # Width 4, theta 1e4: rates 1 and 0.01. At position 2, (1, 0) of the first
    # pair becomes (cos 2, sin 2); (0, 1) of the second (-sin .02, cos .02).
    config = cases.config(head_width=4, rope_theta=1e4)
    cos, sin = rotary.angles(jnp.array([2]), config)
    turned = rotary.rotate(jnp.array([[1.0, 0.0, 0.0, 1.0]]), cos, sin)
    np.testing.assert_allclose(
        turned[0],
        [-0.416146837, -0.019998667, 0.909297427, 0.999800007],
        atol=1e-6,
    )

  def test_neighbours_as_pairs(self):
    # The same rates on the pairs (0, 1) and (2, 3).
    config = cases.config(head_width=4, rope_theta=1e4)
    cos, sin = rotary.angles(jnp.array([2]), config)
    turned = rotary.rotate(
        jnp.array([[1.0, 0.0, 0.0, 1.0]]), cos, sin, interleaved=True
    )
    np.testing.assert_allclose(
        turned[0],
        [-0.416146837, 0.909297427, -0.019998667, 0.999800007],
        atol=1e-6,
    )

  def test_a_part_of_the_head_and_another_axis(self):
    # Two of six dimensions, one pair of rate 1: (3, 4) at position 1 becomes
    # (3 cos 1 - 4 sin 1, 4 cos 1 + 3 sin 1); the others stay.
    config = cases.config(head_width=6, rotary_width=2)
    cos, sin = rotary.angles(jnp.array([1]), config)
    head = jnp.array([3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    expected = [-1.744977022, 4.685622178, 5.0, 6.0, 7.0, 8.0]
    for interleaved in (False, True):
      turned = rotary.rotate(head[None], cos, sin, interleaved=interleaved)
      np.testing.assert_allclose(turned[0], expected, atol=1e-6)
      columns = rotary.rotate(
          head[:, None], cos.T, sin.T, axis=-2, interleaved=interleaved
      )
      np.testing.assert_allclose(columns[:, 0], expected, atol=1e-6)

  def test_linear_scaling_and_a_base_of_the_local_layers(self):
    # Width 4: rates 1 and theta^-1/2.
    config = cases.config(
        head_width=4,
        rope_theta=1e6,
        rope_scaling={'rope_type': 'linear', 'factor': 8.0},
        local_rope_theta=1e4,
        local_layers=(0,),
        window=3,
    )
    np.testing.assert_allclose(
        rotary.frequencies(config), [0.125, 0.000125], rtol=1e-12
    )
    np.testing.assert_allclose(
        rotary.frequencies(config, local=True), [1.0, 0.01], rtol=1e-12
    )


if __name__ == '__main__':
  absltest.main()
