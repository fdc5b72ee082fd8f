"""C1: when the critic's warm-up ends, and that the actor stayed what it was."""

import jax.numpy as jnp
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import warm_up
from rl_tpu.config import schema


def params(value: float = 1.0):
  return {'w': jnp.full((3, 2), value)}


def frozen(made: warm_up.WarmUp, variances, start: int = 0) -> list[bool]:
  """What each batch is told; a number for every batch that may be asked."""
  return [
      made.freezes(start + n, lambda ev=ev: ev, params())
      for n, ev in enumerate(variances)
  ]


class WarmUpTest(parameterized.TestCase):

  def make(self, **settings) -> warm_up.WarmUp:
    return warm_up.WarmUp(
        schema.CriticConfig(holdout_fraction=0.2, **settings)
    )

  def test_C1_without_a_variance_the_steps_decide(self):
    made = self.make(warmup_steps=3)
    never = lambda: self.fail('asked for a figure that decides nothing')
    found = [made.freezes(n, never, params()) for n in range(6)]
    self.assertEqual(found, [True] * 3 + [False] * 3)

  def test_C1_without_a_warm_up_nothing_is_hashed(self):
    made = self.make()
    self.assertFalse(made.freezes(0, lambda: None, params()))
    self.assertIsNone(made.actor)

  def test_C1_ends_when_steps_are_done_and_the_variance_is_reached(self):
    made = self.make(warmup_steps=2, warmup_min_ev=0.5)
    # High too early; then 0.49, undefined, 0.5; what comes after is not asked.
    found = frozen(made, [0.9, 0.9, 0.49, None, 0.5, 0.0])
    self.assertEqual(found, [True, True, True, True, False, False])

  @parameterized.parameters((None, 20), (4, 4))
  def test_C1_not_reached_in_time_stops_the_run(self, given, limit):
    made = self.make(
        warmup_steps=2, warmup_min_ev=0.5, warmup_max_steps=given
    )
    self.assertEqual(frozen(made, [0.1] * limit), [True] * limit)
    with self.assertRaises(RuntimeError) as caught:
      made.freezes(limit, lambda: 0.1, params())
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    self.assertIn('critic.warmup_min_ev=0.5', message)
    self.assertIn(f'critic.warmup_max_steps={limit}', message)
    self.assertIn('0.100', message)

  def test_C1_reached_at_the_last_moment_goes_on(self):
    made = self.make(warmup_steps=2, warmup_min_ev=0.5, warmup_max_steps=4)
    frozen(made, [0.1] * 4)
    self.assertFalse(made.freezes(4, lambda: 0.5, params()))

  def test_C1_a_changed_actor_is_an_error(self):
    made = self.make(warmup_steps=1)
    self.assertTrue(made.freezes(0, lambda: None, params()))
    with self.assertRaisesRegex(RuntimeError, 'parameters changed'):
      made.freezes(1, lambda: None, params(1.0000001))

  def test_C1_a_resumed_warm_up_goes_on_where_it_was(self):
    made = self.make(warmup_steps=3, warmup_min_ev=0.5)
    frozen(made, [0.1, 0.1])
    again = self.make(warmup_steps=3, warmup_min_ev=0.5)
    again.restore(made.state())
    self.assertEqual(again.actor, made.actor)
    # It compares with the actor of the start, not with that of the resume.
    with self.assertRaisesRegex(RuntimeError, 'parameters changed'):
      again.freezes(3, lambda: 0.9, params(2.0))
    self.assertEqual(frozen(again, [0.1, 0.2, 0.6], 2), [True, True, False])
    after = self.make(warmup_steps=3, warmup_min_ev=0.5)
    after.restore(again.state())
    self.assertEqual(frozen(after, [0.0], 5), [False])


if __name__ == '__main__':
  absltest.main()
