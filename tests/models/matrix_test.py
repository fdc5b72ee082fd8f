"""The matrix product and its gradients."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import matrix


class MatrixTest(parameterized.TestCase):

  @parameterized.parameters((3, 8), (8, 3))
  def test_gradients_of_wide_and_narrow_kernels(self, inputs, outputs):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, inputs))
    kernel = rng.normal(size=(inputs, outputs))
    grad = rng.normal(size=(2, 5, outputs))
    out, pull = jax.vjp(matrix.product, *map(jnp.float32, (x, kernel)))
    x_grad, kernel_grad = pull(jnp.float32(grad))
    np.testing.assert_allclose(out, x @ kernel, atol=1e-5)
    np.testing.assert_allclose(x_grad, grad @ kernel.T, atol=1e-5)
    flat = x.reshape(-1, inputs).T @ grad.reshape(-1, outputs)
    np.testing.assert_allclose(kernel_grad, flat, atol=1e-5)


if __name__ == '__main__':
  absltest.main()
