"""Holds a work directory for a run: of its processes, the lead does."""

import contextlib
from collections.abc import Callable, Iterator

from rl_tpu.checkpointing import lease as lease_lib
from rl_tpu.checkpointing import mirror
from rl_tpu.sharding import hosts as hosts_lib


@contextlib.contextmanager
def held(
    workdir: str, hosts: hosts_lib.Hosts = hosts_lib.ALONE
) -> Iterator[Callable[[], None]]:
  """Holds a work directory; yields a check that is made before writing.

  Args:
    workdir: as the user names it.
    hosts: processes of the run. The lead holds it, the others follow.

  Raises:
    ValueError: no work directory, or another run works in it; on all of them.
  """
  mirror.check_place(workdir)
  leases: list[lease_lib.Lease] = []
  hosts.of_lead(lambda: leases.append(lease_lib.take(workdir)))
  try:
    yield leases[0].check if leases else lambda: None
  finally:
    for lease in leases:
      lease.release()
