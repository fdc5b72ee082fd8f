"""Decoding with experts that are divided over the mesh."""

import re

from absl.testing import absltest
import jax
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import decoder
from rl_tpu.models import execution as execution_lib
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.sharding import rules
from tests.models import cases
from tests.sampler import worlds

MODEL = cases.config(
    max_length=48, mixture=cases.mixture(num_experts=8, leading_dense=0)
)
# Axes data, fsdp, tensor and expert.
ON = (1, 1, 2, 4)


def _placed(params: decoder.Params) -> decoder.Params:
  """As the trainer holds them."""
  axes, mesh = decoder.logical_axes(MODEL), worlds.mesh(*ON)
  return jax.device_put(params, rules.param_shardings(axes, mesh, params))


def _trainer(params: decoder.Params, sequences) -> np.ndarray:
  """Log-probs by the training pass, on the mesh of the sampler."""
  mesh = worlds.mesh(*ON)
  rows = cases.rows(*([ids] for ids in sequences), length=48)
  score = lambda params, rows: actor.logp_and_entropy(
      params,
      MODEL,
      rows,
      temperature=1.0,
      execution=execution_lib.Execution(mesh=mesh),
  )[0]
  rows = jax.device_put(rows, rules.rows_sharding(mesh))
  return np.asarray(jax.jit(score)(params, rows))


class ExpertsTest(absltest.TestCase):

  def test_O4_logprobs_equal_the_trainers_over_two_turns(self):
    # Two prompts of a shard at most, one at a time, and two shards with none:
    # every shard takes part in what the others read.
    params = _placed(cases.params(MODEL))
    made = worlds.sampler(params, model=MODEL, slots=8, on=ON)
    prompts = {f'r{n}': cases.ids(n, 4 + n) for n in range(4)}
    done = {}
    for turn in range(2):
      done = worlds.drain(
          made,
          [worlds.request(n, ids, seed=turn) for n, ids in prompts.items()],
      )
      whole = [
          one.prompt.tolist() + one.token.tolist() for one in done.values()
      ]
      logp_BT = _trainer(params, whole)
      for row, one in zip(logp_BT, done.values()):
        start = len(one.prompt)
        np.testing.assert_allclose(
            one.logprob, row[start : start + len(one.token)], atol=1e-5
        )
      prompts = {n: [*ids, 1, 2, 3] for n, ids in zip(done, whole)}
    self.assertGreater(made.stats()['reused_tokens'], 0)

  def test_prefill_one_step_at_a_time(self):
    engine = worlds.engine(MODEL, slots=8, on=ON)
    alone = worlds.engine(MODEL, slots=8)
    token = np.array([cases.ids(1, 8), cases.ids(2, 8)])
    found, expected = (
        one.prefill_rows(
            one.load_params(cases.params(MODEL)), token, np.array([8, 5])
        )
        for one in (engine, alone)
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5),
        found,
        expected,
    )

  def test_every_shard_holds_its_experts_and_gathers_none(self):
    engine = worlds.engine(MODEL, slots=8, on=ON)
    shapes = weights_lib.weight_shapes(MODEL, worlds.mesh(*ON), 'float32')
    gate = shapes.layers[0].experts.gate
    place = engine.weight_shardings.layers[0].experts.gate
    self.assertEqual(gate.shape, (8, 32, 16))
    self.assertEqual(place.shard_shape(gate.shape), (2, 32, 8))
    text = engine.compiled_generate(capacity=48).as_text()
    self.assertIn('f32[2,32,8]', text)
    gathered = re.findall(r'= \w+\[([\d,]*)\]\S* all-gather', text)
    # The tokens, and the choice of their experts.
    self.assertContainsSubset({'8,32', '8,2'}, set(gathered))
    self.assertEmpty([shape for shape in gathered if shape.count(',') > 1])


if __name__ == '__main__':
  absltest.main()
