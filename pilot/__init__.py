"""pilot: elastic deep-learning training on the idle nodes of a supercomputer.

Importing this package imports none of torch, mpi4py, Pyomo, Parsl or h5py: a login node pays only for what it uses.
"""

from pilot.core.version import __version__ as __version__
