"""Low-rank adapters: the product, the trees, the sampler, PEFT's layout."""

import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
from safetensors import numpy as safetensors_numpy

from rl_tpu.models import actor
from rl_tpu.models import decode
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.models import lora
from rl_tpu.models import peft
from tests.models import cases

SETTINGS = lora.Settings(rank=3, alpha=6.0)


def logp(params, config, rows):
  return np.asarray(
      actor.logp_and_entropy(params, config, rows, temperature=1.0)[0]
  )


class LoraTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.base_config = cases.config(qkv_bias=True)
    self.config = cases.config(qkv_bias=True, lora=SETTINGS)
    self.params = cases.params(self.config)
    self.rows = cases.rows([cases.ids(4, 9), cases.ids(3, 21)], length=32)

  def test_a_new_adapter_changes_nothing(self):
    params = decoder.init_params(self.config, jax.random.key(0))
    base, adapters = lora.split(params)
    for leaf in jax.tree.leaves(adapters['layers']['down']['lora']['b']):
      np.testing.assert_array_equal(leaf, 0.0)
    self.assertGreater(np.abs(adapters['layers']['out']['lora']['a']).max(), 0)
    np.testing.assert_array_equal(
        logp(params, self.config, self.rows),
        logp(base, self.base_config, self.rows),
    )

  def test_split_and_join(self):
    tree = {
        'x': {'kernel': 1, 'lora': {'a': 2}}, 'y': {'scale': 3}, 'h': {'k': 4},
    }
    base, ours = lora.split(tree, 'h')
    self.assertEqual(base, {'x': {'kernel': 1}, 'y': {'scale': 3}})
    self.assertEqual(ours, {'x': {'lora': {'a': 2}}, 'h': {'k': 4}})
    self.assertEqual(lora.join(base, ours), tree)
    self.assertEqual(lora.join(None, tree), tree)

  def test_the_merged_model_is_the_adapted_one(self):
    merged = lora.merge(self.params, SETTINGS)
    # Twice the product in a loop over layers, ins and outs.
    layer = jax.tree.map(np.asarray, self.params['layers']['out'])
    a, b = layer['lora']['a'][1], layer['lora']['b'][1]
    wide = np.zeros_like(layer['kernel'][1])
    for h in range(a.shape[0]):
      for k in range(a.shape[1]):
        for d in range(b.shape[1]):
          wide[h, k, d] = sum(a[h, k, r] * b[r, d] for r in range(3))
    np.testing.assert_allclose(
        merged['layers']['out']['kernel'][1], layer['kernel'][1] + 2.0 * wide,
        rtol=1e-5, atol=1e-5,
    )
    base, _ = lora.split(self.params)
    found = logp(self.params, self.config, self.rows)
    np.testing.assert_allclose(
        found, logp(merged, self.base_config, self.rows), rtol=1e-4, atol=1e-4
    )
    apart = np.abs(found - logp(base, self.base_config, self.rows)).max()
    self.assertGreater(apart, 0.1)

  def test_O4_the_sampler_runs_with_the_adapter(self):
    ids = cases.ids(5, 14)
    rows = cases.rows([ids], length=16)
    np.testing.assert_allclose(
        decode.forced_logprobs(self.params, self.config, ids),
        logp(self.params, self.config, rows)[0, 1:14],
        atol=1e-4,
    )

  def test_gradients_are_those_of_the_product(self):
    def loss(params, config):
      out = actor.logp_and_entropy(params, config, self.rows, temperature=1.0)
      return jax.numpy.sum(out[0])

    found = jax.grad(loss)(self.params, self.config)['layers']
    merged = lora.merge(self.params, SETTINGS)
    whole = jax.grad(loss)(merged, self.base_config)['layers']
    for name in lora.TARGETS:
      pair = self.params['layers'][name]['lora']
      grad = np.asarray(whole[name]['kernel'], np.float64)
      flat = lambda x, *shape: np.asarray(x, np.float64).reshape(2, *shape)
      a, b = flat(pair['a'], -1, 3), flat(pair['b'], 3, -1)
      grad = grad.reshape(2, a.shape[1], b.shape[2])
      wanted = {
          'a': 2.0 * grad @ b.transpose(0, 2, 1),
          'b': 2.0 * a.transpose(0, 2, 1) @ grad,
      }
      for key, want in wanted.items():
        np.testing.assert_allclose(
            flat(found[name]['lora'][key], *want.shape[1:]), want,
            rtol=1e-3, atol=1e-3 * np.abs(want).max(), err_msg=f'{name} {key}',
        )

  def test_chosen_targets_alone_have_adapters(self):
    settings = lora.Settings(2, 2.0, ('query', 'down'))
    config = cases.config(lora=settings)
    _, adapters = lora.split(decoder.shapes_of(config))
    self.assertEqual(set(adapters), {'layers'})
    self.assertEqual(set(adapters['layers']), {'query', 'down'})
    self.assertEqual(
        decoder.logical_axes(config)['layers']['query']['lora'],
        {
            'a': ('layer', 'width', 'rank'),
            'b': ('layer', 'rank', 'heads', 'head_width'),
        },
    )


class PeftTest(absltest.TestCase):

  def test_the_folder_adds_up_to_the_merged_model(self):
    config = cases.config(lora=SETTINGS)
    params = cases.params(config)
    base, adapters = lora.split(params)
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      peft.save(folder / 'adapter', config, adapters, base='base')
      said = json.loads((folder / 'adapter' / peft.CONFIG).read_text())
      small = safetensors_numpy.load_file(folder / 'adapter' / peft.TENSORS)
      plain = cases.config()
      huggingface.save(folder / 'base', plain, base)
      huggingface.save(folder / 'merged', plain, lora.merge(params, SETTINGS))
      tensors = {
          kind: safetensors_numpy.load_file(folder / kind / 'model.safetensors')
          for kind in ('base', 'merged')
      }
    self.assertEqual((said['r'], said['lora_alpha']), (3, 6.0))
    self.assertIn('o_proj', said['target_modules'])
    self.assertLen(small, 2 * 2 * 7)
    for tensor, values in tensors['base'].items():
      module = 'base_model.model.' + tensor.removesuffix('.weight')
      if f'{module}.lora_A.weight' in small:
        a, b = (small[f'{module}.lora_{k}.weight'] for k in 'AB')
        values = values + 2.0 * b @ a
      np.testing.assert_allclose(
          values, tensors['merged'][tensor], atol=1e-5, err_msg=tensor
      )


if __name__ == '__main__':
  absltest.main()
