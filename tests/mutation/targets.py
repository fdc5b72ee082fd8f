"""What is mutated, and which tests have to notice.

Tests are in the order in which they run: the cheap ones that look closest
come first, and the first failure ends a mutant.
"""

import pathlib

_GAE = (
    'tests/advantages/gae_cases_test.py',
    'tests/advantages/gae_properties_test.py',
    'tests/advantages/gae_golden_test.py',
)
_LOSSES = (
    'tests/losses/objective_test.py',
    'tests/losses/policy_test.py',
    'tests/losses/kl_test.py',
    'tests/losses/value_test.py',
)

# Rooms that are mutated as a whole -> the tests of a module that is not named
# below. The test that bears a module's name comes before all others.
ROOMS = {
    'rl_tpu/advantages': ('tests/advantages/groups_test.py', *_GAE),
    'rl_tpu/losses': _LOSSES,
}

MODULES = {
    'rl_tpu/advantages/affine.py': _GAE,
    'rl_tpu/advantages/gae.py': _GAE,
    'rl_tpu/advantages/lanes.py': ('tests/advantages/affine_test.py', *_GAE),
    'rl_tpu/advantages/callable.py': (
        'tests/advantages/callable_test.py',
        'tests/advantages/callable_cases_test.py',
    ),
    'rl_tpu/advantages/groups.py': (
        'tests/advantages/groups_test.py',
        'tests/assembly/advantage_stage_test.py',
    ),
    'rl_tpu/advantages/stepwise.py': ('tests/advantages/groups_test.py',),
    'rl_tpu/advantages/normalise.py': (
        'tests/advantages/normalise_test.py',
        'tests/assembly/advantage_stage_test.py',
    ),
    'rl_tpu/losses/aggregation.py': (
        'tests/losses/aggregation_test.py',
        'tests/rollout/batching_test.py',
    ),
    'rl_tpu/losses/by_id.py': (
        'tests/losses/aggregation_test.py',
        'tests/learner/passes_test.py',
    ),
    'rl_tpu/losses/correction.py': ('tests/losses/objective_test.py',),
    'rl_tpu/losses/hl_gauss.py': ('tests/losses/objective_test.py',),
    'rl_tpu/losses/kl.py': (
        'tests/losses/kl_test.py',
        'tests/losses/objective_test.py',
    ),
    'rl_tpu/losses/objective.py': (
        'tests/losses/objective_test.py',
        'tests/losses/off_policy_test.py',
        'tests/learner/objective_properties_test.py',
    ),
    'rl_tpu/losses/policy.py': (
        'tests/losses/policy_test.py',
        'tests/losses/off_policy_test.py',
        'tests/losses/objective_test.py',
    ),
    'rl_tpu/losses/ratio.py': (
        'tests/losses/policy_test.py',
        'tests/losses/kl_test.py',
    ),
    'rl_tpu/losses/statistics.py': ('tests/losses/objective_test.py',),
    'rl_tpu/losses/value.py': (
        'tests/losses/value_test.py',
        'tests/losses/objective_test.py',
    ),
    'rl_tpu/learner/passes.py': (
        'tests/learner/passes_test.py',
        'tests/learner/objective_properties_test.py',
    ),
    'rl_tpu/types/termination.py': (
        'tests/types/termination_test.py',
        'tests/rollout/admission_test.py',
    ),
    'rl_tpu/types/statistics.py': ('tests/advantages/normalise_test.py',),
    'rl_tpu/types/sums.py': ('tests/types/sums_test.py',),
    'rl_tpu/rollout/admission.py': (
        'tests/rollout/admission_test.py',
        'tests/rollout/staleness_test.py',
        'tests/rollout/scoring_test.py',
        'tests/advantages/groups_test.py',
        'tests/advantages/gae_golden_test.py',
    ),
    'rl_tpu/rollout/batching.py': (
        'tests/rollout/batching_test.py',
        'tests/rollout/staleness_test.py',
        *_GAE,
    ),
    'rl_tpu/rollout/chain.py': (
        'tests/rollout/admission_test.py',
        'tests/rollout/scoring_test.py',
        'tests/advantages/gae_golden_test.py',
    ),
    'rl_tpu/rollout/comparison.py': (
        'tests/advantages/groups_test.py',
        'tests/rollout/admission_test.py',
    ),
    'rl_tpu/rollout/joins.py': ('tests/rollout/batching_test.py', *_GAE),
    'rl_tpu/rollout/ledger.py': ('tests/rollout/admission_test.py',),
    'rl_tpu/rollout/packing.py': ('tests/rollout/batching_test.py',),
    'rl_tpu/rollout/replacement.py': ('tests/rollout/replacement_test.py',),
    'rl_tpu/rollout/returns.py': (
        'tests/rollout/batching_test.py',
        'tests/rollout/scoring_test.py',
        'tests/advantages/stepwise_test.py',
        'tests/advantages/groups_test.py',
        *_GAE,
    ),
    'rl_tpu/rollout/scoring.py': (
        'tests/rollout/scoring_test.py',
        'tests/rollout/admission_test.py',
    ),
    'rl_tpu/rollout/staleness.py': (
        'tests/rollout/staleness_test.py',
        'tests/rollout/admission_test.py',
    ),
    'rl_tpu/rollout/timeline.py': ('tests/rollout/batching_test.py', *_GAE),
}

# The same on eight devices: a second look at what the others have seen.
LEFT_OUT = 'not Sharded'


def tests_of(root: pathlib.Path) -> dict[str, tuple[str, ...]]:
  """Every module that is mutated -> its tests, the nearest first."""
  found = {}
  for room, tests in ROOMS.items():
    for path in sorted((root / room).glob('*.py')):
      if path.name != '__init__.py':
        found[path.relative_to(root).as_posix()] = tests
  found.update(MODULES)
  for module, tests in found.items():
    own = module.replace('rl_tpu', 'tests', 1).replace('.py', '_test.py')
    if (root / own).is_file():
      found[module] = (own, *(t for t in tests if t != own))
  missing = [
      name
      for module, tests in found.items()
      for name in (module, *tests)
      if not (root / name).is_file()
  ]
  if missing:
    raise ValueError(f'tests/mutation/targets.py names {missing}.')
  return found
