"""L6, L12, L18, L19, L21: figures of an update, and what is written of it."""

import json
import pathlib
import types

import numpy as np
from absl.testing import absltest

from rl_tpu.assembly import incidents
from rl_tpu.assembly import update_figures
from rl_tpu.learner import report as report_lib
from rl_tpu.losses import statistics
from rl_tpu.metrics import tags
from rl_tpu.records import dumps
from tests.learner import small


def table(**columns) -> np.ndarray:
  """The rollout table with some columns set, padded as on the device."""
  out = np.zeros((16, len(statistics.ROLLOUT_FIGURES)), np.float32)
  for name, values in columns.items():
    column = statistics.ROLLOUT_FIGURES.index(name)
    out[: len(values), column] = values
  return out


def report(**changes) -> report_lib.Report:
  fields = {
      'actor': {}, 'first': {}, 'critic': {},
      'skipped': {'actor': [], 'critic': []},
      'reasons': {'actor': [], 'critic': []}, 'empty': 0, 'strata': {},
      'rollouts': None, 'expert_load': None, 'overflow': {},
      'source_norms': {},
  }
  return report_lib.Report(**(fields | changes))


class UpdateFiguresTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.batch = small.batch(count=4)
    self.counters = {}

  def figures(self, **changes):
    found = update_figures.figures(
        report(**changes), self.batch,
        lambda name, value: self.counters.update(
            {name: self.counters.get(name, 0.0) + value}
        ),
    )
    self.assertEqual(tags.unknown(found), [])
    return found

  def test_experts_have_tags_where_there_are_some(self):
    found = self.figures(expert_load=np.array([[3.0, 1.0]]))
    self.assertEqual(found['policy/expert_busiest'], 0.75)
    self.assertNotIn('policy/expert_busiest', self.figures())

  def test_L19_one_tag_a_stratum_and_figure(self):
    found = self.figures(
        strata={
            ('type', 'tool_name'): {'entropy': 0.5, 'reference_kl_k1': 0.0},
            ('length', '64'): {'ratio': 1.5},
        }
    )
    self.assertEqual(found['policy/type/tool_name/entropy'], 0.5)
    self.assertEqual(found['policy/length/64/ratio'], 1.5)
    # Without a reference there is no KL to it.
    self.assertNotIn('policy/type/tool_name/reference_kl_k1', found)

  def test_L6_L12_L18_by_family_and_by_source(self):
    # Four rollouts of one family and source: 10 tokens.
    found = self.figures(
        actor={'reference_kl_k1': 0.0, 'reference_kl_k3': 0.0},
        rollouts=table(
            count=[1, 2, 3, 4], policy_loss=[1.0, 0.0, 3.0, 1.0],
            reference_kl_k1=[0.1, 0.2, 0.3, 0.4], proxy=[0.5, 0.0, 0.25, 0.25],
        ),
    )
    self.assertAlmostEqual(found['loss/policy_family/f'], 0.5)
    self.assertAlmostEqual(found['policy/kl_reference_k1_family/f'], 0.1)
    self.assertAlmostEqual(found['policy/proxy_source/s'], 1.0)

  def test_L18_gradient_norms_carry_the_name_of_their_source(self):
    found = self.figures(source_norms={0: 2.5})
    self.assertEqual(found['policy/grad_norm_source/s'], 2.5)

  def test_L21_counters_add_up_over_updates(self):
    for _ in range(2):
      found = self.figures(
          overflow={'actor_nonfinite_logits': 3.0},
          actor={'ratio_saturated_count': 2.0},
          skipped={'actor': [0], 'critic': []},
          reasons={'actor': [('loss',)], 'critic': []}, empty=1,
      )
    self.assertEqual(found['perf/overflow/actor_nonfinite_logits'], 3.0)
    self.assertEqual(
        self.counters,
        {'actor_steps_skipped': 2, 'critic_steps_skipped': 0, 'steps_empty': 2,
         'ratio_saturated': 4.0, 'actor_nonfinite_logits': 6.0},
    )

  def record(self, folder, step, **changes):
    """Writes incidents of a batch whose values are NaN in segment 1 of r2."""
    shape = self.batch.segments.rows.token_BT.shape
    zeros = np.zeros(shape, np.float32)
    value_BT = zeros.copy()
    rows = self.batch.unpack(value_BT)
    rows[2][1][self.batch.rollouts[2].segments[1].is_action] = np.nan
    scored = types.SimpleNamespace(
        value_BT=value_BT, base_logp_BT=zeros, reference_logp_BT=zeros,
        estimates=types.SimpleNamespace(reward_BT=zeros, return_BT=zeros),
    )
    return incidents.record(
        folder, step, report(**changes), self.batch, scored, zeros
    )

  def test_L18_incidents_name_task_rollout_and_segments(self):
    folder = self.create_tempdir().full_path
    self.assertEqual(self.record(folder, 3, rollouts=table()), [])
    path = pathlib.Path(folder) / incidents.FILE
    self.assertFalse(path.exists())
    with self.assertLogs(level='ERROR') as logs:
      dumped = self.record(
          folder, 7,
          skipped={'actor': [0, 0], 'critic': []},
          reasons={'actor': [('loss',), ('loss',)], 'critic': []},
          rollouts=table(over_limit=[0, 5, 0, 1]),
      )
    self.assertLen(logs.output, 1)  # Two epochs, one minibatch.
    count = int(self.batch.rollouts[2].segments[1].is_action.sum())
    for part in ('update 7', f'value ({count}), loss', 'rollout r2, segment 1'):
      self.assertIn(part, logs.output[0])
    skipped, over = [json.loads(l) for l in path.read_text().splitlines()]
    self.assertEqual(skipped['kind'], 'nonfinite')
    self.assertEqual((skipped['update'], skipped['network']), (7, 'actor'))
    for named, rollout in zip(skipped['rollouts'], self.batch.rollouts):
      self.assertEqual(named['task_id'], rollout.task_id)
      self.assertEqual(named['rollout_id'], rollout.rollout_id)
      self.assertEqual(named['segments'], list(range(len(rollout.segments))))
    self.assertEqual(over['tokens'], {'r1': 5, 'r3': 1})
    self.assertEqual(dumped, ['dumps/000007-actor-0.npz'])
    self.assertEqual(skipped['dump'], dumped[0])

  def test_L18_the_dump_holds_what_is_not_finite_and_where(self):
    folder = self.create_tempdir().full_path
    with self.assertLogs(level='ERROR'):
      (dumped,) = self.record(
          folder, 7, skipped={'actor': [], 'critic': [0]},
          reasons={'actor': [], 'critic': [('loss',)]},
      )
    found, arrays = dumps.read(pathlib.Path(folder) / dumped)
    segment = self.batch.rollouts[2].segments[1]
    (bad,) = found['tensors']
    first = int(np.flatnonzero(segment.is_action)[0])
    self.assertEqual(bad['name'], 'value')
    self.assertEqual(bad['count'], segment.is_action.sum())
    self.assertEqual(
        bad['places'],
        [{
            'task_id': self.batch.rollouts[2].task_id, 'rollout_id': 'r2',
            'segment': 1, 'position': first, 'value': 'nan',
        }],
    )
    # The tokens of the bad entries are those of the segment's actions.
    is_bad = np.isnan(arrays['value'])
    np.testing.assert_array_equal(
        arrays['token'][is_bad], segment.token[segment.is_action]
    )
    self.assertEqual(set(arrays['rollout'][is_bad]), {2})


if __name__ == '__main__':
  absltest.main()
