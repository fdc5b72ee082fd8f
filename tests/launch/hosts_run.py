"""A training run that also keeps the gradients of its first update.

    python -m tests.launch.hosts_run OUT.npz train --experiment=... [flags]
"""

import sys

import jax
import numpy as np

from rl_tpu.assembly import run as run_lib
from rl_tpu.cli import main as main_lib
from rl_tpu.sharding import placement


def _keep_gradients(run, batch, scored, advantage_BT, out) -> None:
  parts = run.updater._minibatches(
      scored,
      advantage_BT,
      batch.policy_weight_BT,
      batch.critic_weight_BT,
      batch.minibatches,
  )
  found = {'advantage': np.asarray(advantage_BT), 'value': scored.value_BT}
  for index, part in enumerate(parts):
    gradients = {
        'actor': run.learner.actor_gradient(run.state.actor.params, part),
        'critic': run.learner.critic_gradient(run.state.critic.params, part),
    }
    leaves = jax.tree_util.tree_leaves_with_path(placement.fetch(gradients))
    for path, leaf in leaves:
      found[f'{index}{jax.tree_util.keystr(path)}'] = leaf
  if run.world.hosts.is_lead:
    np.savez(out, **found)


def main(out: str, *words: str) -> int:
  update = run_lib.TrainingRun.update

  def hooked(run, batch, scored, advantage_BT):
    if run.update_index == 1:
      _keep_gradients(run, batch, scored, advantage_BT, out)
    return update(run, batch, scored, advantage_BT)

  run_lib.TrainingRun.update = hooked
  return main_lib.main(words)


if __name__ == '__main__':
  sys.exit(main(*sys.argv[1:]))
