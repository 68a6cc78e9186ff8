"""A little SGLang: one scheduler process per rank, with the names that the launcher looks for, and no model.

LITTLE_RANKS says how many ranks, LITTLE_START how their processes start (spawn, fork); LITTLE_VERSION "old" takes the
phases' methods away; what happens to the environment is what SGLang does to it.
"""

__version__ = "0.0.little"
