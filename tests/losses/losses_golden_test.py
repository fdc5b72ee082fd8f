"""Losses, gradients and aggregation against losses.json (L1-L4, L6, L8-L11)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.losses import kl
from rl_tpu.losses import objective
from rl_tpu.losses import policy
from rl_tpu.losses import value
from rl_tpu.types import batch as batch_lib
from tests import golden_io

CASES = golden_io.named('losses')


class Columns:
  """A case's tokens as one row, and as dense ids."""

  def __init__(self, golden: dict[str, Any]):
    tokens = golden['tokens']
    column = lambda name: np.asarray([[t[name] for t in tokens]])
    self.mask = column('mask').astype(bool)
    for name in (
        'logp', 'logp_old', 'logp_behavior', 'logp_ref', 'advantage', 'value',
        'value_old', 'return',
    ):
      setattr(self, name, jnp.asarray(column(name), jnp.float32))
    self.rollout = column('rollout')
    pairs = [(t['rollout'], t['segment']) for t in tokens]
    order = {pair: index for index, pair in enumerate(sorted(set(pairs)))}
    self.segment = np.asarray([[order[pair] for pair in pairs]])
    tasks = sorted({t['task'] for t in tokens})
    self.task = np.asarray([[tasks.index(t['task']) for t in tokens]])
    self.pairs = pairs

  def weights(self, mode: str, constant: float, mask=None) -> np.ndarray:
    return aggregation.weights(
        self.mask if mask is None else mask,
        segment=self.segment,
        rollout=self.rollout,
        task=self.task,
        mode=mode,
        constant=constant,
    )

  def minibatch(self, weight: Any, base: str = 'logp_old'):
    """A minibatch with this row; both losses under the same weights."""
    zeros = jnp.zeros(self.mask.shape, jnp.int32)
    rows = batch_lib.Rows(
        zeros, zeros, zeros, jnp.asarray(self.mask), self.logp_behavior
    )
    weight = jnp.asarray(weight, jnp.float32)
    return batch_lib.Minibatch(
        rows=rows,
        advantage_BT=self.advantage,
        return_BT=getattr(self, 'return'),
        value_BT=self.value_old,
        base_logp_BT=getattr(self, base),
        reference_logp_BT=self.logp_ref,
        policy_weight_BT=weight,
        critic_weight_BT=weight,
    )


def clip(golden: dict[str, Any], dual: bool = False) -> schema.ClipConfig:
  config = golden['config']
  return schema.ClipConfig(
      eps_low=config['clip_low'],
      eps_high=config['clip_high'],
      dual=config['dual_clip'] if dual else None,
  )


class PerTokenTest(parameterized.TestCase):

  def check(self, columns, golden, name, got):
    want = np.asarray(golden['expected']['per_token'][name], np.float64)
    mask = columns.mask[0]
    golden_io.assert_close(np.asarray(got)[0][mask], want[mask], name=name)

  @parameterized.named_parameters(*CASES)
  def test_L1_L2_L3_L21_policy(self, golden):
    columns = Columns(golden)
    for dual, name in ((False, 'ppo'), (True, 'dual')):
      terms = policy.clipped_loss(
          columns.logp, columns.logp_old, columns.advantage, columns.mask,
          clip=clip(golden, dual),
      )
      gradient = jax.grad(
          lambda logp: policy.clipped_loss(
              logp, columns.logp_old, columns.advantage, columns.mask,
              clip=clip(golden, dual),
          ).loss_BT.sum()
      )(columns.logp)
      self.check(columns, golden, name, terms.loss_BT)
      self.check(columns, golden, f'{name}_grad', gradient)
      np.testing.assert_array_equal(np.asarray(gradient)[~columns.mask], 0)
    clipped = terms.clip_high_BT | terms.clip_low_BT
    self.check(columns, golden, 'ratio', terms.ratio_BT)
    self.check(columns, golden, 'ppo_clipped', clipped)
    self.check(columns, golden, 'dual_active', terms.dual_BT)
    self.check(columns, golden, 'ratio_saturated', terms.saturated_BT)

  @parameterized.named_parameters(*CASES)
  def test_L4_value(self, golden):
    columns = Columns(golden)
    targets = getattr(columns, 'return')
    loss = lambda values, bound: value.value_loss(
        values, columns.value_old, targets, columns.mask, value_clip=bound
    )
    bound = golden['config']['value_clip']
    gradient = jax.grad(lambda v: loss(v, bound).loss_BT.sum())(columns.value)
    terms = loss(columns.value, bound)
    self.check(columns, golden, 'value', terms.loss_BT)
    self.check(columns, golden, 'value_grad', gradient)
    self.check(columns, golden, 'value_clipped', terms.clipped_BT)
    unclipped = loss(columns.value, None)
    self.check(columns, golden, 'value_unclipped', unclipped.loss_BT)

  @parameterized.named_parameters(*CASES)
  def test_L6_kl(self, golden):
    columns = Columns(golden)
    for name in kl.ESTIMATORS:
      for importance in (False, True):
        term = lambda logp: kl.kl_loss(
            logp, columns.logp_ref, columns.logp_behavior, columns.mask,
            estimator=name, importance=importance,
        )
        full = f'{name}_importance' if importance else name
        gradient = jax.grad(lambda logp: term(logp).sum())(columns.logp)
        self.check(columns, golden, full, term(columns.logp))
        self.check(columns, golden, f'{full}_grad', gradient)

  @parameterized.named_parameters(*CASES)
  def test_G8_kl_reward(self, golden):
    columns = Columns(golden)
    penalty = kl.reward_penalty(
        columns.logp_old, columns.logp_ref, coef=golden['config']['kl_coef']
    )
    self.check(columns, golden, 'kl_reward', -penalty)


class AggregateTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L8_weights_of_every_mode(self, golden):
    columns = Columns(golden)
    for mode, expected in golden['expected']['aggregate'].items():
      got = columns.weights(mode, golden['config']['loss_constant'])
      golden_io.assert_close(got[0], expected['weights'], name=mode)
    self.assertCountEqual(golden['expected']['aggregate'], aggregation.MODES)

  @parameterized.named_parameters(*CASES)
  def test_L8_totals_and_gradients(self, golden):
    columns = Columns(golden)
    constant = golden['config']['loss_constant']
    for mode, expected in golden['expected']['aggregate'].items():
      minibatch = columns.minibatch(columns.weights(mode, constant))
      actor = lambda logp, **kl_settings: objective.actor_terms(
          logp, jnp.zeros_like(logp), minibatch, clip=clip(golden),
          kl=schema.KlConfig(**kl_settings), entropy_coef=0.0,
      )[0]
      gradient = jax.grad(actor)(columns.logp)
      golden_io.assert_close(actor(columns.logp), expected['ppo'], name=mode)
      golden_io.assert_close(gradient[0], expected['ppo_grad_logp'], name=mode)
      critic, _ = objective.critic_terms(
          columns.value, minibatch, value_clip=golden['config']['value_clip']
      )
      golden_io.assert_close(critic, expected['value'], name=mode)
      dual, _ = objective.actor_terms(
          columns.logp, jnp.zeros_like(columns.logp), minibatch,
          clip=clip(golden, True), kl=schema.KlConfig(), entropy_coef=0.0,
      )
      golden_io.assert_close(dual, expected['dual'], name=mode)
      self.check_kl(actor, columns, expected, mode)

  def check_kl(self, actor, columns, expected, mode):
    # KL enters the total with its coefficient, on top of the policy term.
    for name, importance in (
        ('k1', False), ('k2', False), ('k3', False), ('k2', True),
    ):
      total = actor(
          columns.logp, in_='loss', estimator=name, coef=0.5,
          importance=importance,
      )
      full = f'{name}_importance' if importance else name
      golden_io.assert_close(
          total, expected['ppo'] + 0.5 * expected[full], name=f'{mode} {full}'
      )

  @parameterized.named_parameters(*CASES)
  def test_L8_L9_microbatches_add_up(self, golden):
    """Partial sums of 1, 2, 4 and 16 microbatches, empty ones included."""
    columns = Columns(golden)
    constant = golden['config']['loss_constant']
    for mode, expected in golden['expected']['aggregate'].items():
      weight = columns.weights(mode, constant)
      for parts, sums in expected['microbatch'].items():
        got = []
        for part in golden['partitions'][parts]:
          inside = {tuple(pair) for pair in part}
          here = np.asarray([[pair in inside for pair in columns.pairs]])
          minibatch = columns.minibatch(np.where(here, weight, 0.0))
          loss, _ = objective.actor_terms(
              columns.logp, jnp.zeros_like(columns.logp), minibatch,
              clip=clip(golden), kl=schema.KlConfig(), entropy_coef=0.0,
          )
          got.append(float(loss))
          if not part:
            self.assertEqual(got[-1], 0.0)
        golden_io.assert_close(got, sums, name=f'{mode} {parts}')
        golden_io.assert_close(sum(got), expected['ppo'], name=mode)

  @parameterized.named_parameters(*CASES)
  def test_metrics(self, golden):
    columns = Columns(golden)
    minibatch = columns.minibatch(columns.weights('token', 1.0))
    _, stats = objective.actor_terms(
        columns.logp, jnp.zeros_like(columns.logp), minibatch,
        clip=clip(golden), kl=schema.KlConfig(), entropy_coef=0.0,
    )
    _, critic = objective.critic_terms(
        columns.value, minibatch, value_clip=golden['config']['value_clip']
    )
    actor = objective.stat_values(stats)
    expected = golden['expected']['metrics']
    golden_io.assert_close(
        [
            actor['ratio_saturated_count'],
            actor['clip_fraction'],
            actor['approx_kl_k1'],
            objective.stat_values(critic)['clip_fraction'],
        ],
        [
            expected['ratio_saturated'],
            expected['clip_fraction'],
            expected['approx_kl_old_k1'],
            expected['value_clip_fraction'],
        ],
    )

  @parameterized.named_parameters(*CASES)
  def test_L10_the_clip_stays_in_the_denominator(self, golden):
    """Clipping more tokens changes no weight: weights know only the mask."""
    columns = Columns(golden)
    minibatch = columns.minibatch(columns.weights('token', 1.0))
    narrow = schema.ClipConfig(eps_low=1e-4, eps_high=1e-4)
    for settings in (clip(golden), narrow):
      _, stats = objective.actor_terms(
          columns.logp, jnp.zeros_like(columns.logp), minibatch,
          clip=settings, kl=schema.KlConfig(), entropy_coef=0.0,
      )
      golden_io.assert_close(stats['loss'].count, 1.0)


class SeedTest(absltest.TestCase):

  def case(self, name):
    return next(
        c for c in golden_io.cases('seed_worked') if c['id'] == name
    )

  def test_L1_ratio_is_per_token(self):
    case = self.case('ratios')
    mask = np.ones((1, 3), bool)
    terms = policy.clipped_loss(
        jnp.log(jnp.asarray([case['input']['new_prob']])),
        jnp.log(jnp.asarray([case['input']['old_prob']])),
        jnp.ones((1, 3)),
        mask,
        clip=schema.ClipConfig(),
    )
    golden_io.assert_close(
        terms.ratio_BT[0], case['expected']['token_ratio']
    )

  def test_L8_task_mean_2_and_token_2_5(self):
    case = self.case('aggregation-2-vs-2.5')
    sizes = case['input']['task_tokens']
    loss = np.repeat(case['input']['task_loss'], sizes)
    task = np.repeat([0, 1], sizes)
    for mode, expected in case['expected'].items():
      weight = aggregation.weights(
          np.ones(len(loss), bool), segment=task, rollout=task, task=task,
          mode=mode, constant=case['input']['loss_constant'],
      )
      golden_io.assert_close(np.sum(weight * loss), expected, name=mode)


if __name__ == '__main__':
  absltest.main()
