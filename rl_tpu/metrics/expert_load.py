"""How evenly a router loads its experts."""

import numpy as np


def figures(load_LE: np.ndarray) -> dict[str, float]:
  """Tags of the load.

  Args:
    load_LE: tokens that took each expert, by layer.

  Returns:
    Shares of the busiest and the idlest expert of any layer, and the
    coefficient of variation over experts; nothing where no token was read.
  """
  load_LE = np.asarray(load_LE, np.float64)
  total_L = load_LE.sum(axis=1)
  if not total_L.all():
    return {}
  share_LE = load_LE / total_L[:, None]
  variation_L = share_LE.std(axis=1) * share_LE.shape[1]
  return {
      'policy/expert_busiest': float(share_LE.max()),
      'policy/expert_idlest': float(share_LE.min()),
      'policy/expert_variation': float(variation_L.mean()),
      'policy/expert_variation_max': float(variation_L.max()),
  }
