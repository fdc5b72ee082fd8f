"""The JetStream Engine API on the model, and what XLA makes of it."""

import dataclasses
import re
import sys

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from rl_tpu.sampler import contract
from rl_tpu.sampler import types
from tests.models import cases
from tests.sampler import worlds

# A layer of each kind: keys of 37 positions and of all.
_LOCAL = dataclasses.replace(worlds.MODEL, local_layers=(0,), window=37)
_MIXTURE = cases.config(mixture=cases.mixture())


def _collectives(text: str) -> list[str]:
  names = 'all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter'
  return re.findall(rf'= \S+ ({names})[-a-z]*\(', text)


def _padded(prompt) -> np.ndarray:
  return np.pad(np.asarray(prompt, np.int32), (0, 8 - len(prompt)))


class ApiTest(parameterized.TestCase):

  def test_is_a_jetstream_engine(self):
    engine = worlds.engine(K=4, slots=4)
    real = sys.modules['jetstream.engine.engine_api']
    self.assertIn('jetstream', real.__file__)
    self.assertIsInstance(engine, real.Engine)
    self.assertEqual(contract.ENGINE_CONTRACT, '0.2.2')
    self.assertEqual(engine.max_concurrent_decodes, 4)
    self.assertEqual(engine.samples_per_slot, 1)
    self.assertEqual(engine.max_prefill_length, 32)
    self.assertIs(engine.mesh, worlds.mesh())
    self.assertEqual(engine.get_tokenizer().path, '')

  def test_has_the_names_that_0_3_adds(self):
    engine = worlds.engine(K=4, slots=4)
    for name in (
        'prefill_multisampling',
        'bulk_insert',
        'use_chunked_prefill',
        'prefill_chunk_size',
    ):
      self.assertTrue(hasattr(engine, name), name)

  def test_one_step_at_a_time_equals_the_scheduler(self):
    engine = worlds.engine(K=4, slots=4)
    prompt, settings = [3, 1, 4, 1, 5], types.SamplingParams(8, seed=9)
    want = worlds.drain(
        worlds.sampler(K=4, slots=4),
        [worlds.request('a', prompt, max_tokens=8, seed=9)],
    )['a']
    params = engine.load_params(worlds.PARAMS())
    prefix = engine.prefill(
        params=params, padded_tokens=_padded(prompt), true_length=5
    )
    state = engine.init_decode_state()
    state = engine.insert(prefix, state, 2, sampling_params=settings)
    token, logprob = [], []
    for call in range(2):
      state, result = engine.generate(params, state)
      data = result.convert_to_numpy()
      slot = data.get_result_at_slot(2)
      self.assertTrue(slot.valid.all())
      self.assertEqual(slot.lengths, 4 * call + 4)
      self.assertFalse(data.get_result_at_slot(1).valid.any())
      token += slot.tokens[0].tolist()
      logprob += contract.unpack(data.data, 4).logprob[2].tolist()
    np.testing.assert_array_equal(token, want.token)
    np.testing.assert_allclose(logprob, want.logprob, atol=1e-5)

  def test_one_prefix_in_several_slots(self):
    engine = worlds.engine(K=4, slots=4)
    params = engine.load_params(worlds.PARAMS())
    prefix = engine.prefill_rows(
        params, np.stack([_padded([2, 3]), _padded([4])]), np.array([2, 1])
    )
    each = [types.SamplingParams(4, seed=s) for s in (1, 1, 2)]
    state = engine.bulk_insert(
        prefix,
        engine.init_decode_state(),
        [0, 3, 1],
        rows=[0, 0, 1],
        sampling_params=each,
    )
    _, result = engine.generate(params, state)
    token = contract.unpack(np.asarray(result.data), 4).token
    np.testing.assert_array_equal(token[0], token[3])
    want = worlds.drain(
        worlds.sampler(K=4, slots=4),
        [worlds.request('a', [4], max_tokens=4, seed=2)],
    )['a']
    np.testing.assert_array_equal(token[1], want.token)

  def test_prefill_refuses_what_does_not_fit(self):
    engine = worlds.engine(K=4, slots=4)
    params = engine.load_params(worlds.PARAMS())
    with self.assertRaisesRegex(ValueError, '33 tokens; 1 to 32 fit'):
      engine.prefill(
          params=params, padded_tokens=np.zeros(48, int), true_length=33
      )
    with self.assertRaisesRegex(ValueError, 'existing_prefix'):
      engine.prefill(
          params=params,
          existing_prefix=(),
          padded_tokens=_padded([1]),
          true_length=1,
      )

  @parameterized.parameters(
      (dict(slots=6, on=(4, 1, 1)), 'sampler.slots = 6 .* multiple of 4'),
      (
          dict(model=_MIXTURE, slots=6, on=(1, 1, 1, 3)),
          'mesh.expert = 3 does not divide the 4 experts .* a divisor of 4',
      ),
      (dict(K=0), 'sampler.tokens_per_call must be at least 1, got 0'),
      (dict(rows=0), 'sampler.prefill_rows must be at least 1, got 0'),
      (dict(buckets=(16, 8)), r'prefill_buckets = \(16, 8\) must ascend'),
      (dict(buckets=(64,)), 'at most 48'),
      (dict(max_length=49), 'max_length = 49 must be 2 to the 48'),
  )
  def test_settings_that_do_not_fit(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      worlds.engine(**settings)

  def test_capacity_steps(self):
    model = cases.config(max_length=2048)
    engine = worlds.engine(model, max_length=200)
    sizes = [engine.capacity_for(n) for n in (1, 64, 65, 97, 129, 193, 200)]
    self.assertEqual(sizes, [64, 64, 96, 128, 192, 200, 200])


class CompiledTest(parameterized.TestCase):

  def test_decode_step_moves_nothing_between_devices(self):
    self.assertLen(jax.devices(), 8)
    engine = worlds.engine(_LOCAL, K=4, slots=8, on=(8, 1, 1))
    text = engine.compiled_generate(capacity=48).as_text()
    self.assertIn('num_partitions=8', text)
    self.assertEqual(_collectives(text), [])

  # Two key heads, on two devices and on four.
  @parameterized.parameters(((2, 2, 2), 2), ((1, 2, 4), 4))
  def test_tensor_axis_reduces_but_never_gathers_the_cache(self, on, slots):
    engine = worlds.engine(_LOCAL, K=3, slots=8, on=on)
    text = engine.compiled_generate(capacity=48).as_text()
    self.assertIn('all-reduce', _collectives(text))
    # A shard's cache: its slots, 1 key head, positions of 8 numbers.
    for size in ('48', '37'):
      self.assertIn(f'f32[{slots},1,{size},8]', text)
      for line in text.splitlines():
        if _collectives(line):
          self.assertNotRegex(line, rf'[\[,]{size}[\],]')

  def test_state_is_donated_whole(self):
    engine = worlds.engine(_LOCAL, K=4, slots=8, on=(8, 1, 1))
    text = engine.compiled_generate(capacity=48).as_text()
    # Key and value of 2 layers, and the control rows.
    aliases = re.search(r'input_output_alias=\{(.*?)\}, entry', text).group(1)
    self.assertEqual(aliases.count('-alias'), 5)


if __name__ == '__main__':
  absltest.main()
