"""Refusals of staleness, alignment, alarm and warm-up settings (C1, O2, O4)."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import offpolicy_checks
from rl_tpu.config import overrides
from rl_tpu.config import schema

WARM_UP = (
    'critic.warmup_min_ev=0.2',
    'critic.warmup_steps=3',
    'critic.holdout_fraction=0.1',
)


def config(*assignments: str) -> schema.ExperimentConfig:
  return overrides.apply(schema.ExperimentConfig('test'), assignments)


class OffpolicyChecksTest(parameterized.TestCase):

  def refusal(self, *assignments: str) -> str:
    with self.assertRaises(ValueError) as caught:
      offpolicy_checks.check(config(*assignments))
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    return message

  def test_the_defaults_pass(self):
    offpolicy_checks.check(config())

  @parameterized.parameters(
      ('staleness.max_version_gap=-1', 'staleness.max_version_gap=-1'),
      ('staleness.max_kl=0', 'staleness.max_kl=0.0'),
      ('staleness.max_queue_seconds=-2', 'staleness.max_queue_seconds=-2.0'),
      ('staleness.over=drop', "staleness.over='drop'"),
      ('alignment.max_abs=0', 'alignment.max_abs=0.0'),
      ('alignment.mean_abs=-1', 'alignment.mean_abs=-1.0'),
      ('alignment.every=-1', 'alignment.every=-1'),
      ('alarm.window=3', 'alarm.window=3'),
      ('alarm.one_sided=0.4', 'alarm.one_sided=0.4'),
      ('alarm.one_sided=1.1', 'alarm.one_sided=1.1'),
      ('critic.warmup_max_steps=5', 'critic.warmup_max_steps=5'),
  )
  def test_O2_O4_C13_refuses(self, assignment, named):
    self.assertStartsWith(self.refusal(assignment), named)

  def test_O2_kl_needs_ratios_that_are_valid(self):
    message = self.refusal(
        'staleness.max_kl=0.1', 'sampling.allow_unreplayable=true'
    )
    self.assertStartsWith(message, 'staleness.max_kl=0.1')

  def test_O4_a_limit_of_a_check_that_is_off_is_refused(self):
    message = self.refusal(
        'alignment.enabled=false', 'alignment.max_abs=0.001'
    )
    self.assertStartsWith(message, 'alignment.max_abs=0.001')

  def test_O4_limits_follow_the_dtype_unless_they_are_given(self):
    self.assertEqual(config().alignment.limits('float32'), (1e-4, 1e-5))
    self.assertEqual(config().alignment.limits('bfloat16'), (0.5, 0.02))
    given = config('alignment.mean_abs=0.3').alignment
    self.assertEqual(given.limits('float32'), (1e-4, 0.3))

  @parameterized.parameters(
      ('critic.warmup_min_ev=1.5', 'critic.warmup_min_ev=1.5'),
      ('critic.warmup_steps=0', 'critic.warmup_min_ev=0.2'),
      ('critic.holdout_fraction=0', 'critic.warmup_min_ev=0.2'),
      ('critic.values=batch_mean', 'critic.warmup_min_ev=0.2'),
      ('advantage.estimator=grpo', 'critic.warmup_min_ev=0.2'),
      ('critic.warmup_max_steps=2', 'critic.warmup_max_steps=2'),
  )
  def test_C1_an_exit_that_cannot_be_reached_is_refused(self, changed, named):
    offpolicy_checks.check(config(*WARM_UP))
    self.assertStartsWith(self.refusal(*WARM_UP, changed), named)


if __name__ == '__main__':
  absltest.main()
