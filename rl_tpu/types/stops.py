"""A run that ends itself by a rule of its settings."""


class RunStopped(RuntimeError):
  """The run does not go on; the message is the report, in one line."""


class WriteFailed(RunStopped):
  """Something could not be written: a full disk, a bucket that refuses."""


class Interrupted(Exception):
  """Somebody asked for a stop while rollouts were gathered."""
