"""Classic faults by hand: each a patch that a test has to notice."""

from tests.mutation import patches

_CASES = 'tests/advantages/gae_cases_test.py'
_PROPERTIES = 'tests/advantages/gae_properties_test.py'
_GOLDEN = 'tests/advantages/gae_golden_test.py'
_GAE = (_CASES, _PROPERTIES, _GOLDEN)
_BATCHING = ('tests/rollout/batching_test.py', *_GAE)
_ADMISSION = ('tests/rollout/admission_test.py', _GOLDEN)
_TERMINATION = ('tests/types/termination_test.py', *_ADMISSION)
_GROUPS = (
    'tests/advantages/groups_test.py',
    'tests/assembly/advantage_stage_test.py',
)
_NORMALISE = ('tests/advantages/normalise_test.py',)
_POLICY = ('tests/losses/policy_test.py', 'tests/losses/objective_test.py')
_VALUE = ('tests/losses/value_test.py', 'tests/losses/objective_test.py')
_KL = ('tests/losses/kl_test.py', 'tests/losses/objective_test.py')
_OBJECTIVE = ('tests/losses/objective_test.py',)
_OFF_POLICY = ('tests/losses/off_policy_test.py', *_OBJECTIVE)
_CORRECTION = ('tests/losses/correction_test.py', *_OBJECTIVE)
_PASSES = ('tests/learner/passes_test.py',)
_STEPWISE = ('tests/advantages/stepwise_test.py',)
_STALE = (
    'tests/rollout/staleness_test.py',
    'tests/rollout/admission_test.py',
)
_AGGREGATION = (
    'tests/losses/aggregation_test.py',
    'tests/rollout/batching_test.py',
)
_LEARNER = ('tests/learner/learner_test.py',)

_ADVANTAGES = 'rl_tpu/advantages'
_LOSSES = 'rl_tpu/losses'
# The compiler makes a select of the product with a bool.
_FLOAT_MASK_BT = 'jnp.where(mask_BT, 1.0, 0.0)'
_ROLLOUT = 'rl_tpu/rollout'

_fault = patches.fault

_ENDS = (
    _fault(
        'all ends zero', 'G4', _GAE, f'{_ADVANTAGES}/gae.py',
        {'jnp.where(joins.bootstrap_R, bootstrap_R, 0.0)':
             'jnp.zeros_like(bootstrap_R)'},
    ),
    _fault(
        'all ends bootstrapped', 'G4', _GAE, f'{_ADVANTAGES}/gae.py',
        {'end_R = jnp.where(joins.bootstrap_R, bootstrap_R, 0.0)':
             'end_R = bootstrap_R'},
    ),
    _fault(
        'bootstrap and score both', 'T2', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'return Verdict(True, True, EndMode.BOOTSTRAP, None, None)':
             'return Verdict(True, True, EndMode.BOOTSTRAP, terminal_reward,'
             ' None)'},
    ),
    _fault(
        'final value of the first segment', 'G4', _BATCHING,
        f'{_ROLLOUT}/joins.py',
        {'np.searchsorted(flat.segment_rollout, np.arange(count),'
         " side='right')":
             'np.searchsorted(flat.segment_rollout, np.arange(count)) + 1'},
    ),
    _fault(
        'final value before the last observation', 'G4', _BATCHING,
        f'{_ROLLOUT}/joins.py',
        {'final = grid.place[_segment_end(flat)[ends - 1]]':
             'final = grid.place[acts.token[acts.is_last]]'},
    ),
    _fault(
        'a missing score is zero', 'T7', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'  if score is None:\n    return Verdict(':
             '  score = score or 0.0\n'
             '  if score is None:\n    return Verdict('},
    ),
    _fault(
        'a failure without a score is left out', 'T7', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'return _scored(terminal_reward or 0.0)':
             'return _scored(terminal_reward)'},
    ),
    _fault(
        'a violation keeps its positive score', 'T7', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'_scored(min(score, 0.0))': '_scored(score)'},
    ),
    _fault(
        'a broken sandbox is a failure of the policy', '2.2', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'  if termination == Termination.INFRA_FAILURE:\n':
             '  if termination == Termination.INFRA_FAILURE:\n'
             '    return _scored(0.0)\n'},
    ),
    _fault(
        'both flags are needed for a terminal truncation', 'T3', _TERMINATION,
        'rl_tpu/types/termination.py',
        {"'terminal' if budget_visible or holds_at_eval":
             "'terminal' if budget_visible and holds_at_eval"},
    ),
    _fault(
        'a full window follows the rule of the budget', 'T4', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'mode = rules.context_truncation': 'mode = rules.budget_truncation'},
    ),
)

_TIME = (
    _fault(
        'decay on observations', 'G1 G25', _BATCHING, f'{_ROLLOUT}/joins.py',
        {'      decay_BT=grid.spread_at(\n          acts.token,\n'
         '          acts.ends_turn if turn_unit and not turn_level else'
         ' starts,\n'
         '          False,\n          bool,\n      ),':
             '      decay_BT=grid.spread(\n'
             '          np.ones(len(flat.rollout), bool), False, bool\n'
             '      ),'},
    ),
    _fault(
        'storage order taken for time', 'V1 G21', _BATCHING,
        f'{_ROLLOUT}/chain.py',
        {'return tuple(sorted(rollout.segments, key=lambda s:'
         ' s.segment_index))': 'return tuple(rollout.segments)'},
    ),
    _fault(
        'the next token in place of the next action', 'G2 G26', _BATCHING,
        f'{_ROLLOUT}/joins.py',
        {'_following(grid.column[token], acts.segment[starts])':
             'np.minimum(\n              _following(grid.column[token],'
             ' acts.segment[starts]),\n              grid.column[token] + 1,\n'
             '          )'},
    ),
    _fault(
        'the trace starts anew at a cut', 'G9', _GAE,
        f'{_ADVANTAGES}/gae.py',
        {"joined=gae.cut == 'continue'": 'joined=False'},
    ),
    _fault(
        'a cut is an end', 'G2', _GAE, f'{_ADVANTAGES}/gae.py',
        {"if gae.cut != 'cut_terminal':": "if gae.cut != 'continue':"},
    ),
    _fault(
        'a segment without an action stops the trace', 'G3', _GAE,
        f'{_ADVANTAGES}/affine.py',
        {'whole = _where(stretches.exists_N, whole,'
         ' _identity(head.value.shape))':
             'nothing = Affine(*(0.0 * x for x in'
             ' _identity(head.value.shape)))\n'
             '  whole = _where(stretches.exists_N, whole, nothing)'},
    ),
    _fault(
        'every cut ends a turn', 'G10', _BATCHING, f'{_ROLLOUT}/timeline.py',
        {'ends_turn = _differs_from_next(turn) | is_last':
             'ends_turn = (\n      _differs_from_next(turn) | is_last\n'
             '      | _differs_from_next(segment)\n  )'},
    ),
    _fault(
        'a truncated turn does not decay', 'G10', _BATCHING,
        f'{_ROLLOUT}/timeline.py',
        {'ends_turn = _differs_from_next(turn) | is_last':
             'ends_turn = _differs_from_next(turn) & ~is_last'},
    ),
    _fault(
        'lambda of the critic for the policy', 'G12', _GAE,
        f'{_ADVANTAGES}/gae.py',
        {'_rate(joins, gae.gamma, gae.lambda_policy)':
             '_rate(joins, gae.gamma, gae.lambda_critic)'},
    ),
    _fault(
        'lambda of the policy for the critic', 'G12', _GAE,
        f'{_ADVANTAGES}/gae.py',
        {'_rate(joins, gae.gamma, gae.lambda_critic)':
             '_rate(joins, gae.gamma, gae.lambda_policy)'},
    ),
    _fault(
        'lambda by the length of a segment', 'G11', _BATCHING,
        f'{_ROLLOUT}/timeline.py',
        {'return np.asarray(before, np.float64) + stored':
             'return (np.asarray(before, np.float64) + stored) / np.bincount(\n'
             '      flat.segment_rollout, minlength=num_rollouts\n  )'},
    ),
    _fault(
        'lambda forgets a dropped prefix', 'G11 G27 T10', _BATCHING,
        f'{_ROLLOUT}/timeline.py',
        {'return np.asarray(before, np.float64) + stored':
             'return 0.0 * np.asarray(before, np.float64) + stored'},
    ),
    _fault(
        'the target is the advantage', 'G12', _GAE, f'{_ADVANTAGES}/gae.py',
        {'critic_BT + value_BT, 0.0': 'critic_BT, 0.0'},
    ),
    _fault(
        'the value of the state after the token', 'V0',
        ('tests/models/critic_test.py', *_GAE), 'rl_tpu/models/critic.py',
        {'jnp.roll(head, 1, axis=1)': 'head'},
    ),
    _fault(
        'the value two tokens before', 'V0',
        ('tests/models/critic_test.py', *_GAE), 'rl_tpu/models/critic.py',
        {'jnp.roll(head, 1, axis=1)': 'jnp.roll(head, 2, axis=1)'},
    ),
    _fault(
        'positions run on over a seam', 'P1', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'position_BT=grid.spread(flat.position, 0, np.int32)':
             'position_BT=grid.spread(\n'
             '          timeline.token_index(flat), 0, np.int32\n      )'},
    ),
    _fault(
        'segments of a rollout attend to each other', 'P1', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'segment_BT=grid.spread(flat.segment, -1, np.int32)':
             'segment_BT=grid.spread(flat.rollout, -1, np.int32)'},
    ),
)

_REWARDS = (
    _fault(
        'reward per segment', 'G6', _BATCHING, f'{_ROLLOUT}/returns.py',
        {'last = np.flatnonzero(acts.is_last)':
             'last = np.flatnonzero(acts.is_last | acts.crosses)'},
    ),
    _fault(
        'reward / K', 'G6', _BATCHING, f'{_ROLLOUT}/returns.py',
        {'reward[last] += score_R[acts.rollout[last]]':
             'reward[last] += (\n'
             '      score_R / np.bincount(flat.segment_rollout)\n'
             '  )[acts.rollout[last]]'},
    ),
    _fault(
        'reward on the first action', 'G6', _BATCHING,
        f'{_ROLLOUT}/returns.py',
        {'last = np.flatnonzero(acts.is_last)':
             'last = np.unique(acts.rollout, return_index=True)[1]'},
    ),
    _fault(
        'a reward on an observation is lost', 'G5', _BATCHING,
        f'{_ROLLOUT}/timeline.py',
        {'place = np.flatnonzero(recorded)':
             'place = np.flatnonzero(recorded * flat.is_action)'},
    ),
    _fault(
        'a reward on an observation moves to the next action', 'G5', _BATCHING,
        f'{_ROLLOUT}/timeline.py',
        {"np.searchsorted(acts.token, place, side='right') - 1":
             "np.minimum(\n      np.searchsorted(acts.token, place),"
             ' len(acts.token) - 1\n  )'},
    ),
    _fault(
        'KL is added to the reward', 'G8', _GAE, f'{_ADVANTAGES}/gae.py',
        {'reward_BT = reward_BT - jnp.where(is_action_BT, stop(kl_BT), 0.0)':
             'reward_BT = reward_BT + jnp.where(is_action_BT, stop(kl_BT),'
             ' 0.0)'},
    ),
    _fault(
        'only the last reward of a turn counts', 'G19', _GAE,
        f'{_ADVANTAGES}/gae.py',
        {"earned_BT = _to_owner(joins, reward_BT) if level == 'turn' else"
         ' reward_BT': 'earned_BT = reward_BT'},
    ),
)

_NORMALISATION = (
    _fault(
        'advantages normalised per minibatch', 'G17', _NORMALISE,
        f'{_ADVANTAGES}/normalise.py',
        {'values = whiten(values, eps=config.eps,'
         ' std_floor=config.std_floor)':
             'values = np.concatenate([\n'
             '        whiten(part, eps=config.eps,'
             ' std_floor=config.std_floor)\n'
             '        for part in np.array_split(values, 2)\n    ])'},
    ),
    _fault(
        'ddof 1 in normalisation', 'G17', _NORMALISE,
        'rl_tpu/types/statistics.py',
        {'math.sqrt(self.squared_deviation / self.count) if self.count else':
             'math.sqrt(self.squared_deviation / max(self.count - 1, 1))'
             ' if self.count else'},
    ),
    _fault(
        'one pass for mean and square', 'G15',
        ('tests/types/statistics_test.py', *_NORMALISE),
        'rl_tpu/types/statistics.py',
        {'  deviation = float(np.sum(np.square(values - mean)))\n':
             '  values = values.astype(np.float32)\n'
             '  deviation = abs(float(\n'
             '      np.sum(np.square(values)) - values.size * mean**2\n'
             '  ))\n'},
    ),
    _fault(
        'all actions in the statistics, trained or not', 'G17',
        ('tests/advantages/normalise_test.py', _GOLDEN),
        f'{_ADVANTAGES}/normalise.py',
        {'mask_BT = np.asarray(joins.policy_mask_BT, bool)':
             'mask_BT = np.asarray(joins.transition_mask_BT, bool)'},
    ),
    _fault(
        'a floor that knows no scale', 'G15',
        (*_NORMALISE, *_GROUPS), 'rl_tpu/types/statistics.py',
        {'floor * max(1.0, largest)': 'floor'},
    ),
)

_GROUP_FAULTS = (
    _fault(
        'ddof 1 in a group', 'E3', _GROUPS, f'{_ADVANTAGES}/groups.py',
        {'std = np.std(returns)': 'std = np.std(returns, ddof=1)'},
    ),
    _fault(
        'a small divisor in place of the floor', 'E3', _GROUPS,
        f'{_ADVANTAGES}/groups.py',
        {'    return np.zeros_like(returns)\n':
             '    return (returns - np.mean(returns)) / (std + 1e-6)\n'},
    ),
    _fault(
        'GRPO over segments', 'E1', _GROUPS, f'{_ADVANTAGES}/groups.py',
        {'  subgroups = subgroups_of(batch.subgroup_R)\n':
             '  joins_ = batch.segments.joins\n'
             '  count = np.bincount(\n'
             '      joins_.rollout_N[joins_.rollout_N >= 0],\n'
             '      minlength=len(value_R),\n  )\n'
             '  subgroups = [\n'
             '      np.repeat(part, count[part]).tolist()\n'
             '      for part in subgroups_of(batch.subgroup_R)\n  ]\n'},
    ),
    _fault(
        'the mean has itself in it', 'E4', _GROUPS, f'{_ADVANTAGES}/groups.py',
        {'return dr_grpo(rewards) * (size / (size - 1))':
             'return dr_grpo(rewards)'},
    ),
    _fault(
        'a group of one gets its raw return', 'E7', _GROUPS,
        f'{_ADVANTAGES}/groups.py',
        {'if dropped or len(ids) < min_size:': 'if dropped:'},
    ),
    _fault(
        'other conditions are compared', 'E7', _GROUPS,
        f'{_ROLLOUT}/comparison.py',
        {'      rollout.env_version,\n': ''},
    ),
    _fault(
        'process rewards credit what comes after them', 'E5', _STEPWISE,
        f'{_ADVANTAGES}/stepwise.py',
        {'return np.cumsum(values[::-1])[::-1]': 'return np.cumsum(values)'},
    ),
    _fault(
        'every member has process statistics of its own', 'E5', _STEPWISE,
        f'{_ADVANTAGES}/stepwise.py',
        {"  centred = scaled(together, norm='std', eps=eps,"
         ' std_floor=std_floor)\n':
             '  centred = np.concatenate([\n'
             "      scaled(r, norm='std', eps=eps, std_floor=std_floor)\n"
             '      for r in step_rewards\n  ])\n'},
    ),
    _fault(
        'states without a name are one state', 'E6', _STEPWISE,
        f'{_ADVANTAGES}/stepwise.py',
        {'      if anchor is not None:\n': '      if True:\n'},
    ),
    _fault(
        'the step return knows no outcome', 'E6', _STEPWISE,
        f'{_ADVANTAGES}/stepwise.py',
        {'      reward[-1] += score_R[member]\n': ''},
    ),
    _fault(
        'ddof 1 in steps', 'E5 E6', _STEPWISE, f'{_ADVANTAGES}/stepwise.py',
        {'std = np.std(values)': 'std = np.std(values, ddof=1)'},
    ),
    _fault(
        'step rewards in an outcome-only return', 'E2', _GROUPS,
        f'{_ADVANTAGES}/groups.py',
        {'value_R = batch.score_R if group.outcome_only else batch.return_R':
             'value_R = batch.return_R'},
    ),
)

_POLICY_FAULTS = (
    _fault(
        'clip side swapped', 'L2', _POLICY, f'{_LOSSES}/policy.py',
        {'high_BT = (advantage_BT > 0) &': 'high_BT = (advantage_BT < 0) &',
         'low_BT = (advantage_BT < 0) &': 'low_BT = (advantage_BT > 0) &'},
    ),
    _fault(
        'clipped whatever the sign', 'L2', _POLICY, f'{_LOSSES}/policy.py',
        {'high_BT = (advantage_BT > 0) &': 'high_BT = mask_BT &'},
    ),
    _fault(
        'bounds of the clip exchanged', 'L2', _POLICY, f'{_LOSSES}/policy.py',
        {'      eps_low=clip.eps_low,\n      eps_high=clip.eps_high,\n':
             '      eps_low=clip.eps_high,\n      eps_high=clip.eps_low,\n'},
    ),
    _fault(
        'dual clip on good tokens', 'L3', _POLICY, f'{_LOSSES}/policy.py',
        {'dual_BT = (advantage_BT < 0) &': 'dual_BT = (advantage_BT > 0) &'},
    ),
    _fault(
        'the sign of the advantage', 'L2', _POLICY, f'{_LOSSES}/policy.py',
        {'loss_BT = -ratio_BT * advantage_BT':
             'loss_BT = ratio_BT * advantage_BT'},
    ),
    _fault(
        'the ratio of the sequence', 'L1', _POLICY, f'{_LOSSES}/policy.py',
        {'  ratio_BT = ratio.bounded_exp(log_ratio_BT)\n'
         '  advantage_BT = jax':
             '  ratio_BT = ratio.bounded_exp(\n'
             '      jnp.cumsum(log_ratio_BT, axis=-1)\n  )\n'
             '  advantage_BT = jax'},
    ),
    _fault(
        'gradient into the advantage', 'L2', _POLICY, f'{_LOSSES}/policy.py',
        {'  advantage_BT = jax.lax.stop_gradient(jnp.where(mask_BT,'
         ' advantage_BT, 0.0))\n':
             '  advantage_BT = jnp.where(mask_BT, advantage_BT, 0.0)\n'},
    ),
    _fault(
        'gradient into the baseline', 'L7', _POLICY, f'{_LOSSES}/policy.py',
        {'logp_BT, jax.lax.stop_gradient(base_logp_BT), mask_BT':
             'logp_BT, base_logp_BT, mask_BT'},
    ),
    _fault(
        'the exponential is clipped outside', 'L1', _POLICY,
        f'{_LOSSES}/ratio.py',
        {'  return jnp.where(inside_BT, moving_BT, fixed_BT)':
             '  return jnp.clip(\n'
             '      function(log_ratio_BT), function(-LIMIT),'
             ' function(LIMIT)\n  )'},
    ),
    _fault(
        'log ratios masked by multiplying', 'G15', _POLICY,
        f'{_LOSSES}/ratio.py',
        {'clean_BT = jnp.where(mask_BT, logp_BT, 0.0)':
             f'clean_BT = logp_BT * {_FLOAT_MASK_BT}',
         'jnp.where(mask_BT, other_logp_BT, 0.0)':
             f'other_logp_BT * {_FLOAT_MASK_BT}'},
    ),
    _fault(
        'weighted sums masked by multiplying', 'L9',
        ('tests/types/sums_test.py', *_OBJECTIVE), 'rl_tpu/types/sums.py',
        {'jnp.sum(jnp.where(weight > 0, value, 0.0) * weight)':
             'jnp.sum(value * weight)'},
    ),
    _fault(
        'statistics masked by multiplying', 'G15',
        ('tests/types/sums_test.py', *_OBJECTIVE), 'rl_tpu/types/sums.py',
        {'jnp.where(mask, value, 0.0)':
             '(value * jnp.where(mask, 1.0, 0.0))'},
    ),
    _fault(
        'KL sign in the loss', 'L6', _OBJECTIVE, f'{_LOSSES}/objective.py',
        {"parts['kl_loss'] = sums.weighted_sum(coef_BT * kl_BT, weight_BT)":
             "parts['kl_loss'] = sums.weighted_sum(\n"
             '        -coef_BT * kl_BT, weight_BT\n    )'},
    ),
    _fault(
        'k3 of the other direction', 'L6', _KL, f'{_LOSSES}/kl.py',
        {'ratio.bounded_expm1(-log_ratio_BT) + log_ratio_BT':
             'ratio.bounded_expm1(log_ratio_BT) - log_ratio_BT'},
    ),
    _fault(
        'importance without its gradient', 'L6', _KL, f'{_LOSSES}/kl.py',
        {'ratio.masked_difference(logp_BT, stop(behaviour_logp_BT), mask_BT)':
             'ratio.masked_difference(\n            stop(logp_BT),'
             ' stop(behaviour_logp_BT), mask_BT\n        )'},
    ),
    _fault(
        'entropy is punished', 'L5', _OBJECTIVE, f'{_LOSSES}/objective.py',
        {'sums.weighted_sum(-coef_BT * entropy_BT, weight_BT)':
             'sums.weighted_sum(coef_BT * entropy_BT, weight_BT)'},
    ),
)

_OFF_POLICY_FAULTS = (
    _fault(
        'gradient through the range of DIS', 'L14', _OFF_POLICY,
        f'{_LOSSES}/policy.py',
        {'  log_ratio_BT = jax.lax.stop_gradient(\n'
         '      ratio.masked_difference(logp_BT, base_logp_BT, mask_BT)\n'
         '  )\n':
             '  log_ratio_BT = ratio.masked_difference(\n'
             '      logp_BT, base_logp_BT, mask_BT\n  )\n'},
    ),
    _fault(
        'DIS drops high ratios only', 'L14', _OFF_POLICY,
        f'{_LOSSES}/policy.py',
        {'return (ratio_BT <= 1.0 - dis.eps_low) | (ratio_BT':
             'return (ratio_BT'},
    ),
    _fault(
        'the gap from mu to pi_old the other way round', 'L13', _CORRECTION,
        f'{_LOSSES}/correction.py',
        {'ratio.masked_difference(base_logp_BT, behaviour_logp_BT, mask_BT)':
             'ratio.masked_difference(behaviour_logp_BT, base_logp_BT,'
             ' mask_BT)'},
    ),
    _fault(
        'truncated importance weights have a floor', 'L13', _CORRECTION,
        f'{_LOSSES}/correction.py',
        {'jnp.minimum(gap_BT, policy.is_high)':
             'jnp.clip(gap_BT, policy.is_low, policy.is_high)'},
    ),
    _fault(
        'a gate takes its tokens out of the denominator', 'L10', _OBJECTIVE,
        f'{_LOSSES}/objective.py',
        {'  policy = sums.weighted_sum(loss_BT, weight_BT)\n':
             '  kept = sums.weighted_sum(\n'
             '      jnp.where(gated_BT, 0.0, 1.0), weight_BT\n  )\n'
             '  whole = sums.weighted_sum(jnp.ones_like(loss_BT), weight_BT)\n'
             '  policy = sums.weighted_sum(loss_BT, weight_BT) * whole\n'
             '  policy = policy / jnp.maximum(kept, 1e-9)\n'},
    ),
    _fault(
        'the ratio of GSPO by segment', 'L15',
        (*_PASSES, 'tests/learner/losses_golden_test.py'),
        'rl_tpu/learner/passes.py',
        {'  return by_id.at_segments(mean_R, origin)\n':
             '  return by_id.mean(\n      _segment_sums(parts, values),'
             ' _segment_sums(parts, ones)\n  )\n'},
    ),
    _fault(
        'GSPO without the mean in its gradient', 'L15', _PASSES,
        'rl_tpu/learner/passes.py',
        {'slope_N = by_id.mean(-ratio_N * moving_N, total(ones))':
             'slope_N = -ratio_N * moving_N'},
    ),
    _fault(
        'age of the newest token', 'O2', _STALE, f'{_ROLLOUT}/staleness.py',
        {'  return min(\n      int(s.behaviour_version[s.is_action].min())':
             '  return max(\n'
             '      int(s.behaviour_version[s.is_action].max())'},
    ),
)

_VALUE_FAULTS = (
    _fault(
        'value loss without its half', 'L4', _VALUE, f'{_LOSSES}/value.py',
        {'loss_BT = 0.5 * jnp.square(error_BT)':
             'loss_BT = jnp.square(error_BT)'},
    ),
    _fault(
        'value clip takes the smaller loss', 'L4', _VALUE,
        f'{_LOSSES}/value.py',
        {'bound_loss_BT > jax': 'bound_loss_BT < jax'},
    ),
    _fault(
        'gradient into the target', 'G12', _VALUE, f'{_LOSSES}/value.py',
        {'target_BT = jax.lax.stop_gradient(jnp.where(mask_BT, return_BT,'
         ' 0.0))': 'target_BT = jnp.where(mask_BT, return_BT, 0.0)'},
    ),
)

_DENOMINATORS = (
    _fault(
        'mean of means', 'L8 L11', _AGGREGATION, f'{_LOSSES}/aggregation.py',
        {'weight = np.full(segment.shape, 1.0 / segment.size)':
             'weight = 1.0 / (np.unique(segment).size * _count_of(segment))'},
    ),
    _fault(
        'padding in the denominator', 'L8', _AGGREGATION,
        f'{_LOSSES}/aggregation.py',
        {'weight = np.full(segment.shape, 1.0 / segment.size)':
             'weight = np.full(segment.shape, 1.0 / mask.size)'},
    ),
    _fault(
        'weights of a row, not of the minibatch', 'L8', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'minibatch = minibatch_R[flat.rollout]':
             'minibatch = flat.rollout'},
    ),
    _fault(
        'gradients of microbatches averaged', 'L8', _LEARNER,
        'rl_tpu/learner/learner.py',
        {'jax.tree.map(jnp.add, total, gradients)':
             'jax.tree.map(lambda a, b: 0.5 * (a + b), total, gradients)'},
    ),
    _fault(
        'held-out tasks in the critic', 'C7', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'updated = critic_mask & ~held_out_R[flat.rollout]':
             'updated = critic_mask'},
    ),
    _fault(
        'untrained summaries leave the critic too', 'G16', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'return policy, critic & in_critic[flat.rollout]':
             'return policy, critic & policy & in_critic[flat.rollout]'},
    ),
)

FAULTS = (
    *_ENDS,
    *_TIME,
    *_REWARDS,
    *_NORMALISATION,
    *_GROUP_FAULTS,
    *_POLICY_FAULTS,
    *_OFF_POLICY_FAULTS,
    *_VALUE_FAULTS,
    *_DENOMINATORS,
)
