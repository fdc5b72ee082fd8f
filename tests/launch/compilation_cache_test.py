"""JAX writes its compilation cache where the launchers tell it to, on gs://."""

from absl.testing import absltest

from launch import job
from tests.launch import tools

# A process of its own: JAX opens its cache once.
_COMPILE = """
from etils.epath import backend
from tests import bucket
held = bucket.Bucket()
backend.fsspec_backend.__class__._get_filesystem = lambda self, name: held
import jax
jax.jit(lambda x: x + 1)(0)
print(*held.contents(), sep='\\n')
"""


class CompilationCacheTest(absltest.TestCase):

  def test_it_is_in_the_work_directory(self):
    env = job.host_environment('gs://bucket/runs/first')
    env |= {
        'JAX_PLATFORMS': 'cpu',
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }
    done = tools.python('-c', _COMPILE, env=env)
    self.assertEqual(done.returncode, 0, done.stderr)
    written = done.stdout.split()
    self.assertNotEmpty(written)
    for name in written:
      self.assertStartsWith(name, 'gs://bucket/runs/first/compilation_cache/')


if __name__ == '__main__':
  absltest.main()
