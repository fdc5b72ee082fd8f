"""The import site of jetstream and the columns of its result."""

import os
import pathlib
import subprocess
import sys

from absl.testing import absltest
import jax.numpy as jnp
import numpy as np

from rl_tpu.sampler import contract

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _python(program: str, *paths: str) -> subprocess.CompletedProcess[str]:
  path = os.pathsep.join([*paths, str(_ROOT)])
  return subprocess.run(
      [sys.executable, '-c', program],
      env={**os.environ, 'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'},
      capture_output=True,
      text=True,
      check=False,
  )


class ImportTest(absltest.TestCase):

  def test_import_leaves_no_stand_in_and_no_handlers(self):
    done = _python("""
import logging, sys
root = logging.getLogger()
before = root.level, list(root.handlers)
from rl_tpu.sampler import contract
assert (root.level, list(root.handlers)) == before
for name in ('seqio', 'seqio.vocabularies', 'tensorflow', 'grpc',
             'jetstream.core.orchestrator'):
  assert name not in sys.modules, name
from jetstream.engine import engine_api
assert contract.Engine is engine_api.Engine
assert contract.ResultTokens is engine_api.ResultTokens
""")
    self.assertEqual(done.returncode, 0, done.stderr)

  def test_a_seqio_that_exists_is_used(self):
    folder = self.create_tempdir()
    folder.create_file('seqio/__init__.py')
    folder.create_file(
        'seqio/vocabularies.py',
        'class Vocabulary: pass\nclass SentencePieceVocabulary: pass\n',
    )
    done = _python(
        'import sys\nfrom rl_tpu.sampler import contract\n'
        'assert sys.modules["seqio.vocabularies"].__file__',
        folder.full_path,
    )
    self.assertEqual(done.returncode, 0, done.stderr)

  def test_absent_jetstream_names_the_command(self):
    done = _python(
        'import sys\nsys.modules["jetstream"] = None\n'
        'from rl_tpu.sampler import contract'
    )
    self.assertNotEqual(done.returncode, 0)
    self.assertIn(
        'pip install --no-deps google-jetstream==0.2.2',
        done.stderr.splitlines()[-1],
    )


class ColumnsTest(absltest.TestCase):

  def test_columns_survive_the_api(self):
    columns = contract.Columns(
        token=jnp.array([[3, 4, 5], [6, 7, 8]]),
        valid=jnp.array([[True, True, False], [False] * 3]),
        length=jnp.array([12, 0]),
        logprob=jnp.array([[-0.25, -1e-9, -jnp.inf], [0.0, -7.5, -80.0]]),
        finish=jnp.array([1, 0]),
        support_count=jnp.array([[2, 0, -1], [1, 0, 0]]),
        support=jnp.arange(12).reshape(2, 3, 2) - 1,
    )
    result = contract.result_tokens(contract.pack(columns), 3)
    result = result.convert_to_numpy()
    self.assertEqual(result.data.dtype, np.int32)
    slot = result.get_result_at_slot(0)
    np.testing.assert_array_equal(slot.tokens, [[3, 4, 5]])
    np.testing.assert_array_equal(slot.valid, [[1, 1, 0]])
    np.testing.assert_array_equal(slot.lengths, [12])
    for got, want in zip(contract.unpack(result.data, 3), columns):
      np.testing.assert_array_equal(got, want)


  def test_R5_without_supports_nothing_is_sent(self):
    columns = contract.Columns(
        token=jnp.array([[3, 4]]),
        valid=jnp.array([[True, True]]),
        length=jnp.array([2]),
        logprob=jnp.array([[-0.25, -1.0]]),
        finish=jnp.array([0]),
        support_count=jnp.zeros((1, 2), jnp.int32),
        support=jnp.zeros((1, 2, 0), jnp.int32),
    )
    data = np.asarray(contract.pack(columns))
    self.assertEqual(data.shape, (1, 8))
    back = contract.unpack(data, 2)
    self.assertEqual(back.support.shape, (1, 2, 0))
    np.testing.assert_array_equal(back.support_count, [[0, 0]])


if __name__ == '__main__':
  absltest.main()
