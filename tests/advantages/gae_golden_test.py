"""Golden vectors of section 3, through admission, packing and the jit."""

from typing import Any

import jax
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import gae
from rl_tpu.config import schema
from rl_tpu.sharding import mesh as mesh_lib
from tests import golden_case
from tests import golden_checks
from tests import golden_io


def mesh(devices: int) -> jax.sharding.Mesh:
  return mesh_lib.make_mesh(
      schema.MeshConfig(), jax.devices()[:devices]
  )


def check_cut_variants(golden: dict[str, Any], **options: Any) -> None:
  """Advantages and targets under every treatment of the cut."""
  (rollout,) = golden['rollouts']
  targets = golden['expected']['return']
  for cut in gae.CUTS:
    outcome = golden_case.run(golden, cut=cut, **options)
    advantage = outcome.actions(outcome.estimates.advantage_BT)
    golden_io.assert_close(
        advantage[rollout['rollout_id']], golden['expected'][cut], name=cut
    )
    # `position_scaled` is of the policy's advantages only (G20).
    expected = targets['continue' if cut == 'position_scaled' else cut]
    returned = outcome.actions(outcome.estimates.return_BT)
    golden_io.assert_close(returned[rollout['rollout_id']], expected, name=cut)


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*golden_io.named('gae_hand'))
  def test_hand(self, golden):
    """R6, T2-T8, T10, T11, G2-G8, G10-G12, G14, G16, G17, G19."""
    golden_checks.check_all(golden_case.run(golden), golden)

  @parameterized.named_parameters(*golden_io.named('gae_random'))
  def test_random(self, golden):
    """Sections 3.1 to 3.6 together."""
    golden_checks.check_all(golden_case.run(golden), golden)

  @parameterized.named_parameters(*golden_io.named('gae_invariance'))
  def test_G21_G24_G25_invariance(self, golden):
    base = golden['base']
    outcomes = [(golden_case.run(base), base['expected'])]
    golden_checks.check(*outcomes[0])
    for variant in golden['variants']:
      outcome = golden_case.run(base, variant['rollouts'])
      golden_checks.check(outcome, variant['expected'])
      outcomes.append((outcome, variant['expected']))
    for outcome, _ in outcomes[1:]:
      for name, array in golden_case.columns(outcome).items():
        reference = outcomes[0][0]
        first = reference.actions(golden_case.columns(reference)[name])
        for rollout_id, values in outcome.actions(array).items():
          golden_io.assert_close(values, first[rollout_id], name=name)

  @parameterized.named_parameters(*golden_io.named('gae_cut_variants'))
  def test_G20_cut_variants(self, golden):
    check_cut_variants(golden)


class ShardedGoldenTest(parameterized.TestCase):
  """The same on a mesh of eight devices, rows divided over all of them."""

  @parameterized.named_parameters(*golden_io.named('gae_hand'))
  def test_hand(self, golden):
    golden_checks.check_all(golden_case.run(golden, mesh=mesh(8)), golden)

  @parameterized.named_parameters(*golden_io.named('gae_random'))
  def test_G23_random(self, golden):
    golden_checks.check_all(golden_case.run(golden, mesh=mesh(8)), golden)

  @parameterized.named_parameters(*golden_io.named('gae_invariance'))
  def test_G21_G24_G25_invariance(self, golden):
    base = golden['base']
    golden_checks.check(golden_case.run(base, mesh=mesh(8)), base['expected'])
    for variant in golden['variants']:
      outcome = golden_case.run(base, variant['rollouts'], mesh=mesh(8))
      golden_checks.check(outcome, variant['expected'])

  @parameterized.named_parameters(*golden_io.named('gae_cut_variants'))
  def test_G20_cut_variants(self, golden):
    check_cut_variants(golden, mesh=mesh(8))


if __name__ == '__main__':
  absltest.main()
