"""L3, L6, L10, L13 to L15, L18, C10, C11: settings that contradict."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import objective_checks
from rl_tpu.config import overrides
from rl_tpu.config import schema

GROUP = ('advantage.estimator=grpo', 'group.size=4')
HL_GAUSS = ('critic.head=hl_gauss',)
SHARED = ('critic.sharing=shared_backbone',)


def config(*assignments: str) -> schema.ExperimentConfig:
  return overrides.apply(schema.ExperimentConfig('test'), assignments)


class ObjectiveChecksTest(parameterized.TestCase):

  def refusal(self, *assignments: str) -> str:
    with self.assertRaises(ValueError) as caught:
      objective_checks.check(config(*assignments))
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    return message

  def passes(self, *assignments: str) -> None:
    objective_checks.check(config(*assignments))

  def test_defaults_pass(self):
    self.passes()

  @parameterized.parameters(
      ('clip.eps_low=0', 'clip.eps_low=0.0'),
      ('clip.eps_high=0', 'clip.eps_high=0.0'),
      ('dis.eps_low=1.1', 'dis.eps_low=1.1'),
      ('dis.eps_high=-1', 'dis.eps_high=-1.0'),
      ('gspo.eps_low=0', 'gspo.eps_low=0.0'),
      ('cispo.eps_high=0', 'cispo.eps_high=0.0'),
      ('policy.loss=ppo', 'policy.loss='),
      ('policy.correction=clip', 'policy.correction='),
      ('policy.is_low=0', 'policy.is_low=0.0'),
      ('loss.aggregation=mean', 'loss.aggregation='),
      ('loss.entropy_by_type.verb=0.1', 'loss.entropy_by_type='),
      ('limits.ratio=0', 'limits.ratio=0.0'),
      ('log.source_grad_every=-1', 'log.source_grad_every=-1'),
      ('log.profile_first=-1', 'log.profile_first=-1'),
      ('log.profile_first=5', 'log.profile_last=0'),
      ('log.profile_last=5', 'log.profile_last=5'),
      ('critic.head=linear', 'critic.head='),
      ('critic.sharing=both', 'critic.sharing='),
  )
  def test_single_settings(self, assignment, named):
    self.assertStartsWith(self.refusal(assignment), named)

  @parameterized.parameters('tis', 'icepop', 'mis', 'seq_mis')
  def test_L13_a_correction_in_behavior_mode_is_refused(self, kind):
    message = self.refusal(f'policy.correction={kind}')
    self.assertStartsWith(message, 'policy.correction=')
    self.assertIn('policy.baseline=decoupled', message)
    self.passes(f'policy.correction={kind}', 'policy.baseline=decoupled')

  @parameterized.parameters((2.0, 2.0), (3.0, 2.0))
  def test_L13_bounds_in_the_wrong_order_are_refused(self, low, high):
    message = self.refusal(f'policy.is_low={low}', f'policy.is_high={high}')
    self.assertStartsWith(message, f'policy.is_low={low}')
    self.assertIn('policy.is_high', message)

  def test_L14_dis_with_decoupled_or_a_correction_is_refused(self):
    base = ('policy.loss=dis', 'policy.baseline=decoupled')
    self.assertStartsWith(self.refusal(*base), 'policy.baseline=')
    message = self.refusal('policy.loss=dis', 'policy.correction=mis')
    self.assertStartsWith(message, 'policy.correction=')
    self.passes('policy.loss=dis')

  @parameterized.parameters('dis', 'gspo', 'cispo')
  def test_L3_dual_clip_without_the_clip_is_refused(self, loss):
    message = self.refusal(
        f'policy.loss={loss}', 'clip.dual=3', 'loss.aggregation=rollout_mean'
    )
    self.assertStartsWith(message, 'clip.dual=3.0')
    self.passes('clip.dual=3')

  @parameterized.parameters('token', 'segment_mean', 'constant')
  def test_L15_gspo_weighs_rollouts_alike(self, mode):
    message = self.refusal(
        'policy.loss=gspo', f'loss.aggregation={mode}',
        *(('loss.constant=8',) if mode == 'constant' else ()),
    )
    self.assertStartsWith(message, 'loss.aggregation=')
    self.assertIn('rollout_mean', message)

  @parameterized.parameters('rollout_mean', 'task_mean', 'task_rollout_mean')
  def test_L15_gspo_with_means_of_rollouts_passes(self, mode):
    self.passes('policy.loss=gspo', f'loss.aggregation={mode}')

  def test_L8_constant_aggregation_needs_its_constant(self):
    base = ('loss.aggregation=constant',)
    self.assertStartsWith(self.refusal(*base), 'loss.constant=None')
    self.passes(*base, 'loss.constant=64')
    message = self.refusal('loss.constant=64')
    self.assertStartsWith(message, 'loss.constant=64.0')
    self.assertIn('token', message)

  def test_L10_renormalising_without_a_gate_is_refused(self):
    base = ('loss.renormalise_gated=true',)
    self.assertStartsWith(self.refusal(*base), 'loss.renormalise_gated=True')
    # tis cuts weights and drops no token.
    decoupled = ('policy.baseline=decoupled', 'policy.correction=tis')
    self.assertStartsWith(
        self.refusal(*base, *decoupled), 'loss.renormalise_gated=True'
    )
    self.passes(*base, 'policy.loss=dis')
    self.passes(*base, decoupled[0], 'policy.correction=icepop')
    self.passes(*base, 'staleness.over=mask')

  def test_L6_k1_in_the_loss_needs_importance(self):
    base = ('kl.in=loss', 'kl.estimator=k1')
    self.assertStartsWith(self.refusal(*base), 'kl.estimator=')
    self.passes(*base, 'kl.importance=true')

  @parameterized.parameters(
      ('((10,0.1),(0,0.2))', 'order'),
      ('((0,0.1,3),)', 'points'),
      ('((0,-0.1),(5,0.0))', 'at least 0'),
      ('-1', 'at least 0'),
  )
  def test_L6_schedules_that_are_none(self, text, cure):
    message = self.refusal('kl.in=loss', f'kl.coef={text}')
    self.assertStartsWith(message, 'kl.coef=')
    self.assertIn(cure, message)

  def test_L6_schedules(self):
    self.passes('kl.in=loss', 'kl.coef=((0,0.1),(100,0.02),(100,0.0))')
    found = config('kl.in=loss', 'kl.coef=((0, 0.1), (100, 0))').kl.coef
    self.assertEqual(found, ((0, 0.1), (100, 0)))

  @parameterized.parameters(
      ('kl.coef=0.1', 'kl.coef=0.1'),
      ('kl.coef=((0,0.1),)', 'kl.coef='),
      ('kl.by_type.stop=0.5', 'kl.by_type='),
  )
  def test_L6_kl_settings_without_a_place_are_refused(self, assignment, named):
    message = self.refusal(assignment)
    self.assertStartsWith(message, named)
    self.assertIn('kl.in', message)

  def test_L6_types_of_the_kl_factors(self):
    base = ('kl.in=loss', 'kl.coef=0.1')
    self.assertStartsWith(
        self.refusal(*base, 'kl.by_type.verb=2.0'), 'kl.by_type='
    )
    self.assertStartsWith(
        self.refusal(*base, 'kl.by_type.stop=-1.0'), 'kl.by_type.stop=-1.0'
    )
    self.passes(*base, 'kl.by_type.stop=0.0')

  def test_C11_value_clip_with_hl_gauss_is_refused(self):
    message = self.refusal(*HL_GAUSS, 'critic.value_clip=0.2')
    self.assertStartsWith(message, 'critic.value_clip=0.2')
    self.assertIn('critic.head=mse', message)
    self.passes(*HL_GAUSS)

  @parameterized.parameters(
      ('critic.bins=1', 'critic.bins=1'),
      ('critic.sigma=0', 'critic.sigma=0.0'),
      ('critic.vmin=1', 'critic.vmin=1.0'),
      ('critic.head_bias=2', 'critic.head_bias=2.0'),
  )
  def test_C11_bins_that_cannot_be(self, assignment, named):
    self.assertStartsWith(self.refusal(*HL_GAUSS, assignment), named)
    # Nothing of it matters to a head that is one number.
    self.passes(assignment)

  @parameterized.parameters(
      ('critic.warmup_steps=2', 'critic.warmup_steps=2'),
      (
          'critic.updates_per_actor_update=2',
          'critic.updates_per_actor_update=2',
      ),
      ('critic.freeze=*/query/*', 'critic.freeze='),
  )
  def test_C10_a_shared_backbone_has_no_critic_of_its_own(
      self, assignment, named
  ):
    message = self.refusal(*SHARED, assignment)
    self.assertStartsWith(message, named)
    self.assertIn('critic.sharing=separate', message)
    self.passes(*SHARED)

  def test_L4_value_coef_needs_a_shared_backbone(self):
    self.assertStartsWith(
        self.refusal('loss.value_coef=0.5'), 'loss.value_coef=0.5'
    )
    self.passes(*SHARED, 'loss.value_coef=0.5')

  @parameterized.parameters(
      ('critic.freeze=*/query/*',), ('critic.sharing=shared_backbone',)
  )
  def test_C10_group_estimators_have_no_critic(self, assignment):
    message = self.refusal(*GROUP, assignment)
    self.assertStartsWith(message, assignment.split('=')[0])
    self.assertIn('no critic', message)


if __name__ == '__main__':
  absltest.main()
