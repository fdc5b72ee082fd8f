"""Matrix product with a backward pass that suits the CPU's kernels."""

import functools

import jax
import jax.numpy as jnp


def turned(x: jax.Array) -> jax.Array:
  """x with its last two axes swapped, in memory too on a CPU.

  The fast CPU kernels take the left operand row by row only; without the
  barrier the compiler folds the swap into the product and leaves them.
  """
  return jax.lax.platform_dependent(
      x,
      cpu=lambda x: jax.lax.optimization_barrier(x.mT),
      default=lambda x: x.mT,
  )


def product(
    x: jax.Array, kernel_DF: jax.Array, *, dtype: str | None = None
) -> jax.Array:
  """x @ kernel for x [..., D], added up and returned in `dtype`.

  The kernel's gradient is one product over all leading axes at once (with
  several contracted axes the compiler would transpose the wide operand), and
  turns the narrower of its two operands.
  """
  flat = x.reshape(-1, x.shape[-1])
  out = _product(flat, kernel_DF, dtype or x.dtype.name)
  return out.reshape(*x.shape[:-1], kernel_DF.shape[1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x_TD, kernel_DF, dtype):
  return jnp.matmul(x_TD, kernel_DF, preferred_element_type=dtype)


def _forward(x_TD, kernel_DF, dtype):
  return _product(x_TD, kernel_DF, dtype), (x_TD, kernel_DF)


def _backward(dtype, saved, grad_TF):
  x_TD, kernel_DF = saved
  grad_TF = grad_TF.astype(x_TD.dtype)
  if x_TD.shape[1] <= grad_TF.shape[1]:
    kernel_grad = turned(x_TD) @ grad_TF
  else:
    kernel_grad = (turned(grad_TF) @ x_TD).T
  return grad_TF @ kernel_DF.T, kernel_grad


_product.defvjp(_forward, _backward)
