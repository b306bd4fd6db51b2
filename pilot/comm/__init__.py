"""The rank process and what it shares with the worker (the user's training processes on a node).

Theory of operation
-------------------
MPI does not survive the loss of a rank, so the training process is never an MPI process. Each generation of a group has
one short-lived *rank process* per node, which only does MPI and may be killed at any moment.

- A training process listens on a Unix socket (``PILOT_WORKER_SOCKET``). A rank process starts, waits for its order,
  calls MPI_Init, where it finds the others (by PMI-1, served by its agent), connects to its node's training processes
  and sends :class:`~pilot.comm.messages.Here`. No MPI communication takes place until all rank processes of the
  generation have got this far.
- A training process hands it the gradient *arena* (:class:`~pilot.comm.messages.Attach`), a memfd that holds the
  gradient buckets and the control vector. Both map it, so gradients are never copied between them.
- In each step a training process sends one ``DOORBELL`` byte per bucket as soon as backward has filled it; for the last
  one once the control vector, which goes with it, is written. When all processes of the node have rung, the rank
  process adds up their parts (if there are several) and starts a nonblocking sum, while backward continues. It answers
  with one ``DOORBELL`` when all parts of the step are summed.
- There are two more services: ``Gather`` (a row of integers from each rank to all) and ``Spread`` (a block of bytes
  from one rank to some others, in chunks). A generation begins with them.
- In a round of seldom-synchronised training (``Open``) it does nothing but hear, by MPI messages from rank to rank,
  that another node has ended the round, and pass that on (:class:`~pilot.comm.messages.Closing`).
- A node may have several rank processes, called *rails*, which share its sums, because one alone cannot use all of a
  fast network.
- A waiting rank process sleeps on its socket between two tests for completion, and blocks on it if no operation is
  pending. It ends on ``Quit`` (MPI_Finalize and status 0), or at once when its worker's end of the socket closes.

Modules: ``arena`` shared memory, and the place of each gradient in it; ``channel`` the socket; ``messages`` the
messages on it; ``rank_server`` the loop of the rank process; ``step_sum`` the sums of a step; ``rails`` several rank
processes; ``open_round`` the end of a round; ``pipeline`` large transfers in pieces; ``naps`` waiting; ``mpi`` MPI
behind the small interface of ``fabric``; ``rank`` the program; ``rank_order`` its order; ``pmi`` how ranks find each
other; ``world`` the same for ranks on one host; ``mpich`` MPICH's environment and segments.
"""
