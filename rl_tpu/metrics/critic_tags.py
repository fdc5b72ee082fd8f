"""Names of the figures of critic, age and alignment (sections 6 and 7)."""

_DIVISIONS = {
    'position': 'by tenth of the rollout',
    'index': 'by action index, from this power of two',
    'source': 'by task source',
    'family': 'by task family',
    'end': 'by kind of end',
}
_SLICED = {
    'bias': 'mean V - R',
    'mse': 'mean (V - R)^2',
    'value': 'mean V',
    'advantage': 'mean advantage before normalisation',
    'delta': 'mean TD residual',
}

TAGS: dict[str, str] = {
    f'slice/{figure}_by_{division}/{{bucket}}': f'{meaning} {where} (C4)'
    for division, where in _DIVISIONS.items()
    for figure, meaning in _SLICED.items()
}
TAGS |= {
    f'slice/{figure}_by_gap/{{gap}}': f'{meaning} by version gap (C2)'
    for figure, meaning in (
        ('bias', 'mean V - R'),
        ('mse', 'mean (V - R)^2'),
        ('explained_variance', 'C3'),
        ('tokens', 'critic tokens'),
    )
}
TAGS |= {
    'slice/holdout/{figure}': 'a slice over held-out tasks (C7)',
    'slice/value_of_success/{bucket}': (
        'mean V of matched successes by tenth of the rollout (C6)'
    ),
    'slice/value_of_failure/{bucket}': 'the same of as many failures',
    'slice/policy_{figure}_by_length/{actions}': (
        "a figure of the data's age by sampled tokens of the rollout, from"
        ' this power of two (O1)'
    ),
    'slice/rollout_{figure}_by_length/{actions}': 'the same of its waits',
    'critic/ece_scored': 'critic/ece over rollouts with an outcome (C5)',
    'critic/ece_bootstrapped': 'critic/ece over bootstrapped ones (C5)',
    'critic/delta_cut': 'mean TD residual at cuts alone (C4)',
    'critic/delta_cut_abs': 'mean |TD residual| at cuts alone (C4)',
    'critic/matched_pairs': 'successes matched with a failure (C6)',
    'critic/matched_dropped_cells': 'cells with only one of the two (C6)',
    'critic/matched_dropped_rollouts': 'rollouts without a partner (C6)',
    'critic/first_deviation': (
        'first tenth in which the values of success and failure part (C6)'
    ),
    'critic/calibration': 'picture: mean return over mean prediction (C5)',
    'critic/calibration/{ends}': (
        'the same of scored and of bootstrapped rollouts alone'
    ),
    'critic/value_curves': 'picture: matched value curves (C6)',
    'critic/warm_up': '1 while the actor is frozen (C1)',
    'critic/same_returns': '1 if all returns of the batch are equal (C12)',
    'critic/alarm/{name}': '1 in a batch that raises this alarm (C13)',
    'adv/first_tenth': 'share of the positive advantage in the first tenth',
    'adv/last_tenth': 'share of it in the last tenth (C13)',
    'policy/version_gap_oldest_mean': (
        "gap of a rollout's oldest token, mean (O1)"
    ),
    'policy/ess_behaviour': (
        'effective sample size of the baseline over the sampler (O1)'
    ),
    'policy/stale_share': 'share of policy tokens left out for their age (O2)',
    'policy/stale_weight': 'share of the policy weight that they had (L10)',
    'rollout/queue_wait_mean': 'seconds from the end to the update (O1)',
    'rollout/queue_wait_max': 'the same, longest',
    'rollout/kl_behaviour_mean': (
        'k3 of sampler to policy per rollout, measured for staleness.max_kl'
    ),
    'rollout/kl_behaviour_max': 'the same, largest',
    'policy/alignment_max_abs': (
        'largest |log trainer - log sampler| on fixed sequences (O4)'
    ),
    'policy/alignment_mean_abs': 'mean of the same',
    'policy/alignment_k1': 'k1 of the sampler to the trainer there',
    'policy/alignment_k3': 'k3 of the same',
    'policy/alignment_position/{position}/{figure}': (
        'the same from this power of two of the position on'
    ),
    'policy/alignment_control/{control}': (
        'mean distance under a setting that is wrong on purpose (O4)'
    ),
    'policy/alignment_support/{figure}': (
        'the figures of the check under sampling supports of a few ids (L16)'
    ),
    'policy/alignment_impossible': (
        'share of tokens outside a wrong support with log-prob -inf, has to be'
        ' 1 (O4)'
    ),
    'run/warm_up': "the end of the critic's warm-up, with the actor's hash",
    'run/alarm': 'alarms with the ids of the batch (C13)',
}
