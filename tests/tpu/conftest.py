"""The TPU compiler on a machine without a TPU.

Set before anything imports jax; what the caller has set stays.
"""

import os

for _name, _value in {
    'JAX_PLATFORMS': 'cpu',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    # What is compiled for a chip cannot be read back without one.
    'JAX_ENABLE_COMPILATION_CACHE': 'false',
}.items():
  os.environ.setdefault(_name, _value)
