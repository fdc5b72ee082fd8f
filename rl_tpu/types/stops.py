"""A run that ends itself by a rule of its settings."""

import errno

# What a disk says that does not take any more (OSError.errno).
UNWRITABLE = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO,
})


class RunStopped(RuntimeError):
  """The run does not go on; the message is the report, in one line."""


class WriteFailed(RunStopped):
  """Something could not be written: a full disk, a bucket that refuses."""


class Interrupted(Exception):
  """Somebody asked for a stop while rollouts were gathered."""
