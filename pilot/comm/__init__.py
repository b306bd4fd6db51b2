"""The rank process and what it shares with the worker (the user's training processes on a node).

Theory of operation
-------------------
MPI was not made to lose ranks, so the training process is never an MPI process. Each generation of a group has one
short-lived *rank process* per node, which knows MPI and nothing else, and which may be killed at any moment.

- A training process listens on a Unix socket (``PILOT_WORKER_SOCKET``). A rank process starts, waits for its order,
  calls MPI_Init, in which it finds the others (PMI-1, served by its agent), connects to those of its node and says
  :class:`~pilot.comm.messages.Here`. Nothing of MPI happens before all rank processes of the generation have come that
  far.
- A training process hands it the gradient *arena* (:class:`~pilot.comm.messages.Attach`), a memfd that holds the
  gradient buckets and the control vector. Both map it, so a gradient is never copied between them.
- In each step a training process sends one ``DOORBELL`` byte per bucket as soon as backward has filled it; for the last
  one when the control vector, which goes with it, is written. When all of the node have, the rank process adds their
  parts up (where there are several) and starts a nonblocking sum at once, while backward goes on. It answers with one
  ``DOORBELL`` when all parts of the step are summed.
- Around it are two more services: ``Gather`` (a row of integers from each rank to all) and ``Spread`` (a block of bytes
  from one rank to some others, in chunks). A generation begins with them.
- A node may have several rank processes, *rails*, which share its sums: one gets a part only of a fast network.
- A rank process that waits naps on its socket between two tests for completion, and blocks on it where nothing is
  under way. It ends when told to (``Quit``, in good order: MPI_Finalize and status 0), or at once when its worker's
  end of the socket closes.

``arena`` shared memory; ``channel`` the socket; ``messages`` what is said on it; ``layout`` which gradient lies where;
``serve`` the loop of the rank process; ``node`` the sum inside a node; ``rails`` those between nodes by several rank
processes; ``mpi`` MPI behind the small interface of ``fabric``; ``rank`` the program; ``order`` what it is told first;
``pmi`` how ranks find each other; ``world`` that for ranks on one host; ``mpich`` what else MPICH takes from outside.
"""
