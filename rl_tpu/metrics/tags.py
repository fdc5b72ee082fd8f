"""Names of all figures, one sentence each, and the dashboard's first page.

A name in braces stands for a part that is known at run time only: the name of
a reward component, an end kind, a phase. `unknown` finds names that are not in
the table, so that a renamed figure does not leave its chart empty.
"""

import re
from collections.abc import Iterable

from rl_tpu.metrics import critic_tags

TAGS: dict[str, str] = {
    'reward/success': 'share solved of the rollouts whose score is used (A6)',
    'reward/success_truncated_as_failure': (
        'share solved of the admitted, every truncated run not solved (A6)'
    ),
    'reward/success_discarded_as_failure': (
        'share solved of all ended, every discarded run not solved (A6)'
    ),
    'reward/success_family/{family}': 'reward/success of one task family',
    'reward/success_source/{source}': 'reward/success of one task source',
    'reward/raw': 'mean raw terminal reward of scored rollouts',
    'reward/total': 'mean weighted reward of admitted rollouts, as trained on',
    'reward/component/{name}': 'mean raw sum of a component per rollout',
    'reward/score/{name}': "mean of the verifier's own figure, raw",
    'reward/mean/{source}': 'mean return of a source, raw (G18)',
    'reward/std/{source}': 'population deviation of the same',
    'reward/min/{source}': 'smallest of the same',
    'reward/max/{source}': 'largest of the same',
    'reward/before_action': 'sum of rewards before the first action (G5)',
    'reward/before_kept_action': 'the same after a dropped prefix (T10)',
    'reward/positive_on_violation': 'violations whose score was set to 0 (T7)',
    'reward/verifier_faults': 'rollouts that the verifier failed on',
    'reward/normalised_{figure}/{source}': (
        "mean, std, min and max of a source's return after reward.norm (D1)"
    ),
    'reward/success_unweighted': (
        'success over the task set as it is, not as it was drawn (D7)'
    ),
    'reward/verifier_rescored': 'rollouts scored twice so far (D8)',
    'reward/verifier_disagreed': 'of these, scored differently',
    'reward/verifier_disagreement/{version}': (
        'share of second scores that differ: noise floor of a success (D8)'
    ),
    'reward/verifier_variance/{version}': 'variance of one score (D8)',
    'policy/entropy': 'mean exact entropy of the actor at its action tokens',
    'policy/type/{token_type}/{figure}': (
        'a figure of the actor at tokens of one type (L19)'
    ),
    'policy/position/{bucket}/{figure}': (
        'the same by tenth of the rollout (L19)'
    ),
    'policy/length/{actions}/{figure}': (
        'the same by actions of the rollout, from this power of two (L19)'
    ),
    'policy/kl_behaviour_k1': 'k1 of mu to pi at the first minibatch (O4)',
    'policy/kl_behaviour_k3': 'k3 of the same',
    'policy/behaviour_gap_max': (
        'largest |log pi - log mu| before any step (O4)'
    ),
    'policy/behaviour_gap_mean': 'mean |log pi - log mu| before any step (O4)',
    'policy/approx_kl_k1': 'k1 of pi_base to pi over the update',
    'policy/approx_kl_k3': 'k3 of the same',
    'policy/kl_reference_k1': 'k1 of pi to the reference',
    'policy/kl_reference_k3': 'k3 of pi to the reference',
    'policy/clip_high': 'share clipped where the advantage is positive (L2)',
    'policy/clip_low': 'share clipped where it is negative (L2)',
    'policy/clip_dual': 'share where the dual clip bounds the loss (L3)',
    'policy/ratio_max': 'largest ratio pi / pi_base',
    'policy/ratio_p50': 'median of the ratio (L19)',
    'policy/ratio_p99': '99th percentile of the ratio',
    'policy/ratio_advantage': 'mean ratio * advantage (L14)',
    'policy/gated': 'share of tokens whose term a gate drops (L10)',
    'policy/effective_share': 'weight of the tokens that no gate drops (L10)',
    'policy/ess_share': 'effective sample size of the ratios (O1)',
    'policy/over_limit/{quantity}': 'tokens above a limit of L18',
    'policy/proxy_source/{source}': (
        'proxy: sum of |weight * d loss / d logp| over a source (L18)'
    ),
    'policy/grad_norm_source/{source}': (
        "gradient norm of a source's tokens alone (L18)"
    ),
    'policy/kl_reference_k1_family/{family}': (
        'policy/kl_reference_k1 of one task family (L6)'
    ),
    'policy/kl_reference_k3_family/{family}': 'the same by k3',
    'policy/ratio_saturated': 'tokens whose log ratio left [-20, 20] (L21)',
    'policy/grad_norm': "norm of the actor's gradient, before clipping",
    'policy/expert_busiest': (
        'share of its layer that the busiest expert had; even is 1 / experts'
    ),
    'policy/expert_idlest': 'the same of the idlest expert',
    'policy/expert_variation': (
        "deviation of experts' loads over their mean, mean of the layers"
    ),
    'policy/expert_variation_max': 'the same of the most uneven layer',
    'policy/learning_rate': "the actor's rate",
    'policy/steps_skipped': 'actor steps whose gradient was not finite (L18)',
    'policy/steps_empty': 'steps without a token to train on',
    'policy/version_gap_mean': 'updates between sampling and training, mean',
    'policy/version_gap_max': 'the same, largest',
    'policy/version': 'version that the sampler serves',
    'critic/explained_variance': 'C3 over critic tokens',
    'critic/explained_variance_rollout': 'C3, every rollout alike',
    'critic/explained_variance_scored': 'C3 over rollouts with an outcome',
    'critic/bias': 'mean V - R',
    'critic/mse': 'mean (V - R)^2',
    'critic/ece': 'calibration error over equal-count bins (C5)',
    'critic/ece_rollout': 'the same, every rollout alike',
    'critic/anchored_share': 'share of target tokens without V_N (T12)',
    'critic/holdout/{figure}': 'a critic figure over held-out tasks (C7)',
    'critic/clip_fraction': 'share of tokens whose value step is clipped (L4)',
    'critic/grad_norm': "norm of the critic's gradient, before clipping",
    'critic/learning_rate': "the critic's rate",
    'critic/steps_skipped': 'critic steps whose gradient was not finite (L18)',
    'critic/value_mean': 'mean V over critic tokens',
    'critic/value_start_solved': 'mean V at the start of solved rollouts',
    'critic/value_start_failed': 'mean V at the start of the others',
    'adv/mean': 'mean advantage before normalisation (G18)',
    'adv/std': 'population deviation of the same',
    'adv/min': 'smallest',
    'adv/max': 'largest',
    'adv/positive': 'share above 0',
    'adv/mean_normalised': 'mean after normalisation (G18)',
    'adv/std_normalised': 'population deviation after normalisation',
    'adv/raw_tokens_total': (
        'tokens left unscaled so far for want of statistics (G17)'
    ),
    'adv/segment/{index}': 'mean advantage by segment index',
    'adv/position/{bucket}': 'mean advantage by tenth of the rollout',
    'adv/source_{figure}/{source}': (
        "mean, std, min and max of a source's advantages before advantage.norm"
    ),
    'adv/source_normalised_{figure}/{source}': 'the same after it (G18)',
    'adv/histogram': 'distribution of the advantages that are trained on',
    'group/all_zero': 'share of groups with every return 0 (E8)',
    'group/all_one': 'share of groups with every return 1 (E8)',
    'group/other_flat': 'share of groups without spread at another return (E8)',
    'group/mixed': 'share of groups with different returns (E8)',
    'group/zero_spread': 'share of groups that teach nothing (E8)',
    'group/mixed_solved': 'share of groups with both outcomes (E8)',
    'group/p_mix': (
        'expected share of groups with both outcomes, by the success of'
        ' earlier batches: chance of a difference, no forecast of learning'
    ),
    'group/p_mix_known': 'share of groups whose task has an earlier outcome',
    'group/effective_size': 'members of a comparison, mean (E8)',
    'group/useful_members': 'share of members in groups with spread (E8)',
    'group/family/{family}/{figure}': 'a group figure of one task family',
    'group/mismatched': 'groups with members under other conditions (E7)',
    'group/shared_tenant': 'members in one tenant with a sibling at once (E11)',
    'group/steps': 'rewarded steps of a member, mean (E5)',
    'group/anchored_turns': 'share of turns whose state has a name (E6)',
    'group/replaced': 'groups without spread that fresh tasks replaced (E9)',
    'group/rounds': 'rounds of fresh tasks (E9)',
    'group/extra_rollouts': 'rollouts of these rounds (E9)',
    'group/extra_tokens': 'sampled tokens of these rounds (E9)',
    'group/extra_tool_calls': 'tool calls of these rounds (E9)',
    'group/left_flat': 'groups without spread after the last round (E9)',
    'group/success_sampled': 'success before any group was replaced (E9)',
    'rollout/started': 'rollouts started by this update (A5)',
    'rollout/admitted': 'rollouts trained on',
    'rollout/discarded': 'rollouts not trained on',
    'rollout/queued': 'rollouts that wait for an update',
    'rollout/running': 'rollouts that have not ended',
    'rollout/discarded/{reason}': 'share of ended rollouts discarded for this',
    'rollout/end/{kind}': 'share of ended rollouts that ended this way',
    'rollout/fault/{cause}': 'infrastructure failures of this cause (A5)',
    'rollout/sampler_restarts': 'restarts of the sampler so far (O6)',
    'rollout/close_faults': (
        'environments so far whose close failed, after their rollout'
    ),
    'rollout/tokens_{figure}': 'tokens per rollout: mean, p50, p95, max',
    'rollout/actions_{figure}': 'sampled tokens per rollout',
    'rollout/turns_{figure}': 'turns per rollout',
    'rollout/segments_{figure}': 'segments per rollout',
    'rollout/multi_segment': 'share of rollouts with two or more segments',
    'rollout/compactions': 'compactions per rollout',
    'rollout/cuts/{cause}': 'compactions of this cause per rollout',
    'rollout/discard_share/{reason}': (
        'share of all started so far that this reason discarded (A5)'
    ),
    'rollout/discard_source/{source}': (
        'share discarded of the rollouts of a source, so far'
    ),
    'rollout/discard_length/{tokens}': (
        'the same by tokens of the rollout, from this power of two'
    ),
    'rollout/discard_age/{updates}': (
        'the same by updates since its oldest token, from this power of two'
    ),
    'rollout/tool_calls': 'tool calls per rollout',
    'rollout/tool_calls_per_turn': 'tool calls per turn',
    'rollout/tool_errors': 'share of tool calls that failed',
    'rollout/counter/{name}': 'mean of an environment counter per rollout',
    'rollout/source_rollouts/{source}': 'rollouts of a source (D4)',
    'rollout/source_tokens/{source}': 'tokens of a source (D4)',
    'rollout/task_standing/{standing}': (
        'share of drawn tasks by their success before the draw (D7)'
    ),
    'rollout/task_weight': 'sampling weight of the drawn tasks, mean (D7)',
    'rollout/easier_variants': 'share of draws replaced by an easier one (D7)',
    'rollout/tasks_passed_over': 'tasks that the curriculum skipped (D7)',
    'rollout/length_histogram': 'distribution of tokens per rollout',
    'rollout/return_histogram': 'distribution of raw terminal rewards',
    'rollout/critic_only': 'rollouts that train the critic alone (T6)',
    'rollout/truncated_to_score': 'truncated rollouts in terminal mode (T13)',
    'rollout/truncated_unscored': 'of these, those without a score (T13)',
    'loss/nll': 'mean negative log-likelihood of demonstrated tokens',
    'loss/total': 'policy, entropy and KL terms together',
    'loss/policy': 'policy term under the fixed weights (4.2)',
    'loss/value': 'value term (L4)',
    'loss/entropy': 'entropy bonus',
    'loss/kl': 'KL term',
    'loss/policy_family/{family}': (
        'mean policy term of one task family, without weights (L12)'
    ),
    'loss/policy_tokens': "tokens in the policy loss's denominator",
    'loss/critic_tokens': "tokens in the value loss's denominator",
    'loss/longest_share': 'weight of the longest tenth of the rollouts',
    'perf/seconds/{phase}': 'wall seconds of a phase of the update',
    'perf/seconds_total': 'wall seconds of the update',
    'perf/generated_tokens_per_s': 'sampled tokens per second of the rollout',
    'perf/trained_tokens_per_s': 'real tokens per second of the updates',
    'perf/tokens_per_s': 'sampled tokens per second of the whole update',
    'perf/packing_waste': '1 - real tokens / (rows * length) (P4)',
    'perf/real_tokens': 'tokens of the batch',
    'perf/padded_tokens': 'tokens of the batch with padding',
    'perf/rows': 'packed rows of the batch',
    'perf/compilations': 'XLA compilations during the update',
    'perf/slot_use': 'live decode slot-steps over all of them',
    'perf/prefill_waste': 'padded share of the prefill tokens',
    'perf/sampled_tokens_total': 'sampled tokens of the run so far',
    'perf/train_seconds': 'wall seconds of training so far',
    'perf/overflow/{counter}': (
        'numbers that left their range in this update (L21)'
    ),
    'perf/host_transfer_gib': (
        'idle arrays moved to the host and back (memory.*), all devices'
    ),
    'perf/memory_gib': 'resident memory of the process',
    'eval/success': 'success on held-out tasks, training temperature',
    'eval/success_low': 'lower end of its 95 % interval over tasks (A3)',
    'eval/success_high': 'upper end',
    'eval/greedy': 'success on held-out tasks, greedy',
    'eval/greedy_low': 'lower end of its 95 % interval over tasks',
    'eval/greedy_high': 'upper end',
    'eval/verifier_disagreement': (
        'share of second scores that differed so far: its noise floor (D8)'
    ),
    'eval/t{temperature}/{figure}': 'a figure of one evaluation temperature',
    'sample/best': 'transcripts of the highest returns',
    'sample/worst': 'transcripts of the lowest returns',
    'sample/random': 'transcripts drawn at random',
    'run/config': 'the settings in force',
    'run/gate': '5 is open; 1 restored, 2 synced, 3 aligned, 4 calibrated (O8)',
    'run/critic_only_updates': (
        'updates without the actor, the critic being off after a resume (O8)'
    ),
    **critic_tags.TAGS,
}

GROUPS = (
    'reward',
    'policy',
    'critic',
    'slice',
    'adv',
    'group',
    'rollout',
    'loss',
    'perf',
    'eval',
    'sample',
    'run',
)


def _lines(*names: str) -> list[str | list[str]]:
  """A chart of lines; TensorBoard matches a tag's beginning, hence the $."""
  return ['Multiline', [f'{name}$' for name in names]]


def _band(name: str) -> list[str | list[str]]:
  """A chart of a figure within its interval."""
  return ['Margin', [name, f'{name}_low', f'{name}_high']]


HEALTH_LAYOUT = {
    'RL health': {
        'success, training batch': _lines(
            'reward/success',
            'reward/success_truncated_as_failure',
            'reward/success_discarded_as_failure',
        ),
        'success, held-out (T = training)': _band('eval/success'),
        'success, held-out (greedy)': _band('eval/greedy'),
        'explained variance': _lines(
            'critic/explained_variance',
            'critic/explained_variance_scored',
            'critic/holdout/explained_variance_scored',
        ),
        'entropy': _lines('policy/entropy'),
        'sampler against trainer': _lines(
            'policy/behaviour_gap_max', 'policy/kl_behaviour_k3'
        ),
        'policy step': _lines(
            'policy/approx_kl_k3', 'policy/clip_high', 'policy/clip_low'
        ),
        'gradient norms': _lines('policy/grad_norm', 'critic/grad_norm'),
        'advantage': _lines('adv/mean', 'adv/std', 'adv/positive'),
        'value bias': _lines('critic/bias'),
        'segments and turns': _lines(
            'rollout/segments_mean', 'rollout/turns_mean'
        ),
        'ends other than by the policy': _lines(
            'rollout/end/(?!policy_stop|success).+'
        ),
        'discards': _lines('rollout/discarded(/.+)?'),
        'seconds by phase': _lines('perf/seconds/.+'),
    }
}


def unknown(names: Iterable[str]) -> list[str]:
  """The names that no entry of TAGS covers."""
  return sorted(n for n in set(names) if not _ANY.fullmatch(n))


def described(name: str) -> str | None:
  """The sentence of a tag; None if it is unknown."""
  for pattern, sentence in TAGS.items():
    if re.fullmatch(_expression(pattern), name):
      return sentence
  return None


def _expression(pattern: str) -> str:
  parts = re.split(r'\{\w+\}', pattern)
  return '[^ ]+'.join(re.escape(part) for part in parts)


_ANY = re.compile('|'.join(_expression(pattern) for pattern in TAGS))
