"""What a run watches beside the objective: critic, warm-up, age (C1, O1)."""

from typing import Any

import numpy as np

from rl_tpu.assembly import ages
from rl_tpu.assembly import critic_figures
from rl_tpu.assembly import incidents
from rl_tpu.learner import report as report_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.rollout import batching


def freezes(
    run: Any, batch: batching.Batch, scored: update_lib.Scored
) -> bool:
  """True during the critic's warm-up; says when it has ended (C1).

  Args:
    run: the training run.
    batch: the batch that is about to be trained on.
    scored: its values; the held-out ones decide.
  """
  was_over = run.warm_up.over
  batches = run.update_index - 1
  frozen = run.warm_up.freezes(
      batches,
      lambda: critic_figures.held_out_explained_variance(batch, scored),
      run.state.policy_params,
  )
  if run.warm_up.over and not was_over and run.warm_up.actor:
    text = (
        f"critic warm-up ended after {batches} batches; the actor's parameters"
        f' did not change (hash {run.warm_up.actor})'
    )
    run.progress.note(text)
    run.writer.text(run.update_index, 'run/warm_up', text)
  return frozen


def figures(
    run: Any,
    batch: batching.Batch,
    scored: update_lib.Scored,
    advantage_BT: np.ndarray,
    report: report_lib.Report,
) -> dict[str, float | None]:
  """Figures of the critic and of the data's age; raises their alarms.

  Args:
    run: the training run, its update done and pushed.
    batch: what it was trained on.
    scored: the batch before the update.
    advantage_BT: as the actor saw it.
    report: of the update.
  """
  step = run.update_index
  # The batch was scored under the version before the last push.
  version = run.version - 1
  values = run.watch.figures(
      step,
      batch,
      scored,
      version=version,
      success=run.gathering.success,
      pool=run.history.held_out,
  )
  if values:
    pooled = run.history.pooled()
    values['critic/holdout/explained_variance_pooled'] = pooled
  frozen = not run.warm_up.over
  values['critic/warm_up'] = float(frozen)
  raised, shown = run.watch.raised(
      batch, advantage_BT, report, values, frozen=frozen
  )
  incidents.alarm(run.workdir, step, raised, batch)
  values |= shown
  values |= ages.figures(run.config, batch, scored, version=version)
  values |= ages.kl_figures(run.kl)
  run.watch.write_pictures(run.writer, step)
  return values
