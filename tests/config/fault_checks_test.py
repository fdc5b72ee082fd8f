"""Refusals of worker limits and of what a run bears (A5, L18, O6)."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import fault_checks
from rl_tpu.config import overrides
from rl_tpu.config import schema


def config(*assignments: str) -> schema.ExperimentConfig:
  return overrides.apply(schema.ExperimentConfig('test'), assignments)


class FaultChecksTest(parameterized.TestCase):

  def refusal(self, *assignments: str) -> str:
    with self.assertRaises(ValueError) as caught:
      fault_checks.check(config(*assignments))
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    return message

  def test_the_defaults_pass(self):
    fault_checks.check(config())
    fault_checks.check(
        config('environment.isolation=process', 'environment.memory_gib=2')
    )

  @parameterized.parameters(
      ('environment.isolation=thread', "environment.isolation='thread'"),
      ('environment.workers=0', 'environment.workers=0'),
      ('environment.start_timeout_s=0', 'environment.start_timeout_s=0.0'),
      ('environment.step_timeout_s=-1', 'environment.step_timeout_s=-1.0'),
      ('environment.close_timeout_s=0', 'environment.close_timeout_s=0.0'),
      ('environment.start_retries=-1', 'environment.start_retries=-1'),
      ('environment.memory_gib=0', 'environment.memory_gib=0.0'),
      ('verifier.workers=0', 'verifier.workers=0'),
      ('verifier.start_timeout_s=0', 'verifier.start_timeout_s=0.0'),
      ('verifier.timeout_s=0', 'verifier.timeout_s=0.0'),
      ('verifier.memory_gib=-1', 'verifier.memory_gib=-1.0'),
      ('faults.max_share=1.5', 'faults.max_share=1.5'),
      ('faults.max_share=-0.1', 'faults.max_share=-0.1'),
      ('faults.sampler_restarts=-1', 'faults.sampler_restarts=-1'),
      ('faults.max_skipped=0', 'faults.max_skipped=0'),
      ('faults.device_wall_s=0', 'faults.device_wall_s=0.0'),
      ('resume.max_bias=0', 'resume.max_bias=0.0'),
      ('resume.max_ece=-1', 'resume.max_ece=-1.0'),
  )
  def test_A5_L18_O6_refuses(self, assignment, named):
    self.assertStartsWith(self.refusal(assignment), named)

  def test_a_memory_limit_needs_a_process(self):
    message = self.refusal('environment.memory_gib=2')
    self.assertStartsWith(message, 'environment.memory_gib=2.0')
    self.assertIn('environment.isolation=process', message)


if __name__ == '__main__':
  absltest.main()
