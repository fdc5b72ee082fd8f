"""Where in its loop a stopped run stands, read by another process.

py-spy reads the stack from the memory of the process; nothing in the run knows.
"""

import pathlib
import re
import subprocess
import sys

# The innermost one that is on the stack counts.
_FRAMES = {
    ('rl_tpu/assembly/run.py', 'save'): 'a save',
    ('rl_tpu/assembly/run.py', '_evaluate'): 'an evaluation',
    ('rl_tpu/assembly/run.py', 'collect'): 'rollouts',
    ('rl_tpu/assembly/run.py', 'score'): 'scoring',
    ('rl_tpu/assembly/run.py', 'record'): 'writing figures',
    ('rl_tpu/assembly/run.py', 'publish'): 'publication of weights',
    ('rl_tpu/learner/learner.py', 'update_critic'): 'critic update',
    ('rl_tpu/learner/learner.py', 'update_actor'): 'actor update',
    # Steps are dispatched one after the other; their figures are waited for.
    ('rl_tpu/learner/update.py', 'update'): 'waiting for the updates',
    ('rl_tpu/assembly/run.py', 'admit'): 'admission',
    ('rl_tpu/assembly/run.py', 'pack'): 'packing',
    ('rl_tpu/trainer.py', '_loop'): 'between stages',
    ('rl_tpu/cli/main.py', 'main'): 'start, resume or end',
}
_LINE = re.compile(r'^    (\S+) \((\S+):\d+\)$')
# Of the environment that runs this.
TOOL = pathlib.Path(sys.executable).with_name('py-spy')


def find(pid: int) -> str:
  """The stage of a process that SIGSTOP has stopped."""
  shown = subprocess.run(
      [TOOL, 'dump', '--nonblocking', '--pid', str(pid)],
      capture_output=True, text=True, check=False,
  ).stdout
  _, _, main_thread = shown.partition('MainThread')
  main_thread, _, _ = main_thread.partition('\nThread')
  for line in main_thread.splitlines():  # The innermost one comes first.
    found = _LINE.match(line)
    if found:
      name, path = found.groups()
      for (file, function), stage in _FRAMES.items():
        if name.endswith(function) and path.endswith(file):
          return stage
  return 'start, resume or end'
