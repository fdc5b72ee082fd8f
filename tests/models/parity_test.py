"""Every family's numbers are those of transformers, without torch."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from safetensors import numpy as safetensors_numpy

from rl_tpu.models import huggingface
from tests.models import parity
from tests.models import parity_models

_LIMIT = 1e-4


class ParityTest(parameterized.TestCase):

  @parameterized.parameters(*parity.KINDS)
  def test_K23_K40_K42_trainer_and_sampler_equal_the_reference(self, kind):
    model = parity.load(kind)
    gaps = parity.trainer_gaps(model)
    gaps['sampler'] = parity.sampler_gap(model)
    gaps['session'] = parity.session_gap(model)
    for check, gap in gaps.items():
      self.assertLess(gap, _LIMIT, check)

  @parameterized.parameters(*parity.KINDS)
  def test_K40_export_gives_the_same_tensors(self, kind):
    source = pathlib.Path(self.create_tempdir().full_path)
    parity_models.write_folder(kind, source)
    config, params = huggingface.load(source)
    folder = source / 'out'
    huggingface.save(folder, config, params)
    self.assertEqual(huggingface.read_config(folder), config)
    read = lambda path: safetensors_numpy.load_file(
        str(path / 'model.safetensors')
    )
    before, after = read(source), read(folder)
    self.assertEqual(set(before), set(after))
    for name, tensor in before.items():
      np.testing.assert_array_equal(after[name], tensor, name)


if __name__ == '__main__':
  absltest.main()
