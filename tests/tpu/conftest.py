"""The TPU compiler on a machine without a TPU.

Set before anything imports jax; what the caller has set stays.
"""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
