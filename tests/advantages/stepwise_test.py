"""E1, E5, E6, K10: advantages that differ from step to step of a rollout."""

from typing import Any

import hypothesis
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import strategies as st

from rl_tpu.advantages import groups
from rl_tpu.advantages import stepwise
from rl_tpu.config import schema
from rl_tpu.rollout import admission
from tests import golden_io
from tests import group_cases

Turn = group_cases.Turn
GROUPS = [
    (c['id'], c)
    for c in golden_io.cases('groups')
    if c['kind'] == 'group' and c['expected']['reason'] is None
]


def gigpo_config(golden: dict[str, Any]) -> schema.GigpoConfig:
  config = golden['config']['gigpo']
  return schema.GigpoConfig(
      gamma=config['gamma'], omega=config['omega'], norm=config['norm']
  )


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*GROUPS)
  def test_E5_process(self, golden):
    config, members = golden['config'], golden['process_members']
    found = stepwise.process(
        [[s['reward'] for s in m['steps']] for m in members],
        [[s['end'] for s in m['steps']] for m in members],
        [m['num_actions'] for m in members],
        eps=config['eps'],
        std_floor=config['std_floor'],
    )
    for got, want in zip(found, golden['expected']['process'], strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)

  @parameterized.named_parameters(*GROUPS)
  def test_E5_process_as_trained(self, golden):
    config = golden['config']
    rollouts = []
    for i, made in enumerate(golden['process_members']):
      ends = [s['end'] for s in made['steps']]
      turns = [
          Turn(end - before, step['reward'])
          for step, end, before in zip(made['steps'], ends, [-1, *ends])
      ]
      left = made['num_actions'] - 1 - ends[-1]
      turns += [Turn(left)] if left else []
      cuts = group_cases.spread_cuts(
          made['num_actions'], golden['segments_per_rollout'][i]
      )
      rollouts.append(
          group_cases.member(
              f'm{i}', turns, 0.0, cuts=cuts, on_observation=bool(i % 2)
          )
      )
    found = group_cases.advantages(
        rollouts, 'process', eps=config['eps'], std_floor=config['std_floor']
    )
    for i, want in enumerate(golden['expected']['process']):
      golden_io.assert_close(found[f'm{i}'], want, name=f'm{i}')

  @parameterized.named_parameters(*GROUPS)
  def test_E6_gigpo(self, golden):
    expected = golden['expected']['gigpo']
    rewards = []
    for made in golden['gigpo_members']:
      turn = [s['reward'] for s in made['steps']]
      turn[-1] += made['terminal_reward']
      rewards.append(turn)
    found = stepwise.gigpo(
        expected['return'],
        rewards,
        [[s['state'] for s in m['steps']] for m in golden['gigpo_members']],
        config=gigpo_config(golden),
        std_floor=golden['config']['std_floor'],
    )
    close = lambda got, want: np.testing.assert_allclose(
        got, want, rtol=1e-9, atol=1e-12
    )
    close(found.episode, expected['episode'])
    for name in ('step_return', 'step', 'total'):
      for got, want in zip(getattr(found, name), expected[name], strict=True):
        close(got, want)

  @parameterized.named_parameters(*GROUPS)
  def test_E2_E6_gigpo_as_trained(self, golden):
    config = golden['config']
    rollouts, lengths = [], []
    for i, made in enumerate(golden['gigpo_members']):
      turns = [
          Turn(1 + (i + t) % 3, step['reward'], step['state'])
          for t, step in enumerate(made['steps'])
      ]
      lengths.append([turn.actions for turn in turns])
      cuts = group_cases.spread_cuts(
          sum(lengths[-1]), golden['segments_per_rollout'][i]
      )
      rollouts.append(
          group_cases.member(f'm{i}', turns, made['terminal_reward'], cuts=cuts)
      )
    found = group_cases.advantages(
        rollouts,
        'gigpo',
        gigpo=gigpo_config(golden),
        eps=config['eps'],
        std_floor=config['std_floor'],
        outcome_only=config['gigpo']['outcome_only'],
    )
    for i, want in enumerate(golden['expected']['gigpo']['total']):
      golden_io.assert_close(
          found[f'm{i}'], np.repeat(want, lengths[i]), name=f'm{i}'
      )


class ProcessTest(absltest.TestCase):

  def test_E5_a_step_that_earned_0_is_a_step(self):
    # Steps 1, 0 and 2: mean 1, population deviation sqrt(2/3); without the
    # zero the two would be +-1 around 1.5.
    found = group_cases.advantages(
        [
            group_cases.member('a', [Turn(1, 1.0), Turn(2, 0.0)], 0.0),
            group_cases.member('b', [Turn(1), Turn(1, 2.0), Turn(1)], 0.0),
        ],
        'process',
    )
    high = 1.2247448714
    np.testing.assert_allclose(found['a'], [-high] * 3, rtol=1e-6)
    # The turn before the step leads to it; the one after it does not.
    np.testing.assert_allclose(found['b'], [high, high, 0.0], rtol=1e-6)

  def test_E5_a_component_of_weight_0_is_no_step(self):
    turns = [Turn(1, 1.0), Turn(1, 3.0)]
    made = [group_cases.member(name, turns, 0.0) for name in 'ab']
    admitted = group_cases.admit(
        made,
        'process',
        reward=schema.RewardConfig(weights={'terminal': 1.0, 'other': 1.0}),
    )
    # The recorded rewards would not fit the weights (R9).
    self.assertEmpty(admitted.admitted)
    silent = [
        group_cases.member(
            name,
            [Turn(1), Turn(1)],
            0.0,
            reward_components={'step': [(0, 1, 5.0)], 'other': [(0, 3, 0.0)]},
        )
        for name in 'ab'
    ]
    admitted = group_cases.admit(
        silent,
        'process',
        reward=schema.RewardConfig(weights={'terminal': 1.0, 'other': 1.0}),
    )
    table = group_cases.build(admitted).actions
    np.testing.assert_array_equal(table.is_step_J, [False, True] * 2)

  def test_E5_what_was_earned_before_the_first_action_is_no_step(self):
    places = [(0, 0, 0.0), (0, 2, 0.0)]
    made = group_cases.member(
        'a', [Turn(1), Turn(1)], 0.0, reward_components={'step': places}
    )
    table = group_cases.build(admission.admit_all([made])).actions
    # The second place is the observation after the first action.
    np.testing.assert_array_equal(table.is_step_J, [True, False])

  def test_E5_equal_steps_are_exactly_no_advantage(self):
    turns = [Turn(2, 0.3), Turn(1, 0.3)]
    found = group_cases.advantages(
        [group_cases.member(n, turns, s) for n, s in (('a', 1.0), ('b', 0.0))],
        'process',
    )
    for values in found.values():
      np.testing.assert_array_equal(values, 0.0)

  def test_E5_a_group_without_steps_learns_nothing(self):
    found = group_cases.advantages(
        [
            group_cases.member(name, [Turn(2)], score)
            for name, score in (('a', 1.0), ('b', 0.0))
        ],
        'process',
    )
    for values in found.values():
      np.testing.assert_array_equal(values, 0.0)

  def test_a_batch_without_steps_is_refused(self):
    admitted = group_cases.admit(
        [group_cases.member(n, [Turn(1, 1.0)], 0.0) for n in 'ab'], 'process'
    )
    batch = group_cases.build(admitted, anchor=None)
    with self.assertRaisesRegex(ValueError, "estimator='process'.*steps"):
      groups.advantages(
          batch,
          schema.AdvantageConfig(estimator='process'),
          schema.GroupConfig(size=2),
      )


class GigpoTest(parameterized.TestCase):

  def test_K10_a_state_that_one_run_saw_has_no_step_advantage(self):
    rollouts = [
        group_cases.member(n, [Turn(1, None, f'own {n}')], s)
        for n, s in zip('abcd', (1.0, 0.0, 0.0, 0.0))
    ]
    found = group_cases.advantages(rollouts, 'gigpo')
    np.testing.assert_allclose(found['a'], [1.7320508076], rtol=1e-6)
    np.testing.assert_allclose(found['b'], [-0.5773502692], rtol=1e-6)

  def test_E6_turns_whose_state_has_no_name_are_not_compared(self):
    rollouts = [
        group_cases.member(n, [Turn(1, None, 's'), Turn(1, None, None)], score)
        for n, score in (('a', 1.0), ('b', 0.0))
    ]
    found = group_cases.advantages(
        rollouts,
        'gigpo',
        gigpo=schema.GigpoConfig(gamma=1.0, omega=1.0, norm='none'),
    )
    # Returns 1 and 0 are 0.5 from their mean; so are they in state s.
    np.testing.assert_allclose(found['a'], [1.0, 0.5])
    np.testing.assert_allclose(found['b'], [-1.0, -0.5])

  def test_E6_states_are_numbered_and_one_without_a_name_is_not(self):
    turns = [Turn(1, None, state) for state in ('s', None, 't', 's')]
    made = group_cases.member('a', turns, 0.0)
    table = group_cases.build(admission.admit_all([made])).actions
    np.testing.assert_array_equal(table.anchor_U, [0, -1, 1, 0])

  @parameterized.parameters('process', 'gigpo')
  def test_E5_E6_a_comparison_without_actions_ends_none(self, estimator):
    # Rollouts 0 and 1 have one action each, 2 and 3 none.
    table = stepwise.ActionTable(
        place_J=np.asarray([4, 6]),
        rollout_J=np.asarray([0, 1]),
        turn_J=np.asarray([0, 1]),
        reward_J=np.asarray([1.0, 0.0]),
        is_step_J=np.asarray([True, True]),
        anchor_U=np.asarray([-1, -1]),
    )
    subgroups = [(2, 3), (0, 1)]
    if estimator == 'process':
      found = stepwise.process_actions(
          table, subgroups, eps=0.0, std_floor=1e-6
      )
    else:
      found = stepwise.gigpo_actions(
          table, subgroups, return_R=np.asarray([1.0, 0.0, 9.0, 5.0]),
          score_R=np.zeros(4), config=schema.GigpoConfig(), std_floor=1e-6,
      )
    # 1 and 0 are half from their mean, and so is the deviation.
    np.testing.assert_allclose(found, [1.0, -1.0])

  def test_E6_the_same_state_of_another_snapshot_is_another_state(self):
    # Split by E7 into pairs; in each pair both turns share a state. With
    # gamma 1 the step returns are the returns: 2 * (+-1).
    rollouts = [
        group_cases.member(n, [Turn(1, None, 's')], s, env_snapshot=where)
        for n, s, where in (
            ('a', 1.0, 'x'), ('b', 0.0, 'x'), ('c', 9.0, 'y'), ('d', 5.0, 'y')
        )
    ]
    found = group_cases.advantages(
        rollouts, 'gigpo', gigpo=schema.GigpoConfig(gamma=1.0)
    )
    self.assertEqual(
        {n: v.tolist() for n, v in found.items()},
        {'a': [2.0], 'b': [-2.0], 'c': [2.0], 'd': [-2.0]},
    )

  def test_E6_observation_anchors_merge_what_looks_alike(self):
    # Token ids follow the position here, so the first observations look alike
    # (one context token) and the second ones too (the one after the action);
    # the environment names every state differently.
    def pair(anchor):
      rollouts = [
          group_cases.member(
              name, [Turn(1, None, f'{name}0'), Turn(1, None, f'{name}1')], s
          )
          for name, s in (('a', 1.0), ('b', 0.0))
      ]
      return group_cases.advantages(
          rollouts, 'gigpo', gigpo=schema.GigpoConfig(gamma=1.0, anchor=anchor)
      )

    self.assertEqual(pair('state')['a'].tolist(), [1.0, 1.0])
    self.assertEqual(pair('observation')['a'].tolist(), [2.0, 2.0])

  def test_E6_repeats_within_a_rollout_all_count(self):
    # Step returns in state s with gamma 1: a 1, 1 and b 0. Mean 2/3,
    # deviation sqrt(2)/3: a 0.7071, b -1.4142; episodes +-1.
    rollouts = [
        group_cases.member('a', [Turn(1, None, 's'), Turn(2, None, 's')], 1.0),
        group_cases.member('b', [Turn(1, None, 's')], 0.0),
    ]
    found = group_cases.advantages(
        rollouts, 'gigpo', gigpo=schema.GigpoConfig(gamma=1.0)
    )
    np.testing.assert_allclose(found['a'], [1.7071067812] * 3, rtol=1e-6)
    np.testing.assert_allclose(found['b'], [-2.4142135624], rtol=1e-6)

  def test_unknown_words_are_refused(self):
    with self.assertRaisesRegex(ValueError, "gigpo.norm.*'both'"):
      stepwise.scaled(np.ones(2), norm='both', eps=0.0, std_floor=0.0)
    admitted = group_cases.admit(
        [group_cases.member(n, [Turn(1)], 0.0) for n in 'ab'], 'gigpo'
    )
    with self.assertRaisesRegex(ValueError, "gigpo.anchor.*'tokens'"):
      group_cases.build(admitted, anchor='tokens')


# --- E1: number and length of segments do not matter -----------------------


def plain(values: list[float]) -> list[float]:
  """(x - mean) / population deviation by plain sums; 0 without spread."""
  mean = sum(values) / len(values)
  var = sum((v - mean) ** 2 for v in values) / len(values)
  if var**0.5 <= 1e-6 * max(1.0, max(abs(v) for v in values)):
    return [0.0] * len(values)
  return [(v - mean) / var**0.5 for v in values]


def expected(members, estimator: str, gamma: float) -> list[list[float]]:
  """Advantage of every action by plain loops over (turns, score)."""
  returns = [
      score + sum(t.reward or 0.0 for t in turns) for turns, score in members
  ]
  mean = sum(returns) / len(returns)
  if estimator == 'process':
    steps = [t.reward for turns, _ in members for t in turns]
    steps = [reward for reward in steps if reward is not None]
    scaled = iter(plain(steps) if steps else [])
    out = []
    for turns, _ in members:
      rewards = [0.0 if t.reward is None else next(scaled) for t in turns]
      out.append([
          sum(rewards[k:])
          for k, t in enumerate(turns)
          for _ in range(t.actions)
      ])
    return out
  if estimator == 'gigpo':
    by_state: dict[str, list[float]] = {}
    step_return = []
    for turns, score in members:
      rewards = [t.reward or 0.0 for t in turns]
      rewards[-1] += score
      here = [
          sum(gamma ** (k - t) * rewards[k] for k in range(t, len(turns)))
          for t in range(len(turns))
      ]
      step_return.append(here)
      for turn, value in zip(turns, here):
        by_state.setdefault(turn.state, []).append(value)
    scaled_by_state = {s: iter(plain(v)) for s, v in by_state.items()}
    episode = plain(returns)
    out = []
    for i, (turns, _) in enumerate(members):
      row = []
      for turn in turns:
        row += [episode[i] + next(scaled_by_state[turn.state])] * turn.actions
      out.append(row)
    return out
  size = len(returns)
  by_member = {
      'grpo': plain(returns),
      'dr_grpo': [r - mean for r in returns],
      'rloo': [
          r - (sum(returns) - r) / (size - 1) for r in returns
      ],
  }[estimator]
  return [
      [a] * sum(t.actions for t in turns)
      for a, (turns, _) in zip(by_member, members)
  ]


# Eighths add up without rounding, so that a spread of 0 is one in float too.
_EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
_TURNS = st.lists(
    st.builds(
        Turn,
        actions=st.integers(1, 4),
        reward=st.one_of(st.none(), _EIGHTHS),
        state=st.sampled_from(['s0', 's1', 's2']),
    ),
    min_size=1,
    max_size=4,
)


class FanOutTest(parameterized.TestCase):

  @parameterized.parameters(*groups.ESTIMATORS)
  def test_E1_segments_do_not_enter(self, estimator):

    @hypothesis.settings(max_examples=25, deadline=None, database=None)
    @hypothesis.given(
        st.lists(st.tuples(_TURNS, _EIGHTHS), min_size=2, max_size=4),
        st.randoms(use_true_random=False),
        st.sampled_from([20, 33, 64]),
    )
    def check(members, random, row_length):
      rollouts = []
      for i, (turns, score) in enumerate(members):
        count = sum(t.actions for t in turns)
        cuts = [random.randint(0, count) for _ in range(random.randint(0, 5))]
        rollouts.append(
            group_cases.member(
                f'm{i}', turns, score, cuts=cuts, lead=random.randint(1, 3)
            )
        )
      random.shuffle(rollouts)
      gigpo = schema.GigpoConfig(gamma=0.5)
      found = group_cases.advantages(
          rollouts, estimator, row_length=row_length, gigpo=gigpo
      )
      want = expected(members, estimator, gamma=0.5)
      for i in range(len(members)):
        golden_io.assert_close(found[f'm{i}'], want[i], name=f'm{i}')

    check()


if __name__ == '__main__':
  absltest.main()
