"""Faults of losses, groups, critic, updates, figures and data: the other ids.

One for every id that no classic fault of `faults.py` breaks, in the order of
rl_tpu/ALGORITHMS.md; G13 and G23 are here because learning breaks them.
"""

from tests.mutation import patches

_OBJECTIVE = ('tests/losses/objective_test.py',)
_GOLDEN = ('tests/learner/losses_golden_test.py',)
_HEADS = ('tests/learner/heads_test.py',)
_CRITIC = ('tests/models/critic_test.py',)
_CRITIC_FIGURES = ('tests/assembly/critic_figures_test.py',)
_DIAGNOSTICS = ('tests/metrics/diagnostics_test.py',)
_ALARMS = ('tests/metrics/alarms_test.py',)
_GATHERING = ('tests/assembly/gathering_test.py',)
_DRAWS = ('tests/tasks/draws_test.py',)
_ADMISSION = ('tests/rollout/admission_test.py',)
_SCORING = ('tests/rollout/scoring_test.py',)
_BATCHING = ('tests/rollout/batching_test.py',)

_LEARNER = 'rl_tpu/learner'
_LOSSES = 'rl_tpu/losses'
_METRICS = 'rl_tpu/metrics'
_ROLLOUT = 'rl_tpu/rollout'

_fault = patches.fault

_LOSS_FAULTS = (
    _fault(
        'every pass of the critic makes values anew', 'G13',
        ('tests/learner/learner_test.py',), f'{_LEARNER}/update.py',
        {'      for _ in range(passes):\n':
             '      for _ in range(passes):\n'
             '        heads = self._learner.value_heads(\n'
             '            critic.params, scored.rows\n        )\n'
             '        scored = dataclasses.replace(\n'
             '            scored, value_BT=np.roll(_join(heads), 1, axis=1)\n'
             '        )\n'
             '        parts = self._minibatches(\n'
             '            scored, advantage_BT, policy_weight_BT,\n'
             '            critic_weight_BT, minibatches,\n        )\n'},
    ),
    _fault(
        'a microbatch is divided by its own weights', 'G23', _GOLDEN,
        f'{_LOSSES}/objective.py',
        {'  policy = sums.weighted_sum(loss_BT, weight_BT)\n':
             '  policy = sums.weighted_sum(loss_BT, weight_BT)\n'
             '  policy = policy / jnp.maximum(jnp.sum(weight_BT), 1e-9)\n'},
    ),
    _fault(
        'the distance is to the baseline, not to the reference', 'L7',
        _OBJECTIVE, f'{_LOSSES}/objective.py',
        {'        minibatch.reference_logp_BT,\n':
             '        minibatch.base_logp_BT,\n'},
    ),
    _fault(
        'a task family has the mean of its rollouts', 'L12',
        ('tests/assembly/update_figures_test.py',),
        'rl_tpu/assembly/update_figures.py',
        {'float(column[name][here].sum() / tokens)':
             'float(\n            np.mean(column[name][here] /'
             ' column[\'count\'][here])\n        )'},
    ),
    _fault(
        'the whole vocabulary is in the normaliser', 'L16',
        ('tests/models/actor_test.py',), 'rl_tpu/models/actor.py',
        {'  scaled = restrict(scaled, support)\n': ''},
    ),
    _fault(
        'minibatches are cut by segment', 'L17', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'      minibatch_R[flat.segment_rollout],\n':
             '      packing.split_rollouts(\n'
             '          len(flat.segments), batching.minibatches\n'
             '      ),\n'},
    ),
    _fault(
        'a step is taken whatever the gradient is', 'L18',
        ('tests/learner/optimizers_test.py',), f'{_LEARNER}/optimizers.py',
        {'take = finite & ~empty': 'take = ~empty'},
    ),
    _fault(
        'a token has the type of its last character', 'L19',
        ('tests/rollout/token_typing_test.py',), f'{_ROLLOUT}/token_typing.py',
        {'  return token_types.of_parts(parts, len(text))[starts]':
             '  stops = np.append(starts[1:], len(text)) - 1\n'
             '  return token_types.of_parts(parts, len(text))[stops]'},
    ),
    _fault(
        'every microbatch plans for itself', 'L20', _GOLDEN,
        f'{_LEARNER}/learner.py',
        {'    plans = placement.in_order(self._plan(tuple(microbatches), logps))\n':
             '    each = logps or [None] * len(microbatches)\n'
             '    plans = [\n'
             '        self._plan((part,), None if x is None else (x,))[0]\n'
             '        for part, x in zip(microbatches, each)\n    ]\n'},
    ),
    _fault(
        'a ratio on the limit counts as cut off', 'L21',
        ('tests/losses/policy_test.py',), f'{_LOSSES}/ratio.py',
        {'return jnp.abs(log_ratio_BT) > LIMIT':
             'return jnp.abs(log_ratio_BT) >= LIMIT'},
    ),
)

_GROUP_FAULTS = (
    _fault(
        'the chance of any success for that of a difference', 'E8',
        ('tests/metrics/group_figures_test.py',),
        f'{_METRICS}/group_figures.py',
        {'return 1.0 - float(p) ** size - (1.0 - float(p)) ** size':
             'return 1.0 - (1.0 - float(p)) ** size'},
    ),
    _fault(
        'what was replaced leaves the books', 'E9',
        ('tests/rollout/replacement_test.py',), f'{_ROLLOUT}/replacement.py',
        {'admission, admitted=tuple(kept), discards=tuple(discards)':
             'admission, admitted=tuple(kept)'},
    ),
    _fault(
        'tokens without an advantage leave every term', 'E10', _OBJECTIVE,
        f'{_LOSSES}/objective.py',
        {'  mask_BT = minibatch.policy_weight_BT > 0\n':
             '  mask_BT = minibatch.policy_weight_BT > 0\n'
             '  mask_BT &= minibatch.advantage_BT != 0\n'},
    ),
    _fault(
        'who is not trained on disturbs nobody', 'E11',
        ('tests/rollout/comparison_test.py',), f'{_ROLLOUT}/comparison.py',
        {'disturbed = shared_tenants(ended)':
             'disturbed = shared_tenants([c.rollout for c in candidates])'},
    ),
)

_CRITIC_FAULTS = (
    _fault(
        'a variance that is high early ends the warm-up', 'C1',
        ('tests/assembly/warm_up_test.py',), 'rl_tpu/assembly/warm_up.py',
        {'    if batches < self._critic.warmup_steps:\n      return True\n'
         '    least = self._critic.warmup_min_ev\n':
             '    least = self._critic.warmup_min_ev\n'
             '    if batches < self._critic.warmup_steps and least is None:\n'
             '      return True\n'},
    ),
    _fault(
        'a rollout has the version of its first segment', 'C2',
        _CRITIC_FIGURES, 'rl_tpu/assembly/critic_figures.py',
        {'part[:] = segment.behaviour_version':
             'part[:] = rollout.segments[0].behaviour_version.max()'},
    ),
    _fault(
        'bias is taken for variance', 'C3', _DIAGNOSTICS,
        f'{_METRICS}/diagnostics.py',
        {'float(1.0 - _variance(error, weight) / variance)':
             'float(\n      1.0 - np.average(error**2, weights=weight) /'
             ' variance\n  )'},
    ),
    _fault(
        'the bias has the other sign', 'C4', _DIAGNOSTICS,
        f'{_METRICS}/diagnostics.py',
        {'error = np.asarray(table.value, float) - np.asarray(table.target,'
         ' float)\n  return Errors':
             'error = np.asarray(table.target, float) - np.asarray('
             'table.value, float)\n  return Errors'},
    ),
    _fault(
        'bootstrapped ends are in the calibration of the others', 'C5',
        _DIAGNOSTICS, f'{_METRICS}/diagnostics.py',
        {"'critic/ece_scored': calibration(scored).ece":
             "'critic/ece_scored': calibration(table).ece"},
    ),
    _fault(
        'curves part as soon as a mean leaves the other interval', 'C6',
        ('tests/metrics/value_curves_test.py',),
        f'{_METRICS}/value_curves.py',
        {'(success.low > failure.high) | (failure.low > success.high)':
             '(success.mean > failure.high) | (failure.mean > success.high)'},
    ),
    _fault(
        'the value reads what the sampler noted', 'C8', _CRITIC,
        'rl_tpu/models/critic.py',
        {"  out = from_hidden(params['value_head'], hidden_BTD)\n":
             "  seen_BTD = hidden_BTD + rows.behaviour_logp_BT[..., None]\n"
             "  out = from_hidden(params['value_head'], seen_BTD)\n"},
    ),
    _fault(
        'the value after a cut reads the window before it', 'C9', _CRITIC,
        'rl_tpu/models/critic.py',
        {'      rows.segment_BT,\n':
             '      jnp.minimum(rows.segment_BT, 0),\n'},
    ),
    _fault(
        'the value loss on a shared backbone has no coefficient', 'C10',
        _HEADS, f'{_LEARNER}/networks.py',
        {'policy + self.objective.loss.value_coef * value':
             'policy + value'},
    ),
    _fault(
        'the width of the target is not counted in bins', 'C11',
        ('tests/losses/hl_gauss_test.py',), f'{_LOSSES}/hl_gauss.py',
        {'(critic.sigma * width)': 'critic.sigma'},
    ),
    _fault(
        'only returns of 0 are equal returns', 'C12', _ALARMS,
        f'{_METRICS}/alarms.py',
        {'  return bool(returns.size) and diagnostics.degenerate(\n'
         '      returns, float(returns.std())\n  )\n':
             '  return bool(returns.size) and not returns.any()\n'},
    ),
    _fault(
        'the alarm is raised while the return rises', 'C13', _ALARMS,
        f'{_METRICS}/alarms.py',
        {"way['value_loss'] < 0 and way['raw_return'] < 0":
             "way['value_loss'] < 0 and way['raw_return'] > 0"},
    ),
    _fault(
        'figures of the critic in float32', 'C14', _CRITIC_FIGURES,
        'rl_tpu/assembly/critic_figures.py',
        {'  numbers = lambda array: np.asarray(array).reshape(-1)[place]'
         '.astype(\n      np.float64\n  )\n':
             '  numbers = lambda array: np.asarray(array).reshape(-1)[place]'
             '.astype(\n      np.float32\n  )\n'},
    ),
)

_OFF_POLICY_FAULTS = (
    _fault(
        'a run that is not calibrated yet forgets what it was', 'O8',
        ('tests/assembly/gates_test.py',), 'rl_tpu/assembly/gates.py',
        {'latest if self.gate == Gate.OPEN else self._saved':
             'latest or self._saved'},
    ),
    _fault(
        'KL of the policy to the sampler', 'O1',
        ('tests/metrics/age_figures_test.py',), f'{_METRICS}/age_figures.py',
        {"'policy/kl_behaviour_k1': float(-x.mean())":
             "'policy/kl_behaviour_k1': float(x.mean())"},
    ),
    _fault(
        'ratios are multiplied along a rollout', 'O3',
        ('tests/losses/correction_test.py',), f'{_LOSSES}/by_id.py',
        {'return jnp.where(count > 0, total / jnp.where(count > 0, count,'
         ' 1.0), 0.0)': 'return jnp.where(count > 0, total, 0.0)'},
    ),
    _fault(
        'one of two limits of the alignment is enough', 'O4',
        ('tests/alignment/check_test.py',), 'rl_tpu/alignment/check.py',
        {"figures['max_abs'] <= limits[0] and figures['mean_abs'] <="
         ' limits[1]':
             "figures['max_abs'] <= limits[0] or figures['mean_abs'] <="
             ' limits[1]'},
    ),
    _fault(
        'min-p needs no record of its support', 'O5',
        ('tests/config/validation_test.py',), 'rl_tpu/config/validation.py',
        {"  for name in ('top_k', 'top_p', 'min_p'):\n":
             "  for name in ('top_k', 'top_p'):\n"},
    ),
    _fault(
        'any version up to the newest is known', 'O6', _ADMISSION,
        f'{_ROLLOUT}/admission.py',
        {'if int(v) not in known]': 'if int(v) > max(known)]'},
    ),
    _fault(
        'the scales of rewards start anew after a resume', 'O7', _GATHERING,
        'rl_tpu/assembly/gathering.py',
        {"    self.scales.restore(state['reward_scales'])\n": ''},
    ),
    _fault(
        'optimizers begin anew after a resume', 'O9',
        ('tests/trainer_test.py',), f'{_LEARNER}/state.py',
        {'    parts = self.parts | parts\n':
             '    parts = parts | {\n'
             '        name: part for name, part in self.parts.items()\n'
             "        if name.endswith('_optimizer')\n    }\n"},
    ),
    _fault(
        'what is moved is counted in numbers', 'O10',
        ('tests/learner/residence_test.py',), f'{_LEARNER}/residence.py',
        {'sum(leaf.nbytes for leaf': 'sum(leaf.size for leaf'},
    ),
)

_REPORT_FAULTS = (
    _fault(
        'the rollout is the unit of an interval', 'A3', _DIAGNOSTICS,
        f'{_METRICS}/intervals.py',
        {'  means = [np.mean(np.asarray(scores[task], float)) for task in'
         ' sorted(scores)]\n':
             '  parts = [np.atleast_1d(scores[task]) for task in'
             ' sorted(scores)]\n'
             '  means = np.concatenate([np.zeros(0), *parts])\n'},
    ),
    _fault(
        'tasks of two arms are paired in any order', 'A4', _DIAGNOSTICS,
        f'{_METRICS}/intervals.py',
        {'difference = task_means(left) - task_means(right)':
             'difference = task_means(left) - task_means(right)[::-1]'},
    ),
    _fault(
        'a reason is counted once', 'A5', _ADMISSION, f'{_ROLLOUT}/ledger.py',
        {'self.discarded[reason] = self.discarded.get(reason, 0) + 1':
             'self.discarded[reason] = 1'},
    ),
    _fault(
        'a truncated success stays one where truncations are failures', 'A6',
        ('tests/metrics/summary_test.py',), f'{_METRICS}/summary.py',
        {'truncated_as_failure.append(float(counts and not truncated))':
             'truncated_as_failure.append(float(counts))'},
    ),
)

_DATA_FAULTS = (
    _fault(
        'running scales shift the rewards', 'D1',
        ('tests/rewards/scaling_test.py', *_SCORING),
        'rl_tpu/rewards/scaling.py',
        {'Scale(divisor=seen.std)': 'Scale(seen.mean, seen.std)'},
    ),
    _fault(
        'a violation does not end a success', 'D2', _SCORING,
        f'{_ROLLOUT}/scoring.py',
        {'return summary.is_solved(rollout) is True and not violations':
             'return summary.is_solved(rollout) is True'},
    ),
    _fault(
        'a mix has the shares of the data', 'D4', _DRAWS,
        'rl_tpu/tasks/draws.py',
        {'{name: data.mix[name] / total for name in parts}':
             '{\n          name: len(part) / len(source)'
             ' for name, part in parts.items()\n      }'},
    ),
    _fault(
        'tokens of rare sources weigh more', 'D5', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'  return out\n\n\ndef _held_out(':
             '  names = [r.source for r in rollouts]\n'
             '  share_R = np.asarray([names.count(n) for n in names])\n'
             '  share_R = share_R * len(set(names)) / max(len(names), 1)\n'
             '  return tuple(weight / share_R[flat.rollout] for weight in'
             ' out)\n\n\ndef _held_out('},
    ),
    _fault(
        'the weight of an easy task has no floor', 'D7', _DRAWS,
        'rl_tpu/tasks/draws.py',
        {'min(1.0, max(data.easy_weight, data.min_weight))':
             'min(1.0, data.easy_weight)'},
    ),
    _fault(
        'two scores of one input differ by the variance', 'D8',
        ('tests/metrics/noise_test.py',), f'{_METRICS}/noise.py',
        {"variance = 0.5 * sums['squared_gap'] / count":
             "variance = sums['squared_gap'] / count"},
    ),
)

FAULTS = (
    *_LOSS_FAULTS,
    *_GROUP_FAULTS,
    *_CRITIC_FAULTS,
    *_OFF_POLICY_FAULTS,
    *_REPORT_FAULTS,
    *_DATA_FAULTS,
)
