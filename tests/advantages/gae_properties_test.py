"""What must not change a number of section 3 (G21 to G30, G14, G15, P3)."""

import copy
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import strategies as st

from rl_tpu.advantages import gae as gae_lib
from rl_tpu.config import schema
from rl_tpu.sharding import mesh as mesh_lib
from tests import batch_cases
from tests import golden_case
from tests import golden_io
from tests import synthetic

SETTINGS = (
    {},
    {'time_unit': 'turn'},
    {'time_unit': 'turn', 'critic_level': 'turn'},
    {'lambda_policy': {'kind': 'length_adaptive', 'alpha': 0.4}},
)
COLUMNS = ('delta', 'advantage', 'return', 'reward_effective')

seeds = functools.partial(
    hypothesis.given, st.integers(min_value=0, max_value=2**32 - 1)
)
few = hypothesis.settings(
    max_examples=8,
    deadline=None,
    # The tests run in two classes.
    suppress_health_check=[hypothesis.HealthCheck.differing_executors],
)


def by_action(outcome):
  """Columns by rollout id and action."""
  return {
      name: outcome.actions(array)
      for name, array in golden_case.columns(outcome).items()
  }


def by_loop(case):
  """The recursion as two plain loops over all actions, in float64."""
  config = case['config']
  gamma = config['gamma']
  found = {}
  for rollout in case['rollouts']:
    actions, rewards = [], []
    for segment in sorted(
        rollout['segments'], key=lambda s: s['segment_index']
    ):
      for p, role in enumerate(segment['role']):
        if role in 'AS':
          actions.append((segment['value'][p], segment['turn_id'][p]))
          rewards.append(0.0)
        if rewards:
          rewards[-1] += segment['reward'][p]
      final = segment['final_value']
    terminal = rollout['termination'] == 'success'
    if terminal:
      rewards[-1] += rollout['terminal_reward']
    result = {'delta': [], 'advantage': [], 'return': []}
    turns = len({turn for _, turn in actions})
    for name in ('lambda_policy', 'lambda_critic'):
      lam = config[name]
      if lam['kind'] == 'fixed':
        decay = lam['value']
      else:
        count = turns if config['time_unit'] == 'turn' else len(actions)
        decay = max(0.0, 1.0 - 1.0 / (lam['alpha'] * count))
      trace, following = 0.0, 0.0 if terminal else final
      column = []
      for j in reversed(range(len(actions))):
        value, turn = actions[j]
        within = (
            config['time_unit'] == 'turn'
            and j + 1 < len(actions)
            and actions[j + 1][1] == turn
        )
        g, d = (1.0, 1.0) if within else (gamma, decay)
        delta = rewards[j] + g * following - value
        trace = delta + g * d * trace
        following = value
        column.append((delta, trace, trace + value))
      column.reverse()
      if name == 'lambda_policy':
        result['delta'] = [c[0] for c in column]
        result['advantage'] = [c[1] for c in column]
      else:
        result['return'] = [c[2] for c in column]
    found[rollout['rollout_id']] = result
  return found


class PropertyTest(parameterized.TestCase):
  devices = 1

  def run_case(self, case, **options):
    mesh = None
    if self.devices > 1:
      devices = jax.devices()[: self.devices]
      mesh = mesh_lib.make_mesh(schema.MeshConfig(), devices)
    return golden_case.run(case, mesh=mesh, **options)

  def per_action(self, case, **options):
    return by_action(self.run_case(case, **options))

  def same(self, one, two, ids=None):
    for name in one:
      for rollout_id in ids or one[name]:
        golden_io.assert_close(
            two[name][rollout_id], one[name][rollout_id], name=name
        )

  @few
  @seeds()
  def test_G1_G2_G9_G10_G11_G12_scan_equals_a_plain_loop(self, seed):
    rng = np.random.default_rng(seed)
    case = synthetic.case(
        synthetic.random_rollouts(rng, 4),
        **SETTINGS[int(rng.choice([0, 1, 3]))],
    )
    got = self.per_action(case)
    for rollout_id, expected in by_loop(case).items():
      for name, column in expected.items():
        golden_io.assert_close(got[name][rollout_id], column, name=name)

  @few
  @seeds()
  def test_V1_G21_order_of_segments_and_rollouts(self, seed):
    rng = np.random.default_rng(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    case = synthetic.case(synthetic.random_rollouts(rng, 4), **settings)
    mixed = copy.deepcopy(case)
    rng.shuffle(mixed['rollouts'])
    for rollout in mixed['rollouts']:
      rng.shuffle(rollout['segments'])
    self.same(self.per_action(case), self.per_action(mixed))

  @few
  @seeds()
  def test_G22_G23_rows_padding_and_minibatches(self, seed):
    rng = np.random.default_rng(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    case = synthetic.case(synthetic.random_rollouts(rng, 4), **settings)
    first = self.per_action(case)
    for options in ({'rows': 16}, {'minibatches': 3, 'row_length': 96}):
      self.same(first, self.per_action(case, **options))

  @few
  @seeds()
  def test_G24_splitting_a_segment(self, seed):
    rng = np.random.default_rng(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    case = synthetic.case(synthetic.random_rollouts(rng, 3), **settings)
    split = copy.deepcopy(case)
    split['rollouts'] = [_split(rng, r) for r in split['rollouts']]
    self.same(self.per_action(case), self.per_action(split))

  @few
  @seeds()
  def test_G25_longer_observations(self, seed):
    rng = np.random.default_rng(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    case = synthetic.case(synthetic.random_rollouts(rng, 3), **settings)
    stretched = copy.deepcopy(case)
    for rollout in stretched['rollouts']:
      for segment in rollout['segments']:
        place = segment['role'].find('O')
        if place >= 0:
          _insert(segment, place, 'O' * 7)
    stretched['rollouts'] = [
        synthetic.with_offsets(r) for r in stretched['rollouts']
    ]
    self.same(self.per_action(case), self.per_action(stretched))

  @parameterized.parameters(0.0, 1e30, np.inf, -np.inf, np.nan)
  def test_G26_G15_values_off_the_actions_are_not_read(self, fill):
    rng = np.random.default_rng(5)
    for settings in SETTINGS:
      case = synthetic.case(synthetic.random_rollouts(rng, 4), **settings)
      clean = self.per_action(case, fill=0.0)
      spoilt = copy.deepcopy(case)
      for rollout in spoilt['rollouts']:
        for segment in rollout['segments']:
          for p, role in enumerate(segment['role']):
            if role not in 'AS':
              segment['value'][p] = fill
        if rollout['termination'] == 'success':
          rollout['segments'][-1]['final_value'] = fill
      outcome = self.run_case(spoilt, fill=fill)
      for name, array in golden_case.columns(outcome).items():
        self.assertTrue(np.isfinite(array).all(), name)
        for rollout_id, values in outcome.actions(array).items():
          np.testing.assert_array_equal(values, clean[name][rollout_id])

  @parameterized.parameters(np.inf, -np.inf, np.nan)
  def test_G15_masked_kl_is_not_read(self, fill):
    rng = np.random.default_rng(6)
    rollouts = synthetic.random_rollouts(rng, 3)
    clean, spoilt = [], []
    for value, out in ((0.0, clean), (fill, spoilt)):
      for rollout in copy.deepcopy(rollouts):
        for segment in rollout['segments']:
          acts = [role in 'AS' for role in segment['role']]
          segment['logp_base'] = [0.3 if a else value for a in acts]
          segment['logp_ref'] = [0.1 if a else 0.0 for a in acts]
        out.append(rollout)
    kl = {'in': 'reward', 'coef': 0.5}
    self.same(
        self.per_action(synthetic.case(clean, kl=kl), fill=0.0),
        self.per_action(synthetic.case(spoilt, kl=kl), fill=fill),
    )

  def test_G12_G15_nothing_flows_back(self):
    """Estimates are constants; masked NaN does not change that."""
    rng = np.random.default_rng(7)
    case = synthetic.case(synthetic.random_rollouts(rng, 3))
    joins = self.run_case(case).batch.segments.joins
    value_BT = jnp.where(joins.transition_mask_BT, 0.5, np.nan)

    def total(value_BT, bootstrap_R):
      estimates = gae_lib.estimate(
          joins, value_BT, bootstrap_R, gae=schema.GaeConfig(), level='token'
      )
      return sum(jnp.sum(array) for array in estimates)

    bootstrap_R = jnp.where(joins.bootstrap_R, 0.25, np.nan)
    got, gradients = jax.jit(jax.value_and_grad(total, (0, 1)))(
        value_BT, bootstrap_R
    )
    self.assertTrue(np.isfinite(got))
    for gradient in gradients:
      np.testing.assert_array_equal(gradient, 0.0)

  @few
  @seeds()
  def test_G27_T10_a_dropped_prefix(self, seed):
    rng = np.random.default_rng(seed)
    settings = SETTINGS[int(rng.choice([0, 1, 3]))]
    whole = synthetic.case(
        synthetic.random_rollouts(rng, 3), allow_dropped_prefix=True,
        **settings,
    )
    kept = copy.deepcopy(whole)
    dropped = {}
    for rollout in kept['rollouts']:
      segments = rollout['segments']
      first = int(rng.integers(0, len(segments)))
      has_actions = any(
          role in 'AS' for s in segments[first:] for role in s['role']
      )
      if has_actions:
        rollout['segments'] = segments[first:]
        dropped[rollout['rollout_id']] = sum(
            role in 'AS' for s in segments[:first] for role in s['role']
        )
    one, two = self.per_action(whole), self.per_action(kept)
    for name in COLUMNS:
      for rollout_id, count in dropped.items():
        golden_io.assert_close(
            two[name][rollout_id], one[name][rollout_id][count:], name=name
        )

  @few
  @seeds()
  def test_G28_gamma_and_lambda_one(self, seed):
    rng = np.random.default_rng(seed)
    one = {'kind': 'fixed', 'value': 1.0}
    case = synthetic.case(
        synthetic.random_rollouts(rng, 4), gamma=1.0, lambda_policy=one,
        lambda_critic=one,
    )
    got = self.per_action(case)
    for rollout in case['rollouts']:
      rollout_id = rollout['rollout_id']
      values = np.concatenate([
          [v for v, role in zip(s['value'], s['role']) if role in 'AS']
          for s in rollout['segments']
      ])
      rewards = got['reward_effective'][rollout_id].astype(np.float64)
      end = (
          0.0
          if rollout['termination'] == 'success'
          else rollout['segments'][-1]['final_value']
      )
      to_come = np.cumsum(rewards[::-1])[::-1]
      golden_io.assert_close(got['return'][rollout_id], to_come + end)
      golden_io.assert_close(
          got['advantage'][rollout_id], to_come + end - values
      )

  @few
  @seeds()
  def test_G29_scaling_and_a_bonus_at_the_end(self, seed):
    rng = np.random.default_rng(seed)
    case = synthetic.case(synthetic.random_rollouts(rng, 3))
    scaled, shifted = copy.deepcopy(case), copy.deepcopy(case)
    for rollout in scaled['rollouts']:
      if rollout['terminal_reward'] is not None:
        rollout['terminal_reward'] *= 3.0
      for segment in rollout['segments']:
        segment['value'] = [3.0 * v for v in segment['value']]
        segment['reward'] = [3.0 * r for r in segment['reward']]
        if segment['final_value'] is not None:
          segment['final_value'] *= 3.0
    for rollout in shifted['rollouts']:
      rollout['terminal_reward'] = (rollout['terminal_reward'] or 0.0) + 2.0
    base, big, bonus = map(self.per_action, (case, scaled, shifted))
    for name in COLUMNS:
      for rollout_id, values in base[name].items():
        golden_io.assert_close(big[name][rollout_id], 3.0 * values)
    decay = case['config']['gamma'] * np.asarray([0.9, 0.8])
    for rollout in case['rollouts']:
      rollout_id = rollout['rollout_id']
      count = len(base['delta'][rollout_id])
      ahead = np.arange(count)[::-1]
      scored = rollout['termination'] == 'success'
      added = {
          'delta': 2.0 * (ahead == 0),
          'advantage': 2.0 * decay[0] ** ahead,
          'return': 2.0 * decay[1] ** ahead,
      }
      for name, expected in added.items():
        golden_io.assert_close(
            bonus[name][rollout_id],
            base[name][rollout_id] + scored * expected,
            name=name,
        )

  @few
  @seeds()
  def test_G30_another_rollout_changes_nothing(self, seed):
    rng = np.random.default_rng(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    case = synthetic.case(synthetic.random_rollouts(rng, 3), **settings)
    more = copy.deepcopy(case)
    more['rollouts'].insert(
        int(rng.integers(0, 4)), synthetic.random_rollout(rng, 'new')
    )
    ids = ('r0', 'r1', 'r2')
    self.same(self.per_action(case), self.per_action(more), ids=ids)

  @few
  @seeds()
  def test_G14_exactly_0_off_the_actions_and_in_padding(self, seed):
    rng = np.random.default_rng(seed)
    case = synthetic.case(
        synthetic.random_rollouts(rng, 4), **SETTINGS[seed % len(SETTINGS)]
    )
    outcome = self.run_case(case, fill=np.nan)
    off_BT = ~outcome.batch.segments.rows.action_mask_BT
    self.assertTrue(off_BT.any())
    for name, array_BT in golden_case.columns(outcome).items():
      np.testing.assert_array_equal(array_BT[off_BT], 0, err_msg=name)


class ShardedPropertyTest(PropertyTest):
  """The same with rows on eight devices."""

  devices = 8


class LengthTest(absltest.TestCase):

  def test_G32_forty_thousand_actions_in_float32(self):
    rng = np.random.default_rng(5)
    roles = ['C' + 'A' * 4095] * 10
    numbers = [rng.normal(size=len(text)) for text in roles]
    rollout = synthetic.rollout(
        roles,
        values=numbers,
        rewards=[rng.normal(size=len(text)) for text in roles],
    )
    everything = {'kind': 'fixed', 'value': 1.0}
    case = synthetic.case(
        [rollout],
        gamma=1.0,
        lambda_policy=everything,
        lambda_critic=everything,
    )
    got = by_action(golden_case.run(case, row_length=4096, rows=10))
    (expected,) = by_loop(case).values()
    self.assertLen(expected['delta'], 40950)
    for name, column in expected.items():
      golden_io.assert_close(
          got[name]['r0'], column, num_actions=len(column), name=name
      )

  def test_G32_long_rows_cross_every_chunk(self):
    """Segments longer than a chunk of the scan."""
    rng = np.random.default_rng(11)
    rollouts = []
    for k, lengths in enumerate(((300, 5, 411), (512,), (64, 64, 64, 63))):
      roles = ['C' + 'A' * (n - 1) for n in lengths]
      rollouts.append(
          synthetic.rollout(
              roles,
              rollout_id=f'r{k}',
              values=[rng.normal(size=len(t)) for t in roles],
              rewards=[rng.normal(size=len(t)) for t in roles],
          )
      )
    case = synthetic.case(rollouts)
    got = by_action(golden_case.run(case, row_length=512))
    for rollout_id, expected in by_loop(case).items():
      for name, column in expected.items():
        golden_io.assert_close(got[name][rollout_id], column, name=name)

  def test_an_empty_batch_estimates_to_zeros(self):
    outcome = golden_case.run(synthetic.case([]))
    self.assertEqual(outcome.batch.counts['rows'], batch_cases.ROWS)
    for array in golden_case.columns(outcome).values():
      np.testing.assert_array_equal(array, 0)


def _split(rng, rollout):
  """Cuts one segment at a position; the rest repeats what came before."""
  rollout = copy.deepcopy(rollout)
  place = int(rng.integers(0, len(rollout['segments'])))
  segment = rollout['segments'][place]
  if len(segment['role']) < 2:
    return rollout
  at = int(rng.integers(1, len(segment['role'])))
  first, second = copy.deepcopy(segment), copy.deepcopy(segment)
  for name in ('role', 'turn_id', 'reward', 'value'):
    first[name] = first[name][:at]
  first['cut'], first['final_value'] = 'resume_cut', None
  second['role'] = 'C' * at + second['role'][at:]
  second['turn_id'] = [-1] * at + second['turn_id'][at:]
  second['reward'] = [0.0] * at + second['reward'][at:]
  segments = rollout['segments']
  segments[place : place + 1] = [first, second]
  for index, segment in enumerate(segments):
    segment['segment_index'] = index
  rollout['num_segments'] = len(segments)
  return synthetic.with_offsets(rollout)


def _insert(segment, place, roles):
  count = len(roles)
  segment['role'] = segment['role'][:place] + roles + segment['role'][place:]
  for name, fill in (('turn_id', -1), ('reward', 0.0), ('value', 321.0)):
    column = segment[name]
    segment[name] = column[:place] + [fill] * count + column[place:]


if __name__ == '__main__':
  absltest.main()
