"""Processes of a run, played by threads: each has its place among all."""

import threading

from rl_tpu.sharding import hosts


def together(count, run):
  """Calls `run(place)` once for each of `count` processes, at the same time.

  Args:
    count: processes.
    run: takes a `hosts.Hosts`.

  Returns:
    By process, what it returned or the exception that it raised.
  """
  barrier = threading.Barrier(count, timeout=30)
  told, results = [None] * count, [None] * count

  def gather_at(index):
    def gather(data):
      told[index] = data
      barrier.wait()
      found = list(told)
      barrier.wait()
      return found

    return gather

  def work(index):
    try:
      results[index] = run(hosts.Hosts(index, count, gather_at(index)))
    except Exception as error:  # pylint: disable=broad-except
      results[index] = error
      barrier.abort()

  threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return results
