"""losses.json through the learner on eight devices (L2 to L15, L20, G23).

Each golden case is a model with exactly its log-probabilities and values
(`golden_model`), so that everything from the rows to the summed gradient is
what training uses.
"""

import functools

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.sharding import mesh as mesh_lib
from tests import golden_io
from tests.learner import golden_model

WORLDS = golden_model.load()
SIZES = ('1', '2', '4', '16')
# Bounds are constants of a program, and each takes seconds to build for eight
# devices: an objective is run on the cases that share one pair of bounds. All
# cases go through the public functions (tests/losses).
BOUNDS = WORLDS[0][1].golden['config']


def sharing(*names):
  """The cases that have these settings of the first one."""
  return [
      (name, world) for name, world in WORLDS
      if all(world.golden['config'][n] == BOUNDS[n] for n in names)
  ]


CLIP = (BOUNDS['clip_low'], BOUNDS['clip_high'], None)
COMMON = sharing('clip_low', 'clip_high', 'is_low', 'is_high')


@functools.cache
def learner(
    loss='ppo_clip', correction='none', clip=CLIP,
    kl=('none', '', 0.0), mode='token', renormalise=False,
) -> learner_lib.Learner:
  return learner_lib.Learner(
      golden_model.CONFIG,
      mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()),
      model=schema.ModelConfig(remat='none', logits_chunk=256),
      temperature=1.0,
      objective=objective.Settings(
          policy=schema.PolicyConfig(
              loss=loss,
              correction=correction,
              is_low=BOUNDS['is_low'],
              is_high=BOUNDS['is_high'],
          ),
          clip=schema.ClipConfig(*clip),
          dis=schema.DisConfig(BOUNDS['dis_low'], BOUNDS['dis_high']),
          gspo=schema.GspoConfig(BOUNDS['gspo_low'], BOUNDS['gspo_high']),
          kl=schema.KlConfig(*kl),
          loss=schema.LossConfig(
              aggregation=mode, renormalise_gated=renormalise
          ),
      ),
      gae_config=schema.GaeConfig(),
      critic=schema.CriticConfig(value_clip=BOUNDS['value_clip']),
      actor_optimizer=schema.OptimizerConfig(),
      critic_optimizer=schema.OptimizerConfig(),
  )


def placed(made: learner_lib.Learner, parts):
  """Microbatches on the mesh."""
  out = []
  for part in parts:
    origin = made.place_tables(part.origin)
    part = made.place_rows(part._replace(origin=None))
    out.append(part._replace(origin=origin))
  return out


def weights(world, mode):
  return np.asarray(world.golden['expected']['aggregate'][mode]['weights'])


class ActorTest(parameterized.TestCase):

  def check(self, made, world, mode, sizes, expected, slope):
    """Total and gradient of a minibatch cut in several ways."""
    params = jax.device_put(
        world.params(), made.param_shardings(world.params())
    )
    for size in sizes:
      parts = placed(made, world.minibatch(size, weights(world, mode)))
      gradient, stats, _, loss = made.actor_sums(params, parts)
      golden_io.assert_close(loss, expected, name=f'{mode} {size}')
      found = world.by_logp(jax.device_get(gradient))[world.mask]
      want = (np.asarray(slope) * world.rest())[world.mask]
      golden_io.assert_close(found, want, name=f'{mode} {size}')
    return stats

  def per_token(self, world, name, mode):
    column = np.asarray(world.golden['expected']['per_token'][name])
    return column * weights(world, mode)

  @parameterized.named_parameters(*COMMON)
  def test_L2_L8_G23_ppo_over_all_partitions(self, world):
    made = learner()
    for mode, sizes in (
        ('token', SIZES), ('task_rollout_mean', '4'), ('segment_mean', '2')
    ):
      expected = world.golden['expected']['aggregate'][mode]
      self.check(
          made, world, mode, sizes, expected['ppo'], expected['ppo_grad_logp']
      )

  @parameterized.named_parameters(*COMMON)
  def test_L8_L9_partial_sums(self, world):
    made = learner()
    mode = 'rollout_mean'
    expected = world.golden['expected']['aggregate'][mode]['microbatch']
    for size in ('2', '16'):
      parts = placed(made, world.minibatch(size, weights(world, mode)))
      found = [
          float(made.actor_sums(world.params(), [part])[3]) for part in parts
      ]
      golden_io.assert_close(found, expected[size], name=size)
      empty = [not part for part in world.golden['partitions'][size]]
      np.testing.assert_array_equal(np.asarray(found)[empty], 0.0)

  @parameterized.named_parameters(*COMMON)
  def test_L6_L13_tis_with_kl_in_the_loss(self, world):
    made = learner(correction='tis', kl=('loss', 'k3', 0.5))
    expected = world.golden['expected']['aggregate']['token']
    total = expected['ppo_tis'] + 0.5 * expected['k3']
    slope = self.per_token(world, 'ppo_tis_grad', 'token')
    slope = slope + 0.5 * self.per_token(world, 'k3_grad', 'token')
    self.check(made, world, 'token', ('4',), total, slope)

  @parameterized.named_parameters(
      *sharing('clip_low', 'clip_high', 'dual_clip')
  )
  def test_L3_L6_dual_clip_with_k2_in_the_loss(self, world):
    made = learner(clip=(*CLIP[:2], BOUNDS['dual_clip']), kl=('loss', 'k2', 0.5))
    mode = 'task_mean'
    expected = world.golden['expected']['aggregate'][mode]
    total = expected['dual'] + 0.5 * expected['k2']
    slope = self.per_token(world, 'dual_grad', mode)
    slope = slope + 0.5 * self.per_token(world, 'k2_grad', mode)
    self.check(made, world, mode, ('4',), total, slope)

  @parameterized.named_parameters(*COMMON)
  def test_L13_icepop(self, world):
    self.check_gate(world, 'icepop', 'icepop_weight')

  @parameterized.named_parameters(*COMMON)
  def test_L13_mis(self, world):
    # Inside the range its weight is 1.
    self.check_gate(world, 'mis', 'mis_keep')

  def check_gate(self, world, kind, weight):
    made = learner(correction=kind)
    expected = world.golden['expected']
    weight = np.asarray(expected['per_token'][weight])
    for mode, size in (('token', '4'), ('rollout_mean', '2')):
      total = expected['aggregate'][mode][f'ppo_{kind}']
      slope = self.per_token(world, 'ppo_grad', mode) * weight
      stats = self.check(made, world, mode, size, total, slope)
    gated = np.asarray(expected['per_token'][f'{kind}_keep'])[world.mask] == 0
    golden_io.assert_close(stats['gated_fraction'].mean, gated.mean())

  @parameterized.named_parameters(
      *sharing('dis_low', 'dis_high')
  )
  def test_L14_dis(self, world):
    made = learner(loss='dis')
    for mode, sizes in (('token', SIZES), ('task_mean', ('4',))):
      total = world.golden['expected']['aggregate'][mode]['dis']
      slope = self.per_token(world, 'dis_grad', mode)
      self.check(made, world, mode, sizes, total, slope)

  @parameterized.named_parameters(*COMMON)
  def test_L10_L13_L20_seq_mis(self, world):
    made = learner(correction='seq_mis')
    expected = world.golden['expected']
    total = expected['aggregate']['task_mean']['ppo_seq_mis']
    keep = np.asarray(expected['per_token']['seq_mis_keep'])
    slope = self.per_token(world, 'ppo_grad', 'task_mean') * keep
    stats = self.check(made, world, 'task_mean', ('4',), total, slope)
    gated = keep[world.mask] == 0
    golden_io.assert_close(stats['gated_fraction'].mean, gated.mean())

  @parameterized.named_parameters(
      *sharing('dis_low', 'dis_high')
  )
  def test_L10_L14_dis_renormalised(self, world):
    made = learner(loss='dis', mode='rollout_mean', renormalise=True)
    expected = world.golden['expected']
    found = expected['aggregate']['rollout_mean']['renormalised']['dis']
    slope = np.asarray(found['weights']) * np.asarray(
        expected['per_token']['dis_grad']
    )
    stats = self.check(
        made, world, 'rollout_mean', ('4',), found['total'], slope
    )
    keep = np.asarray(expected['per_token']['dis_keep'])
    share = (keep * weights(world, 'rollout_mean')).sum()
    golden_io.assert_close(stats['effective_share'].mean, share)

  @parameterized.named_parameters(*sharing('gspo_low', 'gspo_high'))
  def test_L15_L20_gspo_over_all_partitions(self, world):
    made = learner(loss='gspo')
    for mode, sizes in (('rollout_mean', SIZES), ('task_rollout_mean', '4')):
      expected = world.golden['expected']['aggregate'][mode]
      stats = self.check(
          made, world, mode, sizes, expected['gspo'],
          expected['gspo_grad_logp'],
      )
    golden_io.assert_close(
        stats['clip_fraction'].mean,
        world.golden['expected']['metrics']['gspo_clip_fraction'],
    )


class CriticTest(parameterized.TestCase):

  @parameterized.named_parameters(*sharing('value_clip'))
  def test_L4_G23_value_loss_over_all_partitions(self, world):
    made = learner()
    state = made.init_state(world.params(), with_critic=True)
    params = state.critic.params
    params['value_head']['kernel'] = jax.device_put(
        world.value_kernel(), params['value_head']['kernel'].sharding
    )
    expected = world.golden['expected']
    for mode, size in zip(('token', 'rollout_mean', 'constant'), SIZES):
      parts = placed(made, world.minibatch(size, weights(world, mode)))
      gradient, _, _, loss = made.critic_sums(params, parts)
      golden_io.assert_close(loss, expected['aggregate'][mode]['value'])
      found = world.by_value(jax.device_get(gradient))[world.mask]
      want = np.asarray(expected['per_token']['value_grad'])
      want = (want * weights(world, mode))[world.mask]
      golden_io.assert_close(found, want, name=mode)


if __name__ == '__main__':
  absltest.main()
