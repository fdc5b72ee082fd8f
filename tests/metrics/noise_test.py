"""D8: how far a verifier agrees with itself."""

import dataclasses
import json

from absl.testing import absltest

from rl_tpu.metrics import noise
from rl_tpu.metrics import tags
from tests import group_cases


def rollout(name, version='1', **counters):
  made = group_cases.member(name, [group_cases.Turn(1)], 0.0)
  counters = {f'verifier_{n}': float(v) for n, v in counters.items()}
  return dataclasses.replace(
      made, verifier_version=version, counters=counters
  )


class NoiseTest(absltest.TestCase):

  def test_D8_disagreement_and_variance_by_version(self):
    found = noise.VerifierNoise()
    self.assertIsNone(found.disagreement())
    differing = found.record([
        rollout('a', rescored=1),
        rollout('b', rescored=1, disagreed=1, squared_gap=0.5),
        rollout('c', '2', rescored=1),
        rollout('d'),
    ])
    self.assertEqual(differing, ['b'])
    self.assertAlmostEqual(found.disagreement(), 1 / 3)
    figures = found.figures()
    self.assertEqual(figures['reward/verifier_rescored'], 3)
    self.assertEqual(figures['reward/verifier_disagreed'], 1)
    self.assertEqual(figures['reward/verifier_disagreement/1'], 0.5)
    # Two pairs, squared gaps 0 and 0.5: 0.5 / 2 / 2.
    self.assertEqual(figures['reward/verifier_variance/1'], 0.125)
    self.assertEqual(figures['reward/verifier_disagreement/2'], 0.0)
    self.assertEqual(tags.unknown(figures), [])

  def test_D8_counts_add_up_and_survive_a_checkpoint(self):
    found = noise.VerifierNoise()
    found.record([rollout('a', rescored=1, disagreed=1, squared_gap=1)])
    again = noise.VerifierNoise()
    again.restore(json.loads(json.dumps(found.state())))
    again.record([rollout('b', rescored=1)])
    self.assertEqual(again.disagreement(), 0.5)
    self.assertEqual(again.figures()['reward/verifier_variance/1'], 0.25)
    # The restored counts are the second one's own.
    self.assertEqual(found.disagreement(), 1.0)

  def test_D8_a_failed_second_score_is_no_agreement(self):
    found = noise.VerifierNoise()
    self.assertEqual(found.record([rollout('a', rescore_faults=1)]), [])
    self.assertIsNone(found.disagreement())

  def test_D8_a_deterministic_verifier_that_differs_stops_the_run(self):
    with self.assertRaisesRegex(RuntimeError, "'v'.*deterministic.*b, c"):
      noise.check_deterministic(
          ['b', 'c'], verifier_id='v', deterministic=True
      )
    noise.check_deterministic(['b'], verifier_id='v', deterministic=False)
    noise.check_deterministic([], verifier_id='v', deterministic=True)


if __name__ == '__main__':
  absltest.main()
