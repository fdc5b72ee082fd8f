"""Faults of records, ends, advantages and packing: ids V, R, T, G and P.

One for every id that no classic fault of `faults.py` breaks, in the order of
rl_tpu/ALGORITHMS.md.
"""

from tests.mutation import patches

_PROPERTIES = ('tests/advantages/gae_properties_test.py',)
_GOLDEN = ('tests/advantages/gae_golden_test.py',)
_ADMISSION = ('tests/rollout/admission_test.py',)
_BATCHING = ('tests/rollout/batching_test.py',)
_RECORDS = ('tests/records/records_test.py',)
_RECORDER = ('tests/rollout/recorder_test.py',)
_SESSION = ('tests/rollout/session_test.py',)
_TERMINATION = ('tests/types/termination_test.py',)
_DECODER = ('tests/models/decoder_test.py',)

_GAE = 'rl_tpu/advantages/gae.py'
_ROLLOUT = 'rl_tpu/rollout'

_fault = patches.fault

_RECORD_FAULTS = (
    _fault(
        'a position sees the token after it', 'V2', _DECODER,
        'rl_tpu/models/attention.py',
        {'visible = query_time >= key_time':
             'visible = query_time + 1 >= key_time'},
    ),
    _fault(
        'a record does not say which tools there were', 'R1', _RECORDS,
        'rl_tpu/records/records.py', {'  tool_set_hash: str\n': ''},
    ),
    _fault(
        'summaries are left out of the action offset', 'R2', _RECORDER,
        f'{_ROLLOUT}/recorder.py',
        {'sum(int(s.is_action.sum()) for s in before)':
             'sum(int((s.role == records.ACTION).sum()) for s in before)'},
    ),
    _fault(
        'the stop of a summary is one of its words', 'R3', _RECORDER,
        f'{_ROLLOUT}/recorder.py',
        {'    if len(ids) and int(ids[-1]) in sampling.stop_ids:\n':
             '    is_stop = len(ids) and int(ids[-1]) in sampling.stop_ids\n'
             '    if is_stop and not is_summary:\n'},
    ),
    _fault(
        'replies are tokenised again', 'R4', _SESSION, f'{_ROLLOUT}/session.py',
        {'    self._recorder.sampled(\n        completion.token,\n':
             '    self._recorder.sampled(\n        self._tokenizer.encode(\n'
             '            self._tokenizer.decode(completion.token)\n'
             '        ),\n'},
    ),
    _fault(
        'a support that was too large counts as recorded', 'R5', _ADMISSION,
        f'{_ROLLOUT}/admission.py',
        {'np.any((count == support_lib.TOO_LARGE) | is_missing)':
             'np.any(is_missing)'},
    ),
    _fault(
        'the end of the first segment is not looked at', 'R6', _ADMISSION,
        f'{_ROLLOUT}/chain.py',
        {
            'for segment in segments[:-1]:\n    if segment.end_kind': (
                'for segment in segments[1:-1]:\n    if segment.end_kind'
            )
        },
    ),
    _fault(
        'a copied summary is trained on again', 'R7', _RECORDER,
        f'{_ROLLOUT}/recorder.py',
        {'self._draft.add(context, records.CONTEXT)':
             'self._draft.add(\n        context,\n'
             '        records.SUMMARY if summary_author else records.CONTEXT,\n'
             '    )'},
    ),
    _fault(
        'log-probabilities are written with six digits', 'R8',
        ('tests/records/jsonl_test.py',), 'rl_tpu/records/jsonl.py',
        {'return [float(text) for text in array.astype(str)]':
             'return [round(float(text), 6) for text in array.astype(str)]'},
    ),
    _fault(
        'the score is paid at a position as well', 'R9',
        ('tests/rewards/components_test.py',), 'rl_tpu/rewards/components.py',
        {'    if name == TERMINAL:\n      continue\n': ''},
    ),
)

_END_FAULTS = (
    patches.Fault(
        'an abort without a cause is of an unknown one', 'T1',
        (
            (f'{_ROLLOUT}/chain.py',
             '  if aborted != (rollout.abort_cause is not None):\n',
             '  if rollout.abort_cause is not None and not aborted:\n'),
            ('rl_tpu/types/termination.py',
             "      raise ValueError('a runtime_abort must carry its"
             " abort_cause.')\n",
             '      abort_cause = AbortCause.UNKNOWN\n'),
        ),
        _ADMISSION,
    ),
    _fault(
        'what an operator ends is a budget that ran out', 'T5', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'if abort_cause == AbortCause.RESOURCE_LIMIT\n':
             'if abort_cause != AbortCause.UNKNOWN\n'},
    ),
    _fault(
        'what only the critic keeps trains the policy', 'T6', _TERMINATION,
        'rl_tpu/types/termination.py',
        {'return Verdict(False, critic, EndMode.BOOTSTRAP, None, reason)':
             'return Verdict(critic, critic, EndMode.BOOTSTRAP, None, reason)'},
    ),
    _fault(
        'a rollout that never began is a broken chain', 'T8', _ADMISSION,
        f'{_ROLLOUT}/chain.py',
        {"return 'no segment is stored' if rollout.num_segments else None":
             "return 'no segment is stored'"},
    ),
    _fault(
        'a success in the last second is bootstrapped', 'T9',
        ('tests/advantages/callable_cases_test.py',),
        'rl_tpu/advantages/callable.py',
        {'reached = np.where(terminated, 0.0, next_values)':
             'reached = np.where(terminated & ~truncated, 0.0, next_values)'},
    ),
    _fault(
        'length is looked at before age', 'T11', _ADMISSION,
        f'{_ROLLOUT}/admission.py',
        {'        (_Reason.STALE, bool(over), over),\n': '',
         '        (_Reason.GROUP_INCOMPLETE, False, \'\'),\n':
             '        (_Reason.STALE, bool(over), over),\n'
             '        (_Reason.GROUP_INCOMPLETE, False, \'\'),\n'},
    ),
    _fault(
        'an outcome does not end the count of a task', 'T12', _ADMISSION,
        f'{_ROLLOUT}/ledger.py',
        {'        self.unscored.pop(task, None)\n        continue\n':
             '        continue\n'},
    ),
    _fault(
        'missing scores are looked for among what was admitted', 'T13',
        _ADMISSION, f'{_ROLLOUT}/admission.py',
        {'sum(d.reason == _Reason.REWARD_MISSING for d in to_score)':
             'sum(\n              d.reason == _Reason.REWARD_MISSING\n'
             '              for d in to_score\n'
             '              if d.admitted is not None\n          )'},
    ),
    _fault(
        'the clock of a rollout ends nothing', 'T14', _SESSION,
        f'{_ROLLOUT}/session.py',
        {'used >= limit for limit, used in spent)':
             'used >= limit for limit, used in spent[:2])'},
    ),
)

_ADVANTAGE_FAULTS = (
    _fault(
        'a reward lands on the first token of its turn', 'G7', _RECORDER,
        f'{_ROLLOUT}/recorder.py',
        {'draft.last_action = draft.length - 1':
             'draft.last_action = draft.length - len(ids)'},
    ),
    _fault(
        'the reference gains what the reward loses', 'G8',
        ('tests/losses/kl_test.py',), 'rl_tpu/losses/kl.py',
        {'return coef * (base_logp_BT - reference_logp_BT)':
             'return coef * (reference_logp_BT - base_logp_BT)'},
    ),
    _fault(
        'values stand in the returns off the actions', 'G14', _PROPERTIES,
        _GAE,
        {'  return_BT = jnp.where(\n'
         '      joins.transition_mask_BT, critic_BT + value_BT, 0.0\n  )\n':
             '  return_BT = critic_BT + value_BT\n'},
    ),
    _fault(
        'the sample deviation is logged', 'G18',
        ('tests/metrics/summary_test.py',), 'rl_tpu/metrics/summary.py',
        {"'adv/std': float(advantage.std())":
             "'adv/std': float(advantage.std(ddof=1))"},
    ),
    _fault(
        'denominators of a critic of turns count tokens', 'G19', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {'  critic[acts.token[acts.transition]] = True\n':
             '  critic[acts.token] = True\n'},
    ),
    _fault(
        'blocks before the last share no reward', 'G20', _GOLDEN, _GAE,
        {'_with_beyond(joins, gae.gamma * value_BT, shared_N, end_R)':
             '_with_beyond(joins, gae.gamma * value_BT, 0.0, end_R)'},
    ),
    _fault(
        'the bootstrap value is read at the end of the row', 'G22',
        _PROPERTIES, f'{_ROLLOUT}/joins.py',
        {'  final = grid.place[_segment_end(flat)[ends - 1]]\n':
             '  final = grid.place[_segment_end(flat)[ends - 1]]\n'
             '  final = (final // grid.shape[1] + 1) * grid.shape[1] - 1\n'},
    ),
    _fault(
        'a resumed window is an end for its trace', 'G24', _PROPERTIES,
        f'{_ROLLOUT}/joins.py',
        {'      segment[is_first], flat.segment_rollout[segment[is_first]]\n':
             '      segment[is_first],\n'
             '      np.where(\n'
             '          [flat.segments[k].end_kind == \'resume_cut\'\n'
             '           for k in segment[is_first]],\n'
             '          -1 - segment[is_first],\n'
             '          flat.segment_rollout[segment[is_first]],\n'
             '      ),\n'},
    ),
    _fault(
        'the residual forgets the value of its own state', 'G28', _PROPERTIES,
        _GAE,
        {'joins.transition_mask_BT, earned_BT + next_BT - value_BT, 0.0':
             'joins.transition_mask_BT, earned_BT + next_BT, 0.0'},
    ),
    _fault(
        'rewards are clipped to one', 'G29', _PROPERTIES, _GAE,
        {'  reward_BT = joins.reward_BT\n':
             '  reward_BT = jnp.clip(joins.reward_BT, -1.0, 1.0)\n'},
    ),
    _fault(
        'the trace runs on into the next rollout', 'G30', _PROPERTIES,
        f'{_ROLLOUT}/joins.py',
        {'      segment[is_first], flat.segment_rollout[segment[is_first]]\n':
             '      segment[is_first], np.zeros(is_first.sum())\n'},
    ),
    _fault(
        'after a time limit comes the state of the next episode', 'G31',
        ('tests/advantages/callable_test.py',),
        'rl_tpu/advantages/callable.py',
        {'reached = np.where(terminated, 0.0, next_values)':
             'following = np.append(values[1:], next_values[-1:])\n'
             '  reached = np.where(terminated, 0.0, following)'},
    ),
    _fault(
        'values in the dtype of the model', 'G32', _PROPERTIES, _GAE,
        {'  value_BT = stop(value_BT).astype(jnp.float32)\n':
             '  value_BT = stop(value_BT).astype(jnp.bfloat16)\n'
             '  value_BT = value_BT.astype(jnp.float32)\n'},
    ),
)

_PACKING_FAULTS = (
    _fault(
        'attention does not stop at the seam', 'P2', _DECODER,
        'rl_tpu/models/attention.py',
        {'  same = segment_BT[:, start:stop, None] == segment_BT[:, None,'
         ' :stop]\n':
             '  padding = segment_BT < 0\n'
             '  same = padding[:, start:stop, None] == padding[:, None,'
             ' :stop]\n'},
    ),
    _fault(
        'segments of a rollout are read back in another order', 'P3',
        _BATCHING, f'{_ROLLOUT}/batching.py',
        {'tuple(place_of[id(segment)] for segment in rollout.segments)':
             'tuple(place_of[id(s)] for s in reversed(rollout.segments))'},
    ),
    _fault(
        'what is no action is waste', 'P4', _BATCHING,
        f'{_ROLLOUT}/batching.py',
        {"'waste': 1.0 - real / padded":
             "'waste': 1.0 - flat.is_action.sum() / padded"},
    ),
    _fault(
        'a piece that is too long is cut to fit', 'P5', _BATCHING,
        f'{_ROLLOUT}/packing.py',
        {'    if length > capacity:\n':
             '    length = min(length, capacity)\n'
             '    if length > capacity:\n'},
    ),
)

FAULTS = (
    *_RECORD_FAULTS,
    *_END_FAULTS,
    *_ADVANTAGE_FAULTS,
    *_PACKING_FAULTS,
)
