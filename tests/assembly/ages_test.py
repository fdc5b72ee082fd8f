"""O1, O2: the age of a batch, and its distance to the sampler."""

import dataclasses
import types

import jax
import numpy as np
from absl.testing import absltest

from rl_tpu.assembly import ages
from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.metrics import tags
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.sharding import mesh as mesh_lib
from tests import golden_io
from tests import synthetic
from tests.learner import recorded

MODEL = model_config.DecoderConfig(
    vocab_size=24, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
    head_width=16, mlp_width=24, max_length=64,
)


def config(*assignments: str) -> schema.ExperimentConfig:
  base = schema.ExperimentConfig(
      'test',
      batching=schema.BatchingConfig(row_length=48, rows_per_microbatch=4),
  )
  return overrides.apply(base, assignments)


def build(rollouts, settings, oldest=None) -> batching.Batch:
  return batching.build(
      admission.admit_all(rollouts),
      batching=settings.batching,
      gae=settings.gae,
      critic=settings.critic,
      loss=settings.loss,
      compaction=settings.compaction,
      oldest_version=oldest,
  )


class FiguresTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    # Three actions of version 6 and five of version 9; now is version 9.
    made = [
        golden_io.rollout(
            synthetic.rollout(roles, rollout_id=f'r{k}', version=version)
        )
        for k, (roles, version) in enumerate(
            [(['CAAO', 'CA'], 6), (['CAAAAA'], 9)]
        )
    ]
    self.rollouts = [
        dataclasses.replace(r, t_enqueued=10.0, t_consumed=12.0 + 4.0 * k)
        for k, r in enumerate(made)
    ]

  def test_O1_gaps_and_waits_of_a_batch(self):
    settings = config()
    batch = build(self.rollouts, settings)
    scored = types.SimpleNamespace(base_logp_BT=None)
    found = ages.figures(settings, batch, scored, version=9)
    self.assertEqual(found['policy/version_gap_mean'], 9 / 8)
    self.assertEqual(found['policy/version_gap_max'], 3.0)
    self.assertEqual(found['policy/version_gap_oldest_mean'], 1.5)
    self.assertEqual(found['rollout/queue_wait_mean'], 4.0)
    self.assertEqual(found['rollout/queue_wait_max'], 6.0)
    # Lengths 3 and 5: buckets from 2 and from 4.
    name = 'slice/policy_version_gap_mean_by_length'
    self.assertEqual((found[f'{name}/2'], found[f'{name}/4']), (3.0, 0.0))
    self.assertEqual(tags.unknown(found), [])
    self.assertNotIn('policy/stale_share', found)

  def test_O2_what_a_mask_leaves_out(self):
    settings = config('staleness.over=mask', 'staleness.max_version_gap=1')
    batch = build(self.rollouts, settings, oldest=8)
    scored = types.SimpleNamespace(base_logp_BT=None)
    found = ages.figures(settings, batch, scored, version=9)
    self.assertEqual(found['policy/stale_share'], 3 / 8)
    self.assertAlmostEqual(found['policy/stale_weight'], 3 / 8)
    self.assertEqual(tags.unknown(found), [])

  def test_O1_decoupled_figures_are_of_the_baseline_over_the_sampler(self):
    settings = config('policy.baseline=decoupled')
    batch = build(self.rollouts, settings)
    mu_BT = np.asarray(batch.segments.rows.behaviour_logp_BT)
    mask = np.asarray(batch.segments.joins.policy_mask_BT)
    base_BT = np.where(mask, mu_BT + np.log(1.5), np.nan)
    scored = types.SimpleNamespace(base_logp_BT=base_BT)
    found = ages.figures(settings, batch, scored, version=9)
    self.assertAlmostEqual(
        found['policy/kl_behaviour_k1'], -np.log(1.5), places=6
    )
    self.assertAlmostEqual(
        found['policy/kl_behaviour_k3'], 0.5 - np.log(1.5), places=6
    )
    self.assertAlmostEqual(found['policy/ess_behaviour'], 1.0, places=6)
    name = 'slice/policy_kl_behaviour_k3_by_length/4'
    self.assertAlmostEqual(found[name], 0.5 - np.log(1.5), places=6)
    self.assertEqual(tags.unknown(found), [])


class BehaviourKlTest(absltest.TestCase):

  def test_O2_kl_of_every_rollout_by_a_forward_pass(self):
    settings = config()
    learner = learner_lib.Learner(
        MODEL,
        mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:1]),
        model=schema.ModelConfig(remat='none'),
        temperature=1.0,
        objective=objective.Settings(),
        gae_config=schema.GaeConfig(),
        critic=schema.CriticConfig(),
        actor_optimizer=schema.OptimizerConfig(),
        critic_optimizer=schema.OptimizerConfig(),
    )
    params = decoder.init_params(MODEL, jax.random.key(0))
    rollouts = recorded.rollouts(MODEL.vocab_size, count=6)
    rollouts = [r for r in rollouts if max(map(len, r.segments)) <= 48]
    # The sampler's log-probabilities: the policy's own, less 0.1 k.
    batch = build(rollouts, settings)
    rows = [
        learner.place_rows(
            jax.tree.map(lambda x: np.asarray(x)[a:b], batch.segments.rows)
        )
        for part in batch.minibatches
        for a, b in part
    ]
    logp_BT = np.concatenate(learner.logp(params, rows))
    moved = []
    for k, (rollout, parts) in enumerate(zip(rollouts, batch.unpack(logp_BT))):
      segments = tuple(
          dataclasses.replace(
              s,
              behaviour_logprob=np.where(
                  s.is_action, part - 0.1 * k, 0.0
              ).astype(np.float32),
          )
          for s, part in zip(rollout.segments, parts)
      )
      moved.append(dataclasses.replace(rollout, segments=segments))
    found = ages.behaviour_kl(
        moved, config=settings, learner=learner, params=params
    )
    self.assertEqual(list(found), [r.rollout_id for r in rollouts])
    expected = [np.expm1(0.1 * k) - 0.1 * k for k in range(len(rollouts))]
    np.testing.assert_allclose(
        list(found.values()), expected, rtol=1e-3, atol=1e-9
    )
    self.assertEqual(
        ages.behaviour_kl([], config=settings, learner=learner, params=params),
        {},
    )
    figures = ages.kl_figures({'a': 0.1, 'b': 0.3})
    self.assertAlmostEqual(figures['rollout/kl_behaviour_mean'], 0.2)
    self.assertEqual(figures['rollout/kl_behaviour_max'], 0.3)
    self.assertEqual(tags.unknown(figures), [])
    self.assertEqual(ages.kl_figures({}), {})


if __name__ == '__main__':
  absltest.main()
