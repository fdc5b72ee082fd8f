"""Verifiers in worker processes: no score is never a score of 0."""

import time

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.types import termination as term
from rl_tpu.verifiers import pooled
from rl_tpu.verifiers import protocol
from tests.isolation import worlds

ARITHMETIC = 'rl_tpu.verifiers.reasoning_gym:ArithmeticVerifier'


class PooledVerifierTest(parameterized.TestCase):

  def verifier(self, **options) -> pooled.PooledVerifier:
    module = worlds.install(self)
    settings = options.pop('settings', {})
    made = pooled.PooledVerifier(f'{module}:Verifier', settings, **options)
    self.addCleanup(made.close)
    return made

  def test_a_users_verifier_by_import_path(self):
    made = self.verifier(settings={'right': 'yes'})
    self.assertEqual((made.verifier_id, made.version), ('kinds', '3'))
    scores = [made.score_async({'kind': k}).result() for k in ('yes', 'no')]
    self.assertEqual(scores[0], protocol.Score(1.0, True, {'length': 1.0}))
    self.assertEqual(scores[1], protocol.Score(0.0, False, {'length': 1.0}))

  @parameterized.parameters(
      ('hang', term.FaultCause.TIMEOUT, 'no answer within 1 s'),
      ('boom', term.FaultCause.VERIFIER, 'ZeroDivisionError: no score'),
      ('die', term.FaultCause.VERIFIER, 'code 3'),
      ('nan', term.FaultCause.VERIFIER, 'nan, which is no score'),
  )
  def test_K35_a_fault_is_no_score(self, kind, cause, message):
    made = self.verifier(timeout_s=1.0)
    start = time.monotonic()
    failing = made.score_async({'kind': kind})
    behind = made.score_async({'kind': 'right'})
    with self.assertRaisesRegex(protocol.VerifierFault, message) as caught:
      failing.result()
    self.assertEqual(caught.exception.fault_cause, cause)
    # The next score in line is not touched.
    self.assertEqual(behind.result().value, 1.0)
    self.assertLess(time.monotonic() - start, 10.0)

  def test_evidence_has_to_be_json(self):
    made = self.verifier()
    with self.assertRaises(ValueError):
      made.score_async({'kind': float('nan')})
    with self.assertRaises(TypeError):
      made.score_async({'kind': object()})

  def test_bad_settings_are_refused_at_once(self):
    with self.assertRaisesRegex(ValueError, 'verifier.settings.rigt.*right'):
      self.verifier(settings={'rigt': 'x'})
    with self.assertRaisesRegex(ValueError, 'verifier.target'):
      pooled.PooledVerifier('no_such_module:Verifier', {})

  def test_the_arithmetic_verifier_in_a_worker(self):
    made = pooled.PooledVerifier(ARITHMETIC, {'partial': 0.5}, timeout_s=1.0)
    self.addCleanup(made.close)
    problems = [
        {'generator': g, 'answer': a, 'entry': {'answer': a}}
        for g, a in (('chain_sum', '3'), ('basic_arithmetic', '8'))
    ]
    calls = [
        made.score_async({'problems': problems, 'reported': reported})
        for reported in (['3', '8'], ['3', '9'], [])
    ]
    # 0.5 * all right + 0.5 * share right.
    self.assertEqual([c.result().value for c in calls], [1.0, 0.25, 0.0])


if __name__ == '__main__':
  absltest.main()
