"""G23, L5 to L10, L21, O1, K11, K16, K18: what a microbatch adds up to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.losses import kl as kl_lib
from rl_tpu.losses import objective
from rl_tpu.losses import statistics
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import token_types
from tests import golden_io
from tests.losses import cases

CASES = cases.load()


@functools.partial(jax.jit, static_argnames=('kl', 'entropy_coef'))
def _actor(logp_BT, entropy_BT, minibatch, bounds, *, kl, entropy_coef):
  settings = objective.Settings(
      clip=schema.ClipConfig(*bounds),
      kl=schema.KlConfig(*kl),
      loss=schema.LossConfig(entropy_coef=entropy_coef),
  )

  def loss(logp_BT, entropy_BT):
    return objective.actor_terms(
        logp_BT, entropy_BT, minibatch, settings=settings
    )

  (total, stats), gradients = jax.value_and_grad(
      loss, (0, 1), has_aux=True
  )(logp_BT, entropy_BT)
  return total, stats, gradients


def actor(
    logp_BT, entropy_BT, minibatch, bounds, *,
    kl=schema.KlConfig(), entropy_coef=0.0,
):
  """Loss, statistics and gradients by logp and entropy."""
  return _actor(
      logp_BT, entropy_BT, minibatch, bounds,
      kl=(kl.in_, kl.estimator, kl.coef, kl.importance),
      entropy_coef=entropy_coef,
  )


@jax.jit
def critic(value_BT, minibatch, value_clip):
  """Loss, statistics and gradient by value."""
  def loss(value_BT):
    return objective.critic_terms(
        value_BT, minibatch, critic=schema.CriticConfig(value_clip=value_clip)
    )

  (total, stats), gradient_BT = jax.value_and_grad(loss, has_aux=True)(value_BT)
  return total, stats, gradient_BT


@functools.partial(jax.jit, static_argnames='name')
def corrected(logp_BT, minibatch, bounds, *, name):
  """Loss, effective share and gradient of one of the file's totals."""
  kind = name.removeprefix('ppo_')
  is_dis = name == 'dis'
  settings = objective.Settings(
      policy=schema.PolicyConfig(
          'dis' if is_dis else 'ppo_clip', 'decoupled',
          'none' if is_dis else kind, *bounds['window'],
      ),
      clip=schema.ClipConfig(*bounds['clip']),
      dis=schema.DisConfig(*bounds['dis']),
  )

  def loss(logp_BT):
    zero_BT = jnp.zeros_like(logp_BT)
    return objective.actor_terms(logp_BT, zero_BT, minibatch, settings=settings)

  (total, stats), gradient_BT = jax.value_and_grad(loss, has_aux=True)(logp_BT)
  return total, stats['effective_share'], gradient_BT


def weights_of(case, mode):
  return aggregation.weights(
      case.mask_BT,
      segment=case.segment_BT,
      rollout=case.rollout_BT,
      task=case.task_BT,
      mode=mode,
      constant=case.config['loss_constant'],
  )


def bounds_of(case):
  return case.config['clip_low'], case.config['clip_high']


def minibatch_of(weight, advantage, **changes) -> batch_lib.Minibatch:
  """Base, reference, behaviour, values and targets are 0 unless given."""
  weight = np.asarray(weight, np.float32)
  zero = np.zeros(weight.shape, np.float32)
  whole = zero.astype(np.int32)
  behaviour = changes.pop('behaviour_logp_BT', zero)
  fields = {
      'rows': batch_lib.Rows(whole, whole, whole, weight > 0, behaviour),
      'advantage_BT': np.asarray(advantage, np.float32),
      'return_BT': zero,
      'value_BT': zero,
      'base_logp_BT': zero,
      'reference_logp_BT': zero,
      'policy_weight_BT': weight,
      'critic_weight_BT': weight,
  }
  return batch_lib.Minibatch(**(fields | changes))


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L8_L9_partial_sums_of_microbatches(self, case):
    for mode in aggregation.MODES:
      weight_BT = weights_of(case, mode)
      expected = case.expected['aggregate'][mode]
      for size, parts in case.partitions.items():
        sums, gradient_BT = [], np.zeros_like(weight_BT)
        for part_BT in parts:
          # Everything outside the microbatch is poison.
          total, _, (slope_BT, _) = actor(
              np.where(part_BT, case['logp'], np.nan),
              np.full(part_BT.shape, np.nan, np.float32),
              case.minibatch(np.where(part_BT, weight_BT, np.float32(0))),
              bounds_of(case),
          )
          sums.append(float(total))
          gradient_BT += slope_BT
          if not (part_BT & case.mask_BT).any():
            self.assertEqual(float(total), 0.0)
            np.testing.assert_array_equal(slope_BT, 0.0)
        golden_io.assert_close(
            sums, expected['microbatch'][size], name=f'{mode} {size}'
        )
        golden_io.assert_close(sum(sums), expected['ppo'], name=mode)
        want = np.asarray(expected['ppo_grad_logp'])[case.trained_places()]
        golden_io.assert_close(case.trained(gradient_BT), want, name=mode)

  @parameterized.named_parameters(*CASES)
  def test_L3_L6_totals_with_dual_clip_and_kl(self, case):
    for mode in aggregation.MODES:
      expected = case.expected['aggregate'][mode]
      minibatch = case.minibatch(weights_of(case, mode))
      nothing_BT = np.zeros_like(case['logp'])
      for estimator, importance, name in (
          ('k1', False, 'k1'),
          ('k2', False, 'k2'),
          ('k3', False, 'k3'),
          ('k2', True, 'k2_importance'),
      ):
        total, stats, _ = actor(
            case['logp'], nothing_BT, minibatch,
            (*bounds_of(case), case.config['dual_clip']),
            kl=schema.KlConfig('loss', estimator, 0.5, importance),
        )
        golden_io.assert_close(
            stats['policy_loss'].total, expected['dual'], name=mode
        )
        golden_io.assert_close(
            stats['kl_loss'].total, 0.5 * expected[name], name=f'{mode} {name}'
        )
        golden_io.assert_close(total, expected['dual'] + 0.5 * expected[name])

  @parameterized.named_parameters(*CASES)
  def test_L10_L13_L14_totals_with_corrections_and_gates(self, case):
    keep_BT = np.ones(case.mask_BT.shape, np.float32)
    keep_BT[case.mask_BT] = case.per_token('seq_mis_keep')
    bounds = {
        'clip': bounds_of(case),
        'window': (case.config['is_low'], case.config['is_high']),
        'dis': (case.config['dis_low'], case.config['dis_high']),
    }
    for mode in aggregation.MODES:
      weight_BT = weights_of(case, mode)
      minibatch = case.minibatch(weight_BT)
      for name in ('ppo_tis', 'ppo_icepop', 'ppo_mis', 'ppo_seq_mis', 'dis'):
        if name == 'ppo_seq_mis':
          minibatch = minibatch._replace(
              plan=batch_lib.Plan(correction_BT=keep_BT)
          )
        else:
          minibatch = minibatch._replace(plan=None)
        loss, share, gradient_BT = corrected(
            case['logp'], minibatch, bounds, name=name
        )
        expected = case.expected['aggregate'][mode][name]
        golden_io.assert_close(loss, expected, name=f'{mode} {name}')
        if name in ('ppo_tis', 'dis'):
          golden_io.assert_close(
              case.trained(gradient_BT),
              case.trained(weight_BT) * case.per_token(f'{name}_grad'),
              name=f'{mode} {name}',
          )
      # The last one was dis.
      if mode == 'token':
        golden_io.assert_close(
            share.mean, case.expected['metrics']['effective_share_dis']
        )

  @parameterized.named_parameters(*CASES)
  def test_L4_totals_of_the_critic(self, case):
    for mode in aggregation.MODES:
      weight_BT = weights_of(case, mode)
      total, stats, gradient_BT = critic(
          case['value'], case.minibatch(weight_BT), case.config['value_clip']
      )
      golden_io.assert_close(
          total, case.expected['aggregate'][mode]['value'], name=mode
      )
      golden_io.assert_close(
          case.trained(gradient_BT),
          case.trained(weight_BT) * case.per_token('value_grad'),
      )
      golden_io.assert_close(
          stats['clip_fraction'].mean,
          case.expected['metrics']['value_clip_fraction'],
      )

  @parameterized.named_parameters(*CASES)
  def test_L2_L21_O1_metrics(self, case):
    expected = case.expected['metrics']
    minibatch = case.minibatch(weights_of(case, 'task_mean'))
    nothing_BT = np.zeros_like(case['logp'])
    _, stats, _ = actor(case['logp'], nothing_BT, minibatch, bounds_of(case))
    # Shares of tokens, whatever the weights.
    found = statistics.values(stats)
    golden_io.assert_close(found['clip_fraction'], expected['clip_fraction'])
    golden_io.assert_close(found['approx_kl_k1'], expected['approx_kl_old_k1'])
    self.assertEqual(
        found['ratio_saturated_count'], expected['ratio_saturated']
    )
    # Before any step pi_theta is pi_old: the gap is that to the sampler.
    _, stats, _ = actor(
        case['logp_old'], nothing_BT, minibatch, bounds_of(case)
    )
    found = statistics.values(stats)
    golden_io.assert_close(
        found['behaviour_gap_abs'], expected['behavior_gap_abs']
    )
    self.assertEqual(found['approx_kl_k3'], 0.0)

  @parameterized.parameters(1, 2, 4)
  def test_G23_L8_devices_only_add_up(self, devices):
    case = CASES[min(1, len(CASES) - 1)][1]
    mesh = mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices])
    place = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec('data')
    )
    expected = case.expected['aggregate']['rollout_mean']
    logp_BT, minibatch = jax.device_put(
        (case['logp'], case.minibatch(weights_of(case, 'rollout_mean'))), place
    )
    total, _, (gradient_BT, _) = actor(
        logp_BT, jnp.zeros_like(logp_BT), minibatch, bounds_of(case)
    )
    golden_io.assert_close(total, expected['ppo'])
    want = np.asarray(expected['ppo_grad_logp'])[case.trained_places()]
    golden_io.assert_close(case.trained(gradient_BT), want)


class ActorTest(parameterized.TestCase):

  @parameterized.product(
      split=(
          [[0, 1, 2, 3, 4]],
          [[0], [1, 2, 3, 4]],
          [[0, 1], [2, 3, 4]],
          [[0], [1], [2], [3], [4]],
          [[0], [1, 2, 3, 4], []],
      ),
      devices=(1, 2, 4),
  )
  def test_K11_the_split_does_not_matter(self, split, devices):
    # Loss theta * x at theta = 1: the ratio is theta and the advantage -x.
    # Runs [3] and [1, 1, 2, 0]: token mean 7 / 5, slope 7 / 5.
    weight = np.zeros((4, 2), np.float32)
    advantage, part = np.zeros((4, 2), np.float32), np.full((4, 2), -1)
    for token, x in enumerate((3.0, 1.0, 1.0, 2.0, 0.0)):
      place = token % 4, token // 4
      weight[place], advantage[place] = 1 / 5, -x
      part[place] = next(i for i, tokens in enumerate(split) if token in tokens)
    mesh = mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices])
    place = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec('data')
    )
    total, slope = 0.0, 0.0
    for index in range(len(split)):
      minibatch = minibatch_of(np.where(part == index, weight, 0.0), advantage)
      logp_BT, minibatch = jax.device_put(
          (np.zeros((4, 2), np.float32), minibatch), place
      )
      loss, _, (gradient_BT, _) = actor(
          logp_BT, jnp.zeros_like(logp_BT), minibatch, (0.2, 0.2)
      )
      total += float(loss)
      # d theta / d theta = 1 through every log-prob log(theta).
      slope += float(gradient_BT.sum())
    self.assertAlmostEqual(total, 1.4, places=6)
    self.assertAlmostEqual(abs(slope), 1.4, places=6)
    self.assertGreater(slope, 0.0)

  @parameterized.parameters((2, 3), (0, 3))
  def test_K16_L9_nothing_to_train(self, rows, length):
    # (a) all masked, (c) no rows; every input is poison.
    poison = np.full((rows, length), np.nan, np.float32)
    minibatch = minibatch_of(
        np.zeros((rows, length)), poison, base_logp_BT=poison,
        reference_logp_BT=poison, behaviour_logp_BT=poison, value_BT=poison,
        return_BT=poison,
    )
    total, stats, gradients = actor(
        poison, poison, minibatch, (0.2, 0.2, 3.0),
        kl=schema.KlConfig('loss', 'k3', 0.1, True), entropy_coef=0.01,
    )
    value_total, value_stats, value_gradient = critic(poison, minibatch, 0.2)
    self.assertEqual((float(total), float(value_total)), (0.0, 0.0))
    for gradient_BT in (*gradients, value_gradient):
      np.testing.assert_array_equal(gradient_BT, np.zeros((rows, length)))
    for name, value in statistics.values(stats | value_stats).items():
      self.assertEqual(value, 0.0, name)

  def test_K18_c_a_nan_on_a_trained_token_reaches_the_loss(self):
    logp = np.asarray([[np.nan, 0.0]], np.float32)
    total, _, _ = actor(
        logp, np.zeros((1, 2), np.float32),
        minibatch_of([[0.5, 0.5]], [[1.0, 1.0]]), (0.2, 0.2),
    )
    self.assertTrue(np.isnan(float(total)))

  def test_L5_entropy_bonus(self):
    # Advantages 0: -c * sum w H = -.1 * (.25 * 2 + .5 * 1) = -.1.
    entropy = np.asarray([[2.0, 1.0, np.nan]], np.float32)
    total, stats, (_, slope_BT) = actor(
        np.zeros((1, 3), np.float32), entropy,
        minibatch_of([[0.25, 0.5, 0.0]], [[0.0, 0.0, 9.0]]), (0.2, 0.2),
        entropy_coef=0.1,
    )
    self.assertAlmostEqual(float(total), -0.1, places=6)
    np.testing.assert_allclose(slope_BT, [[-0.025, -0.05, 0.0]], rtol=1e-6)
    self.assertAlmostEqual(float(stats['entropy'].mean), 1.5, places=6)

  def test_L5_entropy_bonus_by_token_type(self):
    # Coefficients .1, but .5 for tool names: -(.25 * .1 * 2 + .5 * .5 * 1).
    minibatch = minibatch_of([[0.25, 0.5, 0.25]], [[0.0] * 3])
    minibatch = minibatch._replace(
        strata=batch_lib.Strata(
            type_BT=np.asarray(
                [[0, token_types.NAMES.index('tool_name'), 0]], np.int32
            ),
            position_BT=np.zeros((1, 3), np.int32),
            length_BT=np.zeros((1, 3), np.int32),
        )
    )
    settings = objective.Settings(
        loss=schema.LossConfig(
            entropy_coef=0.1, entropy_by_type={'tool_name': 0.5}
        )
    )
    slope = jax.grad(
        lambda entropy_BT: objective.actor_terms(
            jnp.zeros((1, 3)), entropy_BT, minibatch, settings=settings
        )[0]
    )(jnp.asarray([[2.0, 1.0, 0.0]]))
    np.testing.assert_allclose(slope, [[-0.025, -0.25, -0.025]], rtol=1e-6)

  def test_L6_kl_coefficient_is_an_argument_by_token_type(self):
    minibatch = minibatch_of([[0.5, 0.5]], [[0.0, 0.0]])
    minibatch = minibatch._replace(
        strata=batch_lib.Strata(
            type_BT=np.asarray([[0, token_types.STOP]], np.int32),
            position_BT=np.zeros((1, 2), np.int32),
            length_BT=np.zeros((1, 2), np.int32),
        )
    )
    kl = schema.KlConfig(
        'loss', 'k2', ((0, 1.0), (10, 3.0)), by_type={'stop': 0.5}
    )
    total = jax.jit(
        lambda logp_BT, minibatch: objective.actor_terms(
            logp_BT, jnp.zeros((1, 2)), minibatch,
            settings=objective.Settings(kl=kl),
        )[0]
    )
    logp_BT = jnp.asarray([[0.2, 0.4]])
    # k2 = .02 and .08, weights .5; the stop token counts half.
    for update, coef in ((0, 1.0), (5, 2.0), (99, 3.0)):
      coef_Y = jnp.asarray(kl_lib.coefficients(kl, update))
      found = total(logp_BT, minibatch._replace(kl_coef_Y=coef_Y))
      self.assertAlmostEqual(float(found), coef * (0.01 + 0.02), places=6)
    # One program for all of them.
    self.assertEqual(total._cache_size(), 1)

  def test_L10_a_token_dropped_by_two_gates_is_dropped(self):
    # Ratios to the sampler 9, 9, 1; pi_old / mu is 9, 1, 9. The first is out
    # of both ranges, each of the others out of one.
    log9 = np.float32(np.log(9.0))
    minibatch = minibatch_of(
        [[0.25, 0.25, 0.5]], [[1.0] * 3],
        base_logp_BT=np.asarray([[log9, 0.0, log9]], np.float32),
    )
    total, stats = objective.actor_terms(
        jnp.asarray([[log9, log9, 0.0]]), jnp.zeros((1, 3)), minibatch,
        settings=objective.Settings(
            policy=schema.PolicyConfig(
                loss='dis', correction='mis', is_low=0.5, is_high=2.0
            )
        ),
    )
    self.assertEqual(float(total), 0.0)
    self.assertEqual(float(stats['gated_fraction'].mean), 1.0)
    self.assertEqual(float(stats['effective_share'].mean), 0.0)

  @parameterized.parameters('gspo', 'seq_mis')
  def test_L20_a_two_pass_objective_needs_its_plan(self, name):
    policy = schema.PolicyConfig(loss='gspo')
    if name == 'seq_mis':
      policy = schema.PolicyConfig(correction='seq_mis')
    with self.assertRaisesRegex(ValueError, f"'{name}'.*L20"):
      objective.actor_terms(
          jnp.zeros((1, 1)), jnp.zeros((1, 1)), minibatch_of([[1.0]], [[1.0]]),
          settings=objective.Settings(policy=policy),
      )

  def test_unknown_loss_is_refused(self):
    with self.assertRaisesRegex(ValueError, "policy.loss.*'ppo'"):
      objective.actor_terms(
          jnp.zeros((1, 1)), jnp.zeros((1, 1)), minibatch_of([[1.0]], [[1.0]]),
          settings=objective.Settings(policy=schema.PolicyConfig(loss='ppo')),
      )

  def test_L7_reference_and_baseline_are_different_objects(self):
    # Ratio against the base only; KL against the reference only.
    logp = np.log(np.asarray([[0.5]], np.float32))
    minibatch = minibatch_of(
        [[1.0]], [[1.0]],
        base_logp_BT=np.log(np.asarray([[0.45]], np.float32)),
        reference_logp_BT=np.log(np.asarray([[0.25]], np.float32)),
    )
    _, stats, _ = actor(
        logp, np.zeros((1, 1), np.float32), minibatch, (0.2, 0.2),
        kl=schema.KlConfig('loss', 'k2', 2.0),
    )
    self.assertAlmostEqual(float(stats['policy_loss'].total), -0.5 / 0.45, 5)
    # 2 * (ln 2)^2 / 2.
    self.assertAlmostEqual(float(stats['kl_loss'].total), 0.48045301, 5)
    self.assertAlmostEqual(float(stats['reference_kl_k1'].mean), 0.69314718, 5)
    self.assertAlmostEqual(float(stats['reference_kl_k3'].mean), 0.19314718, 5)

  def test_E10_no_advantage_leaves_kl_and_entropy(self):
    minibatch = minibatch_of(
        [[1.0]], [[0.0]], reference_logp_BT=np.full((1, 1), -0.5, np.float32)
    )
    total, stats, (gradient_BT, _) = actor(
        np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32), minibatch,
        (0.2, 0.2), kl=schema.KlConfig('loss', 'k2', 1.0), entropy_coef=0.1,
    )
    self.assertEqual(float(stats['policy_loss'].total), 0.0)
    # .5 * .25 - .1, and slope x = .5.
    self.assertAlmostEqual(float(total), 0.025, places=6)
    self.assertAlmostEqual(float(gradient_BT[0, 0]), 0.5, places=6)


class StatsTest(absltest.TestCase):

  def test_L8_merged_halves_are_the_whole(self):
    case = CASES[min(2, len(CASES) - 1)][1]
    weight_BT = weights_of(case, 'token')
    first, second = case.partitions['2']
    run = lambda part_BT: actor(
        case['logp'], np.ones_like(case['logp']),
        case.minibatch(np.where(part_BT, weight_BT, np.float32(0))),
        bounds_of(case), kl=schema.KlConfig('loss', 'k2', 0.1),
    )[1]
    whole = statistics.values(run(first | second))
    merged = statistics.values(
        statistics.merge(run(first), run(second))
    )
    self.assertEqual(whole.keys(), merged.keys())
    for name, value in whole.items():
      golden_io.assert_close(merged[name], value, name=name)

  def test_O1_effective_sample_size(self):
    # Ratios 1 and 3: 16 / (2 * 10).
    _, stats, _ = actor(
        np.log(np.asarray([[1.0, 3.0, 9.0]], np.float32)),
        np.zeros((1, 3), np.float32),
        minibatch_of([[0.5, 0.5, 0.0]], [[1.0, 1.0, 1.0]]), (0.2, 0.2),
    )
    found = statistics.values(stats)
    self.assertAlmostEqual(found['ess_share'], 0.8, places=5)
    self.assertAlmostEqual(found['ratio_max'], 3.0, places=5)

  def test_O1_small_divergences_are_not_lost_in_rounding(self):
    # KL(base || theta) by k3: x^2/2 + x^3/6 of x = 1e-3 is 5.0016667e-7.
    _, stats, _ = actor(
        np.full((1, 1), 1e-3, np.float32), np.zeros((1, 1), np.float32),
        minibatch_of([[1.0]], [[1.0]]), (0.2, 0.2),
    )
    np.testing.assert_allclose(
        stats['approx_kl_k3'].mean, 5.0016667e-7, rtol=1e-3
    )

  def test_C4_bias_and_error_of_the_critic(self):
    # Errors 1 and -3: bias -1, mse 5.
    zero = np.zeros((1, 2), np.float32)
    _, stats, _ = critic(
        np.asarray([[1.0, -3.0]], np.float32),
        minibatch_of([[0.5, 0.5]], zero), None,
    )
    found = statistics.values(stats)
    self.assertAlmostEqual(found['bias'], -1.0, places=6)
    self.assertAlmostEqual(found['mse'], 5.0, places=5)
    self.assertAlmostEqual(found['loss'], 2.5, places=5)


if __name__ == '__main__':
  absltest.main()
