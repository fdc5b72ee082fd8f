"""Matrix product with a backward pass that suits the CPU's kernels."""

import jax


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


def product(x: jax.Array, kernel_DF: jax.Array) -> jax.Array:
  """x @ kernel for x [..., D].

  The kernel's gradient is one product over all leading axes at once (with
  several contracted axes the compiler would transpose the wide operand), and
  turns the narrower of its two operands.
  """
  flat = x.reshape(-1, x.shape[-1])
  return _product(flat, kernel_DF).reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product(x_ND, kernel_DF):
  return x_ND @ kernel_DF


def _forward(x_ND, kernel_DF):
  return x_ND @ kernel_DF, (x_ND, kernel_DF)


def _backward(saved, grad_NF):
  x_ND, kernel_DF = saved
  if x_ND.shape[1] <= grad_NF.shape[1]:
    kernel_grad = turned(x_ND) @ grad_NF
  else:
    kernel_grad = (turned(grad_NF) @ x_ND).T
  return grad_NF @ kernel_DF.T, kernel_grad


_product.defvjp(_forward, _backward)
