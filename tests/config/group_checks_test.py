"""Refusals of section 5 and 9: each names setting, value and cure."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import learning_checks
from rl_tpu.config import overrides
from rl_tpu.config import schema

GRPO = ('advantage.estimator=grpo', 'group.size=4')
ESTIMATORS = ('grpo', 'dr_grpo', 'rloo', 'process', 'gigpo')


class RefusalTest(parameterized.TestCase):

  def check(self, *assignments: str) -> None:
    config = overrides.apply(schema.ExperimentConfig('test'), assignments)
    learning_checks.check(config)

  def refusal(self, *assignments: str) -> str:
    with self.assertRaises(ValueError) as caught:
      self.check(*assignments)
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    return message

  @parameterized.parameters(
      ('group.on_mismatch=merge', 'group.on_mismatch='),
      ('group.max_rounds=0', 'group.max_rounds=0'),
      ('group.min_size=1', 'group.min_size=1'),
      ('group.eps=-1', 'group.eps=-1.0'),
      ('group.std_floor=-1', 'group.std_floor=-1.0'),
      ('gigpo.gamma=1.1', 'gigpo.gamma=1.1'),
      ('gigpo.omega=-1', 'gigpo.omega=-1.0'),
      ('gigpo.norm=max', 'gigpo.norm='),
      ('gigpo.anchor=tokens', 'gigpo.anchor='),
      ('reward.mode=sum', 'reward.mode='),
      ('reward.norm=std', 'reward.norm='),
      ('reward.std_floor=-1', 'reward.std_floor=-1.0'),
      ('data.curriculum=hard', 'data.curriculum='),
      ('data.easy_weight=2', 'data.easy_weight=2.0'),
      ('data.easier_rate=-0.1', 'data.easier_rate=-0.1'),
      ('data.min_weight=0', 'data.min_weight=0.0'),
      ('data.min_outcomes=0', 'data.min_outcomes=0'),
      ('data.success_window=3', 'data.success_window=3'),
      ('data.mix.math=-1', 'data.mix.math=-1'),
      ('data.mix.math=0', 'data.mix='),
      ('verifier.rescore_share=1.5', 'verifier.rescore_share=1.5'),
  )
  def test_out_of_range(self, assignment, named):
    self.assertStartsWith(self.refusal(assignment), named)

  @parameterized.parameters(*ESTIMATORS)
  def test_E2_E7_group_size_1(self, estimator):
    message = self.refusal(f'advantage.estimator={estimator}')
    self.assertStartsWith(message, 'group.size=1')
    self.assertIn('advantage.estimator=gae', message)

  @parameterized.product(
      estimator=('grpo', 'process', 'gigpo'),
      name=('budget_truncation', 'context_truncation', 'runtime_abort'),
  )
  def test_E2_no_critic_to_bootstrap_from(self, estimator, name):
    message = self.refusal(
        f'advantage.estimator={estimator}',
        'group.size=2',
        f'termination.{name}=bootstrap',
    )
    self.assertStartsWith(message, f'termination.{name}=')

  @parameterized.parameters('infra_failure_critic', 'cancelled_critic')
  def test_E2_no_critic_to_keep_a_rollout_for(self, name):
    message = self.refusal(*GRPO, f'termination.{name}=bootstrap')
    self.assertStartsWith(message, f'termination.{name}=')
    self.assertIn('use exclude', message)

  def test_E7_min_size_above_size(self):
    self.assertStartsWith(
        self.refusal(*GRPO, 'group.min_size=5'), 'group.min_size=5'
    )

  def test_E5_outcome_only_leaves_nothing_to_supervise(self):
    message = self.refusal(
        'advantage.estimator=process', 'group.size=2', 'group.outcome_only=true'
    )
    self.assertStartsWith(message, 'group.outcome_only=True')

  def test_E9_dynamic_sampling_needs_a_group_estimator(self):
    self.assertStartsWith(
        self.refusal('group.dynamic_sampling=true'), 'group.dynamic_sampling='
    )
    self.check(*GRPO, 'group.dynamic_sampling=true')

  def test_D2_lexicographic_needs_the_names_of_its_terms(self):
    lexicographic = 'reward.mode=lexicographic'
    weight = 'reward.weights.format=0.1'
    for settings in (
        (lexicographic,),
        ('reward.constrained=format', weight),
        (lexicographic, 'reward.constrained=terminal'),
        (lexicographic, 'reward.constrained=format'),
        (lexicographic, 'reward.constrained=format', 'reward.weights.format=0'),
    ):
      self.assertStartsWith(self.refusal(*settings), 'reward.constrained=')
    self.check(lexicographic, 'reward.constrained=format', weight)

  def test_D1_affine_constants_belong_to_affine(self):
    self.assertStartsWith(
        self.refusal('reward.affine_scale.v=2'), 'reward.affine_scale='
    )
    self.assertStartsWith(
        self.refusal('reward.norm=running', 'reward.affine_shift.v=2'),
        'reward.affine_shift=',
    )
    self.assertStartsWith(
        self.refusal('reward.norm=affine'), 'reward.affine_scale='
    )
    self.assertStartsWith(
        self.refusal('reward.norm=affine', 'reward.affine_scale.v=0'),
        'reward.affine_scale.v=0',
    )
    self.check('reward.norm=affine', 'reward.affine_scale.v=2')

  @parameterized.parameters(
      'termination.budget_truncation=bootstrap',
      'termination.context_truncation=bootstrap',
      'termination.runtime_abort=bootstrap',
      'termination.infra_failure_critic=bootstrap',
      'termination.cancelled_critic=bootstrap',
      'budgets.holds_at_eval=false',
  )
  def test_D1_a_shift_where_an_end_may_be_unscored(self, setting):
    shift = ('reward.norm=affine', 'reward.affine_shift.v=0.5')
    message = self.refusal(*shift, setting)
    self.assertStartsWith(message, 'reward.affine_shift.v=0.5')
    self.assertIn('pays or fines', message)
    # Without the setting every end is scored; a shift of 0 moves nothing.
    self.check(*shift)
    self.check('reward.norm=affine', 'reward.affine_shift.v=0', setting)

  def test_D1_without_a_critic_every_end_is_scored(self):
    self.check(
        *GRPO,
        'reward.norm=affine',
        'reward.affine_shift.v=0.5',
        'budgets.holds_at_eval=false',
    )


if __name__ == '__main__':
  absltest.main()
