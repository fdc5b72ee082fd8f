"""One agent run as a generator: prompt, reply, environment, compaction, end.

A session owns no thread and never waits. It yields what it needs (`Sample`,
`Call`, `Verify`), the runner sends the answer in, and a fault is thrown in as
`Fault`. So sixty-four sessions share one decode engine, and a hung
environment stops one session only.
"""

import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from rl_tpu.environments import protocol
from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.rollout import asks
from rl_tpu.rollout import compaction
from rl_tpu.rollout import recorder as recorder_lib
from rl_tpu.rollout import token_typing
from rl_tpu.sampler import types as sampler_types
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import termination as term


Sample = asks.Sample
Call = asks.Call
Verify = asks.Verify
Fault = asks.Fault
Ask = asks.Ask
Settings = asks.Settings
Job = asks.Job
derive_seed = asks.derive_seed


class Session:
  """The state of one rollout; `run` is the generator."""

  def __init__(
      self,
      job: Job,
      spec: protocol.EnvironmentSpec,
      template: chat.ChatTemplate,
      tokenizer: tokenizer_lib.Tokenizer,
      settings: Settings,
      clock: Callable[[], float] = time.time,
  ):
    """Prepares the run; nothing happens before `run` is iterated."""
    self._clock = clock
    self._job = job
    self._spec = spec
    self._tokenizer = tokenizer
    self._settings = settings
    tools = protocol.tools_of(spec, job.task)
    self._talk = chat.Conversation(template.with_tools(tools), tokenizer)
    named = (tokenizer.token_id(text) for text in settings.sampling.stop)
    self._stop_ids = tuple(named) or tokenizer.stop_ids
    # Of the task, not of the member: group members have to be comparable (E7).
    self._lineage = f'{spec.name}/{spec.version}@{job.task.seed}'
    self._recorder = recorder_lib.Recorder(
        job.rollout_id, self._lineage, settings.reward_weights
    )
    self._turns = 0
    self._window_turns = 0
    self._sampled_tokens = 0
    self._tenant: str | None = None
    self._state_ids: dict[int, str] = {}
    self._counters: dict[str, float] = {}
    self._t_start = 0.0
    self._pending: tuple[protocol.Message, ...] = ()
    self._calls: tuple[protocol.ToolCall, ...] = ()
    # Empty where nothing was scored.
    self._evidence_hash = ''

  def run(self) -> Generator[Ask, Any, records.Rollout]:
    """Runs to an end; returns the record whatever happened."""
    self._t_start = self._clock()
    try:
      end = yield from self._play()
      score = yield from self._score(end)
    except Fault as fault:
      end = protocol.End(term.Termination.INFRA_FAILURE)
      return self._record(end, None, fault)
    except chat.MessagesRefused as refused:
      # They are the environment's: the policy only ever answers them.
      end = protocol.End(term.Termination.INFRA_FAILURE)
      fault = Fault(term.FaultCause.ENVIRONMENT, f'environment: {refused}')
      return self._record(end, None, fault)
    fault = None
    if end.kind == term.Termination.INFRA_FAILURE:
      fault = Fault(term.FaultCause.ENVIRONMENT, 'environment: it said so')
    return self._record(end, score, fault)

  def _play(self) -> Generator[Ask, Any, protocol.End]:
    observation = yield Call('reset', (self._job.task, self._job.task.seed))
    if protocol.TENANT in self._spec.capabilities:
      self._tenant = yield Call('tenant_id')
    instruction = yield Call('instruction')
    self._pending = observation.prompt
    opening = [*instruction, *observation.messages, *observation.prompt]
    self._recorder.open(self._talk.open(opening))
    while True:
      end = self._budget_end()
      if end is not None:
        return end
      completion, limited_by = yield from self._reply()
      if completion is None:
        return protocol.End(term.Termination.CONTEXT_TRUNCATION)
      if completion.finish_reason != 'stop' and limited_by is not None:
        return protocol.End(limited_by)
      yield from self._name_state()
      action = protocol.Action(
          self._tokenizer.decode(completion.token),
          completion.finish_reason,
          self._calls,
      )
      step = yield Call('step', (action,))
      for name, value in step.rewards.items():
        self._recorder.reward(name, value)
      for name, value in step.counters.items():
        self._count(name, value)
      if step.end is not None:
        if step.observation is not None and step.observation.messages:
          messages = step.observation.messages
          self._recorder.observe(self._talk.add(messages, ask=False))
        return step.end
      yield from self._observe(step.observation)

  def _name_state(self, asked: str = '') -> Generator[Ask, Any, None]:
    """Records the state that the last turn was taken in (E6).

    Being asked for a summary is another state than acting in the same place of
    the environment: `asked` keeps the two apart.
    """
    if protocol.STATE_ID in self._spec.capabilities:
      state_id = yield Call('state_id')
      self._state_ids[self._turns - 1] = f'{asked}{state_id}'

  def _observe(
      self, observation: protocol.Observation
  ) -> Generator[Ask, Any, None]:
    """Appends what happened and what is asked next, compacting if due."""
    before = self._talk.messages
    try:
      yield from self._append(observation)
    except chat.HistoryRewritten:
      # The policy goes on from other tokens than it has seen: a cut (K04).
      self._recorder.cut(term.Cut.COMPACTION, term.CutCause.TEMPLATE)
      opening = [*before, *observation.messages, *observation.prompt]
      self._recorder.open(self._talk.open(opening))
      self._window_turns = 0
      self._count('history_rewritten')

  def _append(
      self, observation: protocol.Observation
  ) -> Generator[Ask, Any, None]:
    settings = self._settings
    said, prompt = observation.messages, observation.prompt
    self._recorder.observe(self._talk.add(said, ask=False))
    if prompt:
      self._pending = prompt
    asked = self._talk.preview(prompt, ask=True)
    request = (protocol.Message('user', settings.compaction.request),)
    request_ids = self._talk.preview(request, ask=True)
    due = compaction.is_due(
        settings.compaction,
        window=settings.budgets.window,
        used=self._recorder.segment_length,
        prompt=len(asked),
        request=len(request_ids),
        turns=self._window_turns,
        max_turn_tokens=settings.sampling.max_turn_tokens,
        at_prompt=bool(prompt),
    )
    if not due:
      self._recorder.observe(self._talk.add(prompt, ask=True))
      return
    if settings.compaction.author == 'policy':
      if self._budget_end() is not None:
        # The summary would be the turn that the budget does not have; the
        # loop ends the rollout with the reason.
        self._recorder.observe(self._talk.add(prompt, ask=True))
        return
      self._recorder.remark(self._talk.add(request, ask=True))
      completion, limited_by = yield from self._reply(is_summary=True)
      if completion is None:
        # What happened fills the window: the next turn finds that out as well.
        return
      yield from self._name_state('summary/')
      if completion.finish_reason != 'stop' and limited_by is not None:
        # No tokens are left: the next turn finds that out as well.
        self._count('summaries_cut_short')
      text = self._tokenizer.decode(self._without_stop(completion.token))
    else:
      text = yield Call('summarise')
    yield from self._continue_with(text, said if not prompt else ())

  def _continue_with(
      self, summary: str, said: tuple[protocol.Message, ...]
  ) -> Generator[Ask, Any, None]:
    """Cuts, and opens the next window on the summary."""
    settings = self._settings
    by_policy = settings.compaction.author == 'policy'
    self._recorder.cut(
        term.Cut.COMPACTION,
        term.CutCause.POLICY_SUMMARY
        if by_policy
        else term.CutCause.RUNTIME_SUMMARY,
    )
    if protocol.READS_SUMMARY in self._spec.capabilities:
      yield Call('remember', (summary.strip(),))
    instruction = yield Call('instruction')
    carried = settings.compaction.carry.replace('{summary}', summary.strip())
    # A cut in the middle of an exchange carries the pending prompt and the
    # last result over, or the agent could not know what it is answering.
    opening = [
        *instruction,
        protocol.Message('user', carried),
        *self._pending,
        *said,
    ]
    self._recorder.open(
        self._talk.open(opening),
        summary=self._tokenizer.encode(summary),
        summary_author=settings.compaction.author,
    )
    self._window_turns = 0
    self._count('compactions')

  def _reply(
      self, *, is_summary: bool = False
  ) -> Generator[Ask, Any, tuple[Any, term.Termination | None]]:
    """Samples one turn.

    Returns:
      The completion (None where the window has no room for one token), and
      the end that a reply without a stop token means: a budget's or the
      window's; None where only the turn's own limit was reached.
    """
    settings = self._settings
    prompt = self._recorder.tokens()
    limit = (
        settings.compaction.max_summary_tokens
        if is_summary
        else settings.sampling.max_turn_tokens
    )
    limited_by = None
    if settings.budgets.window is not None:
      room = settings.budgets.window - len(prompt)
      if room <= 0:
        return None, None
      if room < limit:
        limit, limited_by = room, term.Termination.CONTEXT_TRUNCATION
    if settings.budgets.tokens is not None:
      left = settings.budgets.tokens - self._sampled_tokens
      if left < limit:
        limit, limited_by = left, term.Termination.BUDGET_TRUNCATION
    seed = derive_seed(self._job.seed, 'turn', self._turns)
    sampling = settings.sampling
    request = sampler_types.Request(
        request_id=f'{self._job.rollout_id}:{self._turns}',
        prompt=prompt,
        params=sampler_types.SamplingParams(
            max_tokens=limit,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            stop_ids=self._stop_ids,
            seed=seed,
        ),
    )
    completion = yield Sample(request, is_summary)
    if not np.isfinite(completion.logprob).all():
      # Its tokens are of no policy that the trainer knows (R5).
      raise Fault(
          term.FaultCause.SAMPLER,
          f'sampler: log-probabilities of turn {self._turns} are not finite',
      )
    token_type, self._calls = token_typing.read(
        completion.token, self._tokenizer, self._spec, self._stop_ids
    )
    self._recorder.sampled(
        completion.token,
        completion.logprob,
        completion.version,
        turn_id=self._turns,
        sampling=self._sampling_record(seed),
        support=completion.support,
        token_type=token_type,
        is_summary=is_summary,
    )
    self._talk.reply(self._tokenizer.decode(completion.token))
    self._turns += 1
    self._window_turns += 1
    self._sampled_tokens += len(completion.token)
    return completion, limited_by

  def _count(self, name: str, value: float = 1.0) -> None:
    self._counters[name] = self._counters.get(name, 0.0) + value

  def _budget_end(self) -> protocol.End | None:
    budgets = self._settings.budgets
    spent = (
        (budgets.turns, self._turns),
        (budgets.tokens, self._sampled_tokens),
        (budgets.wall_s, self._clock() - self._t_start),
    )
    if any(limit is not None and used >= limit for limit, used in spent):
      return protocol.End(term.Termination.BUDGET_TRUNCATION)
    return None

  def _score(self, end: protocol.End) -> Generator[Ask, Any, Any]:
    """Lets the verifier score ends that are scored (T2, T7, T13)."""
    kinds = term.Termination.SUCCESS, term.Termination.POLICY_STOP
    scored = end.kind in kinds
    if term.is_truncation(end.kind, end.abort_cause):
      scored = self._settings.scores_truncations
    if not scored:
      return None
    evidence = yield Call('evidence')
    score = yield Verify(evidence)
    self._evidence_hash = hashes.json_hash(evidence)
    if asks.share_of(self._job.rollout_id) < self._settings.rescore_share:
      yield from self._rescore(evidence, score)
    return score

  def _rescore(
      self, evidence: dict[str, Any], first: Any
  ) -> Generator[Ask, Any, None]:
    """Scores the same evidence again and counts what differs (D8)."""
    try:
      second = yield Verify(evidence)
    except Fault:
      # The rollout has its score; that the verifier failed is its own figure.
      self._count('verifier_rescore_faults')
      return
    self._count('verifier_rescored')
    gap = float(second.value) - float(first.value)
    agrees = gap == 0.0 and bool(second.solved) == bool(first.solved)
    self._count('verifier_disagreed', float(not agrees))
    self._count('verifier_squared_gap', gap * gap)

  def _without_stop(self, ids: np.ndarray) -> np.ndarray:
    ends = len(ids) and int(ids[-1]) in self._stop_ids
    return ids[:-1] if ends else ids

  def _sampling_record(self, seed: int) -> records.Sampling:
    sampling = self._settings.sampling
    return records.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        stop_ids=self._stop_ids,
        seed=seed,
        sampler_build=self._settings.sampler_build,
        sampler_dtype=self._settings.sampler_dtype,
        template_hash=self._talk.template_hash,
        tokenizer_hash=self._tokenizer.hash,
    )

  def _record(
      self, end: protocol.End, score: Any, fault: Fault | None
  ) -> records.Rollout:
    job, spec = self._job, self._spec
    segments = self._recorder.close(end.kind)
    reward, solved = None, None
    components = dict(self._recorder.components)
    told = {}
    if score is not None:
      told = {n: float(v) for n, v in score.components.items()}
      if np.isfinite(score.value):
        reward, solved = float(score.value), bool(score.solved)
    elif end.kind == term.Termination.FAILURE:
      reward, solved = 0.0, False
    self._counters['turns'] = float(self._turns)
    return records.Rollout(
        rollout_id=job.rollout_id,
        task_id=job.task.task_id,
        source=job.task.source,
        task_family=job.task.family,
        group_id=job.group_id,
        termination=end.kind,
        abort_cause=end.abort_cause,
        fault_cause=fault.cause if fault else None,
        terminal_reward=reward,
        solved=solved,
        reward_components=components,
        score_components=told,
        env_name=spec.name,
        env_version=spec.version,
        env_seed=job.task.seed,
        env_snapshot=self._lineage,
        permissions_hash=spec.permissions_hash,
        tool_set_hash=protocol.tool_set_of(spec, job.task),
        tenant_id=self._tenant,
        verifier_id=self._settings.verifier_id,
        verifier_version=self._settings.verifier_version,
        verifier_input_hash=self._evidence_hash,
        budgets=self._settings.budgets,
        num_segments=len(segments),
        segments=segments,
        t_start=self._t_start,
        t_end=self._clock(),
        state_ids=self._state_ids,
        counters=self._counters,
        fault_detail=str(fault) if fault else None,
    )
