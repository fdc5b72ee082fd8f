"""Eight CPU devices and a compilation cache for every test.

Set before anything imports jax; what the caller has set stays.
"""

import os
import pathlib

import hypothesis
import pytest
from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_DEVICES = '--xla_force_host_platform_device_count'

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if _DEVICES not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = (
      f'{os.environ.get("XLA_FLAGS", "")} {_DEVICES}=8'.strip()
  )
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(_ROOT / '.cache/jax'))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.1')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '0')

# absl's test cases read flags (`create_tempdir`), and pytest parses none.
flags.FLAGS.mark_as_parsed()

# The same examples in every run, so that a submission never fails by chance;
# HYPOTHESIS_PROFILE=default draws new ones.
hypothesis.settings.register_profile('fixed', derandomize=True)
hypothesis.settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'fixed'))


@pytest.fixture(scope='module', autouse=True)
def _release_programs():
  """Unmaps a file's programs: all tests' are more than a process may map."""
  yield
  import jax  # After the settings above.

  jax.clear_caches()
