"""O8: what lies between a resume and the next update of the actor."""

import contextlib
import json
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import gates
from rl_tpu.assembly import run as run_lib
from rl_tpu.assembly import watching
from rl_tpu.config import schema

Gate = gates.Gate


class GatesTest(parameterized.TestCase):

  def make(self, found, *, saved=None, has_critic=True):
    """Gates at ALIGNED whose next batches measure `found`, one by one."""
    lines = []
    made = gates.Gates(
        schema.ResumeConfig(max_bias=0.1, max_ece=0.2),
        has_critic=has_critic,
        note=lines.append,
    )
    found = iter(found)
    made._calibration = lambda batch, scored: next(found)
    if saved is not None:
      made.restore({'calibration': saved, 'critic_only': 2})
    for gate in (Gate.RESTORED, Gate.SYNCED, Gate.ALIGNED):
      made.pass_(gate, 'it is so')
    return made, lines

  def test_O8_a_start_opens_with_its_first_batch_and_says_nothing(self):
    made, lines = self.make([{'bias': 5.0, 'ece': 5.0}])
    with self.assertRaisesRegex(RuntimeError, 'after ALIGNED'):
      made.require_open()
    self.assertFalse(made.holds_actor(None, None))
    made.require_open()
    self.assertEqual(lines, [])
    self.assertEqual(
        made.figures(), {'run/gate': 5.0, 'run/critic_only_updates': 0.0}
    )

  def test_O8_gates_have_one_order(self):
    made = gates.Gates(schema.ResumeConfig(), has_critic=True, note=print)
    with self.assertRaisesRegex(
        RuntimeError, 'SYNCED is asked for after CLOSED'
    ):
      made.pass_(Gate.SYNCED, '')
    made.pass_(Gate.RESTORED, '')
    made.pass_(Gate.SYNCED, '')
    with self.assertRaisesRegex(RuntimeError, 'asked for after SYNCED'):
      made.holds_actor(None, None)
    with self.assertRaisesRegex(RuntimeError, 'OPEN is asked for after SYNCED'):
      made.pass_(Gate.OPEN, '')

  def test_O8_a_critic_that_is_off_is_trained_alone_until_it_is_back(self):
    made, lines = self.make(
        [
            {'bias': 0.42, 'ece': 0.1},  # 0.12 away.
            {'bias': 0.35, 'ece': 0.35},  # The other one, 0.25 away.
            {'bias': 0.39, 'ece': 0.29},
            {'bias': 9.0, 'ece': 9.0},  # Open: not looked at any more.
        ],
        saved={'bias': 0.30, 'ece': 0.10},
    )
    held = []
    for _ in range(2):
      held.append(made.holds_actor(None, None))
      with self.assertRaises(RuntimeError):
        made.require_open()
      # Killed here, it has to come back to what was saved first.
      self.assertEqual(
          made.state({'bias': 0.4, 'ece': 0.4})['calibration'],
          {'bias': 0.30, 'ece': 0.10},
      )
    held += [made.holds_actor(None, None) for _ in range(2)]
    self.assertEqual(held, [True, True, False, False])
    self.assertEqual(made.critic_only, 4)  # Two of the run before.
    self.assertEqual(made.figures()['run/gate'], 5.0)
    self.assertEqual(
        [line.split(':')[0].split(' is ')[0] for line in lines],
        [
            'RESTORED', 'SYNCED', 'ALIGNED', 'critic/bias', 'critic/ece',
            'CALIBRATED', 'OPEN',
        ],
    )
    self.assertIn('resume.max_bias = 0.1', lines[3])

  @parameterized.parameters(
      ([{'bias': None, 'ece': None}], {'bias': 0.3, 'ece': 0.1}),
      ([{'bias': 0.9, 'ece': 0.9}], {'bias': None, 'ece': None}),
      ([None], {'bias': 0.3, 'ece': 0.1}),
  )
  def test_O8_nothing_to_compare_holds_nothing(self, found, saved):
    made, _ = self.make(found, saved=saved)
    self.assertFalse(made.holds_actor(None, None))

  def test_O7_the_latest_figures_are_saved(self):
    made, _ = self.make([{'bias': 0.1, 'ece': 0.2}])
    made.holds_actor(None, None)
    made.holds_actor(None, None)
    state = json.loads(json.dumps(made.state({'bias': 0.3, 'ece': 0.4})))
    self.assertEqual(
        state, {'calibration': {'bias': 0.3, 'ece': 0.4}, 'critic_only': 0}
    )

  @parameterized.parameters(True, False)
  def test_O8_a_held_actor_is_not_trained(self, held):
    asked = []
    updater = types.SimpleNamespace(
        update=lambda state, scored, **how: (
            state, asked.append(how['train_actor'])
        )
    )
    run = types.SimpleNamespace(
        clock=types.SimpleNamespace(phase=lambda _: contextlib.nullcontext()),
        gates=types.SimpleNamespace(
            holds_actor=lambda batch, scored: held, require_open=lambda: None
        ),
        updater=updater,
        world=types.SimpleNamespace(watch=contextlib.nullcontext),
        state='state',
        _sources_to_measure=lambda batch: None,
    )
    batch = types.SimpleNamespace(
        policy_weight_BT=0, critic_weight_BT=0, minibatches=()
    )
    with mock.patch.object(watching, 'freezes', lambda *_: False):
      run_lib.TrainingRun.update(run, batch, None, None)
    self.assertEqual(asked, [not held])


if __name__ == '__main__':
  absltest.main()
