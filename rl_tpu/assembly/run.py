"""A training run: the stages that `trainer.train` calls, in its order.

Each stage hands plain data to the next. The run object holds what outlives a
step: device state, cursors, counters, writers.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_tpu.advantages import groups
from rl_tpu.advantages import normalise
from rl_tpu.advantages import stepwise
from rl_tpu.assembly import ages
from rl_tpu.assembly import aligning
from rl_tpu.assembly import bearing as bearing_lib
from rl_tpu.assembly import critic_figures
from rl_tpu.assembly import figures
from rl_tpu.assembly import gates as gates_lib
from rl_tpu.assembly import incidents
from rl_tpu.assembly import gathering as gathering_lib
from rl_tpu.assembly import judging
from rl_tpu.assembly import parts
from rl_tpu.assembly import policy as policy_lib
from rl_tpu.assembly import profiling
from rl_tpu.assembly import resuming
from rl_tpu.assembly import serving as serving_lib
from rl_tpu.assembly import warm_up as warm_up_lib
from rl_tpu.assembly import watching
from rl_tpu.checkpointing import mirror as mirror_lib
from rl_tpu.checkpointing import store as store_lib
from rl_tpu.config import schema
from rl_tpu.learner import report as report_lib
from rl_tpu.learner import state as state_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.metrics import phases
from rl_tpu.metrics import summary
from rl_tpu.metrics import writers
from rl_tpu.records import jsonl
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import ledger as ledger_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.rollout import staleness
from rl_tpu.sharding import compile_count
from rl_tpu.types import stops


@dataclasses.dataclass
class TrainingRun:
  """State and stages of one run."""

  config: schema.ExperimentConfig
  workdir: str
  mirror: mirror_lib.Mirror
  world: parts.World
  policy: policy_lib.Policy
  learner: Any
  updater: update_lib.Updater
  sampler: Any
  state: state_lib.TrainState
  gathering: gathering_lib.Gathering
  eval_tasks: Sequence[records.Task]
  checkpoints: store_lib.CheckpointStore
  writer: writers.Writers
  progress: Any
  reference_id: str
  reference_hash: str | None
  compiles: compile_count.CompileCounter
  watch: critic_figures.CriticWatch
  warm_up: warm_up_lib.WarmUp
  profiler: profiling.Profiler
  gates: gates_lib.Gates
  serving: serving_lib.Serving
  update_index: int = 0
  version: int = 0
  ledger: ledger_lib.Ledger = dataclasses.field(
      default_factory=ledger_lib.Ledger
  )
  anchors: ledger_lib.Anchors = dataclasses.field(
      default_factory=ledger_lib.Anchors
  )
  running: normalise.Running = dataclasses.field(default_factory=dict)
  clock: phases.PhaseClock = dataclasses.field(
      default_factory=phases.PhaseClock
  )
  earlier_s: float = 0.0
  totals: dict[str, float] = dataclasses.field(default_factory=dict)
  history: figures.History = dataclasses.field(default_factory=figures.History)
  results: dict[str, Any] = dataclasses.field(default_factory=dict)
  stopped: str = 'steps'
  compiles_seen: int = 0
  raw_advantage_BT: np.ndarray | None = None
  kl: dict[str, float] = dataclasses.field(default_factory=dict)
  bearing: bearing_lib.Bearing = dataclasses.field(
      default_factory=bearing_lib.Bearing
  )

  # --- loop control --------------------------------------------------------

  def goes_on(self, stop: Callable[[], bool]) -> bool:
    """False when steps or limits are used up, or a stop was asked for."""
    self.world.hosts.of_lead(self.mirror.check)
    told = self.world.hosts.exchange((stop(), self._used_up()))
    # Clocks differ, and a signal may reach one process alone.
    used_up = told[0][1]
    if used_up != 'steps' and any(asked for asked, _ in told):
      used_up = 'signal'
    if used_up is None:
      self.update_index += 1
      self.profiler.begin(self.update_index)
      return True
    self.stopped = used_up
    return False

  def _used_up(self) -> str | None:
    config = self.config
    sampled = self.totals.get('sampled_tokens', 0.0)
    limits = (
        ('steps', config.steps, self.update_index),
        ('time_limit', config.time_limit_s, self.training_s()),
        ('token_limit', config.token_limit, sampled),
    )
    for name, limit, used in limits:
      if limit is not None and used >= limit:
        return name
    return None

  def training_s(self) -> float:
    """Training seconds, those before a resume included."""
    return self.earlier_s + self.clock.training_s()

  # --- rows 1 to 5: rollouts -----------------------------------------------

  def take_tasks(self) -> list[session_lib.Job]:
    """The next tasks as jobs, `group.size` rollouts of each."""
    self.sampler.reset_stats()
    self.serving.begin()
    bearing_lib.begin(self)
    self.kl = {}
    return self.gathering.jobs()

  def collect(self, jobs: Sequence[session_lib.Job]) -> list[records.Rollout]:
    """Runs the jobs under the published weights; anew if the sampler fails."""
    self.ledger.start(len(jobs))
    with self.clock.phase('rollout'), bearing_lib.saves(self):
      runner = self.world.runner(
          self.sampler,
          self.config.sampling,
          on_end=self.progress.on_rollout,
      )
      rollouts = self._serve(lambda: runner.collect(jobs))
    self.ledger.end(len(rollouts))
    now = time.time()
    return [
        dataclasses.replace(r, t_enqueued=r.t_end, t_consumed=now)
        for r in rollouts
    ]

  def _serve(self, collect: Callable[[], Any]) -> Any:
    """What `collect` returns under the version that is trained (O6)."""
    return self.serving.collect(
        collect, version=self.version, params=self.state.policy_params
    )

  def admit(
      self, rollouts: Sequence[records.Rollout]
  ) -> tuple[list[records.Rollout], admission.Admission]:
    """Decides what is trained on and counts the rest with its reason.

    Returns:
      All rollouts of the update, and the decision. Under
      `group.dynamic_sampling` further rollouts were collected for it (E9).

    Raises:
      RunStopped: too many of them are infrastructure failures (A5).
    """
    with self.clock.phase('batch'), bearing_lib.saves(self):
      rollouts, admitted = self.gathering.admit(
          rollouts,
          self.collect,
          current_version=self.version,
          known_versions=range(self.version + 1),
          measure_kl=self._behaviour_kl,
      )
      self.ledger.record(admitted, version=self.version)
      self.ledger.assert_balanced()
      bearing_lib.check_batch(self, rollouts, admitted)
      admission.check_scored(
          admitted, max_missing=self.config.termination.max_missing
      )
      figures.warn_unanchored(
          self.anchors.record(
              admitted, max_unscored=self.config.termination.max_unscored
          ),
          self.config.termination.max_unscored,
      )
    self.bearing.before = None
    return rollouts, admitted

  def _behaviour_kl(
      self, rollouts: Sequence[records.Rollout]
  ) -> dict[str, float]:
    """k3 of the sampler to the policy by rollout, for staleness.max_kl."""
    found = ages.behaviour_kl(
        rollouts,
        config=self.config,
        learner=self.learner,
        params=self.state.policy_params,
    )
    self.kl |= found
    return found

  # --- rows 6 to 8: batch, scores, advantages ------------------------------

  def pack(self, admitted: admission.Admission) -> batching.Batch:
    """Packs rollouts into rows of static shape."""
    with self.clock.phase('batch'):
      return batching.build(
          admitted,
          batching=self.config.batching,
          gae=self.config.gae,
          critic=self.config.critic,
          loss=self.config.loss,
          compaction=self.config.compaction,
          anchor=(
              self.config.gigpo.anchor
              if self.config.advantage.estimator in stepwise.ESTIMATORS
              else None
          ),
          oldest_version=staleness.oldest_used(
              self.config.staleness, self.version
          ),
          max_support=self.config.sampling.recorded_support,
      )

  def score(self, batch: batching.Batch) -> update_lib.Scored:
    """Values, log-probs and the recursion over action tokens."""
    watch = self.world.watch('the scoring of the batch')
    with self.clock.phase('score'), watch:
      return self.updater.score(
          self.state,
          batch.segments,
          batch.minibatches,
          update=self.update_index,
      )

  def normalise(
      self, batch: batching.Batch, scored: update_lib.Scored
  ) -> np.ndarray:
    """Advantages as the actor sees them: normalised, or of a group."""
    with self.clock.phase('score'):
      config = self.config.advantage
      advantage_BT = scored.estimates.advantage_BT
      if config.estimator != 'gae':
        advantage_BT = groups.advantages(
            batch, config, self.config.group, self.config.gigpo
        )
      self.raw_advantage_BT = np.asarray(advantage_BT)
      advantage_BT, self.running = normalise.normalise(
          advantage_BT,
          batch.segments.joins,
          config=config,
          sources=batch.sources,
          running=self.running,
      )
      return advantage_BT

  # --- rows 9 and 10: update, publish --------------------------------------

  def update(
      self,
      batch: batching.Batch,
      scored: update_lib.Scored,
      advantage_BT: np.ndarray,
  ) -> report_lib.Report:
    """Critic passes, then the actor's epochs."""
    with self.clock.phase('update'):
      frozen = watching.freezes(self, batch, scored)
      # Both are asked: each keeps count of its own.
      frozen |= self.gates.holds_actor(batch, scored)
      if not frozen:
        self.gates.require_open()
      with self.world.watch('the update'):
        self.state, report = self.updater.update(
            self.state,
            scored,
            advantage_BT=advantage_BT,
            policy_weight_BT=batch.policy_weight_BT,
            critic_weight_BT=batch.critic_weight_BT,
            minibatches=batch.minibatches,
            train_actor=not frozen,
            source_BT=self._sources_to_measure(batch),
        )
    return report

  def _sources_to_measure(self, batch: batching.Batch) -> np.ndarray | None:
    """Source of every token, where this update measures them (L18)."""
    every = self.config.log.source_grad_every
    if not every or self.update_index % every:
      return None
    joins = batch.segments.joins
    source_BT = joins.source_R[np.maximum(joins.rollout_BT, 0)]
    return np.where(joins.rollout_BT >= 0, source_BT, -1)

  def publish(self) -> None:
    """Pushes the new weights to the sampler as the next version (O6).

    Raises:
      RunStopped: the sampler does not serve them, or does not agree (O4).
    """
    with bearing_lib.names_checkpoint(self):
      watch = self.world.watch('the publication of weights')
      with self.clock.phase('publish'), watch:
        self.version += 1
        self.serving.publish(
            self.version, self.state.policy_params, self.config.sampler.sync
        )
      every = self.config.alignment.every
      if every and self.update_index % every == 0:
        try:
          self.align()
        except ValueError as error:
          raise stops.RunStopped(
              f'update {self.update_index}: {error}'
          ) from error

  def align(self) -> None:
    """Compares what the sampler serves with what is trained (O4).

    In no phase: it is no training time.

    Raises:
      ValueError: they do not agree. One line.
    """
    with self.world.watch('the alignment check'):
      aligning.check(
          self.config,
          self.policy.decoder,
          params=self.state.policy_params,
          weights=self.sampler.weights,
          gates=self.gates,
          write=lambda values: self.writer.scalars(self.update_index, values),
      )

  # --- row 11: figures, checkpoints, evaluation ----------------------------

  def record(
      self,
      rollouts: Sequence[records.Rollout],
      admitted: admission.Admission,
      batch: batching.Batch,
      scored: update_lib.Scored,
      advantage_BT: np.ndarray,
      report: report_lib.Report,
  ) -> None:
    """Writes figures, transcripts and the rollouts themselves."""
    with self.clock.phase('record'):
      self.mirror.check()
      step = self.update_index
      jsonl.write(jsonl.rollouts_path(self.workdir, step), rollouts)
      estimates = figures.estimate_lines(batch, scored, advantage_BT)
      jsonl.write_lines(
          jsonl.estimates_path(self.workdir, step), estimates.values()
      )
      values = figures.training(
          admitted.judged, admitted.discarded, batch, scored, advantage_BT,
          report, self.history,
      )
      values |= watching.figures(self, batch, scored, advantage_BT, report)
      sampled = sum(r.num_actions for r in rollouts)
      compiled, self.compiles_seen = (
          self.compiles.count - self.compiles_seen, self.compiles.count
      )
      values |= figures.performance(
          self.clock.next_step(), self.sampler.stats(), batch, compiled,
          sampled,
      )
      values['perf/host_transfer_gib'] = (
          self.learner.residence.take_moved() / 2**30
      )
      values |= figures.advantage_scale(self.config.advantage, self.running)
      mask_BT = np.asarray(batch.segments.joins.policy_mask_BT)
      values |= summary.advantage_figures(
          self.raw_advantage_BT[mask_BT], np.asarray(advantage_BT)[mask_BT]
      )
      values |= self.gathering.figures(
          admitted, batch, self.raw_advantage_BT, advantage_BT
      )
      self.gathering.take_in(admitted, batch)
      values |= self.ledger.figures()
      values |= self.gates.figures()
      values['rollout/close_faults'] = sum(
          self.world.hosts.exchange(self.world.pool.close_faults)
      )
      values['policy/version'] = self.version
      values['rollout/sampler_restarts'] = self.serving.restarts
      self.totals['sampled_tokens'] = (
          self.totals.get('sampled_tokens', 0.0) + sampled
      )
      values['perf/sampled_tokens_total'] = self.totals['sampled_tokens']
      values['perf/train_seconds'] = self.training_s()
      self.writer.scalars(step, values)
      if step % self.config.log.histograms_every == 0:
        figures.histograms(self.writer, step, batch, scored, advantage_BT)
      if step % self.config.log.transcripts_every == 0:
        figures.transcripts(
            self.writer, step, estimates, rollouts, self.world.tokenizer
        )
      dumped = incidents.record(
          self.workdir, step, report, batch, scored, advantage_BT
      )
      self.progress.on_update(step, self.config.steps, values)
      with bearing_lib.saves(self):
        bearing_lib.check_skipped(self, dumped)

  def save_when_due(self) -> None:
    """Saves every `checkpoint.every` updates, and what was just evaluated."""
    every = self.config.checkpoint.every
    is_due = every and self.update_index % every == 0
    if is_due or self._evaluated_now():
      self.save()
    with self.clock.phase('record'):
      self.mirror.push()

  def save(self) -> None:
    """Saves networks, optimizers and cursors as one step."""
    self.mirror.check()
    success = None
    if self._evaluated_now():
      success = next(iter(self.results['last']['found'].values()))[0]
      if np.isnan(success):
        success = None  # Every rollout of the evaluation failed.
    with self.clock.phase('checkpoint'):
      self.checkpoints.save(
          self.update_index,
          self.state.parts,
          resuming.host_part(self),
          success=success,
      )

  def _evaluated_now(self) -> bool:
    return self.results.get('last', {}).get('update') == self.update_index

  def evaluate_when_due(self) -> None:
    """Evaluates every `evaluation.every` updates."""
    every = self.config.evaluation.every
    if every and self.update_index % every == 0:
      self._evaluate(self.config.evaluation.tasks)

  def evaluate_first(self) -> None:
    """Success of the start, once; what a stop has left out at a resume."""
    if self.config.steps and 'before' not in self.results:
      count = self.config.evaluation.final_tasks or self.config.evaluation.tasks
      self.results['before'] = self._evaluate(count)
    elif self.update_index and not self._evaluated_now():
      self.evaluate_when_due()

  def _evaluate(self, count: int) -> dict[str, list[float]]:
    last = self.results.get('last')
    if last and last['update'] == self.update_index and last['tasks'] == count:
      return last['found']
    with self.clock.phase('evaluate'), bearing_lib.saves(self):
      results = judging.run_all(
          self.config, self.workdir, self.update_index, self.world,
          self.sampler, on_end=self.progress.on_rollout,
          tasks=judging.first_tasks(
              self.eval_tasks, self.config.evaluation, count
          ),
          on_rollouts=self._check_evaluated,
          serve=self._serve,
      )
    found, values = {}, {}
    for result in results:
      name = f'{result.temperature:g}'
      found[name] = [result.success, result.low, result.high]
      values |= figures.evaluation(result, self.config.sampling.temperature)
    noise = self.gathering.noise.disagreement()
    values['eval/verifier_disagreement'] = noise
    self.writer.scalars(self.update_index, values)
    self.progress.on_evaluation(self.update_index, found, noise)
    self.results['last'] = {
        'update': self.update_index, 'tasks': count, 'found': found,
    }
    return found

  def _check_evaluated(self, rollouts: Sequence[records.Rollout]) -> None:
    self.gathering.check_noise(rollouts)
    bearing_lib.check_evaluation(
        rollouts,
        what=f'the evaluation after update {self.update_index}',
        step=self.update_index,
        faults=self.config.faults,
        workdir=self.workdir,
    )

  def interrupt(self) -> None:
    """Gives up the rollouts of the update that is under way."""
    bearing_lib.take_back(self)
    self.stopped = 'signal'

  def finish(self) -> dict[str, Any]:
    """Evaluates the end, saves it, and returns the summary.

    A run that was told to stop is saved at once and not evaluated.
    """
    after = {}
    if self.stopped != 'signal':
      config = self.config.evaluation
      after = self._evaluate(config.final_tasks or config.tasks)
    self.save()
    seconds = self.training_s()
    return {
        'before': _by_temperature(self.results.get('before', {})),
        'after': _by_temperature(after),
        'phase_s': dict(self.clock.total),
        'tokens_per_s': (
            self.totals.get('sampled_tokens', 0.0) / max(seconds, 1e-9)
        ),
        'workdir': self.mirror.workdir,
        'checkpoint': os.path.join(
            self.checkpoints.folder, str(self.update_index)
        ),
        'updates': self.update_index,
        'train_s': seconds,
        'stopped': self.stopped,
        'verifier_disagreement': self.gathering.noise.disagreement(),
        **self.history.summary(),
    }


def _by_temperature(found: dict[str, list[float]]) -> dict[float, tuple]:
  return {float(name): tuple(figures) for name, figures in found.items()}
